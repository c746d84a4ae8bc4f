# SPDX-License-Identifier: Apache-2.0
"""Tests of a program that run under a sanitizer in the long form alone."""

def long_forms(longasan = {}, longtsan = {}, longsan = {}):
    """Returns the `env` of a test that leaves some of its tests out under sanitizers.

    The default configuration runs all of them, and so do --config=long_asan and
    long_tsan. What is left out takes paths, or has pairs of threads, that other
    tests of the program have: a sanitizer sees each once. under_sanitizer.sh prints
    what is left out, and why. The tags of the same names leave out a whole program.

    Args:
      longasan: by pattern of tests (as in --gtest_filter), why they are left out
        under the address sanitizer.
      longtsan: the same for the thread sanitizer.
      longsan: the same for both.
    """
    env = {}
    for name, reasons in [
        ("SHARD_TEST_LONG_ASAN", dict(longasan, **longsan)),
        ("SHARD_TEST_LONG_TSAN", dict(longtsan, **longsan)),
    ]:
        if reasons:
            env[name] = "\n".join([
                "%s: %s" % (tests, why)
                for tests, why in reasons.items()
            ])
    return env
