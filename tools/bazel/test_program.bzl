# SPDX-License-Identifier: Apache-2.0
"""Test programs of several files."""

load("@rules_cc//cc:defs.bzl", "cc_library", "cc_test")

def test_program(name, tests, deps, **kwargs):
    """One program of several tests, compiled as one file that includes them.

    A test of two hundred lines takes five seconds to compile, most of them for
    the headers of gtest, of the library and of what the tests share. Six tests
    in one file take twelve. So that names do not meet, each test has a namespace
    of its own, called like the file. A test whose process must be its own (it
    replaces operator new, or limits or measures the process) is a cc_test.

    One test alone: bazel test //FOLDER:NAME --test_filter='SuiteName.*'

    Args:
      name: of the program.
      tests: files with TESTs.
      deps: of all of them.
      **kwargs: as of cc_test.
    """
    cc_library(
        name = name + "_files",
        testonly = True,
        textual_hdrs = tests,
    )
    includes = ["#include \\\"%s/%s\\\"" % (native.package_name(), test) for test in tests]
    native.genrule(
        name = name + "_source",
        testonly = True,
        outs = [name + ".cc"],
        cmd = "printf '%%s\\n' %s >$@" % " ".join(["\"%s\"" % i for i in includes]),
    )
    cc_test(
        name = name,
        srcs = [name + ".cc"],
        deps = deps + [":%s_files" % name],
        **kwargs
    )
