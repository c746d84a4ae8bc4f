# SPDX-License-Identifier: Apache-2.0
"""Test programs that run again on the guard device."""

def guarded(programs):
    """Defines a test guarded_NAME for each test program NAME of the package.

    The program runs with SHARD_TEST_GUARD in its environment: see create_engine.h.
    Not under the sanitizers: these see the same work in the program itself, and
    copies from and to a device in the tests of core/device.

    Args:
      programs: the names of the programs.
    """
    for program in programs:
        native.sh_test(
            name = "guarded_" + program,
            srcs = ["//tests/core/engine:guarded.sh"],
            args = ["$(location :%s)" % program],
            data = [":" + program],
            tags = ["nosan"],
        )
