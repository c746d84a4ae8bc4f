# SPDX-License-Identifier: Apache-2.0
"""Test programs of several files."""

load("@rules_cc//cc:defs.bzl", "cc_test")
load("//tools/bazel:one_source.bzl", "one_source")

def test_program(name, tests, deps, **kwargs):
    """Defines a program of several tests, compiled as one file with them all.

    A test of two hundred lines takes five seconds to compile, most of them for
    the headers of gtest, of the library and of the helpers that tests share.
    Six tests in one file take twelve. So that names do not collide, each test
    has a namespace of its own, called like the file. A test that needs a
    process of its own (it replaces operator new, or limits or measures the
    process) is a cc_test.

    To run one test alone: bazel test //FOLDER:NAME --test_filter='SuiteName.*'

    Args:
      name: the name of the program.
      tests: the files with TESTs.
      deps: the dependencies of all files.
      **kwargs: passed on to cc_test.
    """
    one_source(
        name = name,
        testonly = True,
        files = tests,
    )
    cc_test(
        name = name,
        srcs = [name + ".cc"],
        deps = deps,
        **kwargs
    )
