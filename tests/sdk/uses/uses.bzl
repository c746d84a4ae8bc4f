# SPDX-License-Identifier: Apache-2.0
"""Tests that a language's tests call every function of the library."""

def uses_test(name, programs, data = [], **kwargs):
    """Runs test programs, and fails for functions that none of them calls.

    tests/sdk/uses/uses.sh says how.

    Args:
      name: the name of the test.
      programs: labels of programs that run without arguments.
      data: other files that they read.
      **kwargs: passed on to sh_test.
    """
    native.sh_test(
        name = name,
        srcs = ["//tests/sdk/uses:uses.sh"],
        args = ["$(rootpath %s)" % program for program in programs],
        data = programs + data + [
            "//api:libshard.so.0",
            "//tests/sdk/uses:functions.inc",
            "//tests/sdk/uses:libshard.so.0",
        ],
        # The recorder loads the library deeply bound, which the address
        # sanitizer refuses; the calls are the same under every configuration.
        tags = kwargs.pop("tags", []) + ["nosan"],
        **kwargs
    )
