# SPDX-License-Identifier: Apache-2.0
"""Tests of a program that run under a sanitizer in the long form alone."""

def long_forms(longasan = {}, longtsan = {}, longsan = {}):
    """Returns the `env` of a test that leaves some of its tests out under sanitizers.

    The default configuration runs all of them, and so do --config=long_asan and
    long_tsan. What is left out takes paths, or has pairs of threads, that other
    tests of the program have: a sanitizer sees each once. The tags of the same
    names leave out a whole program.

    Args:
      longasan: by pattern of tests (as in --gtest_filter), why they are left out
        under the address sanitizer.
      longtsan: the same for the thread sanitizer.
      longsan: the same for both.
    """
    env = {}
    if longasan or longsan:
        env["SHARD_TEST_LONG_ASAN"] = ":".join(longasan.keys() + longsan.keys())
    if longtsan or longsan:
        env["SHARD_TEST_LONG_TSAN"] = ":".join(longtsan.keys() + longsan.keys())
    return env
