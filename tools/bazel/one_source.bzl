# SPDX-License-Identifier: Apache-2.0
"""Several files compiled as one."""

load("@rules_cc//cc:defs.bzl", "cc_library")

def one_source(name, files, testonly = False):
    """Makes NAME.cc, which includes all files, and the library NAME_files.

    Most of the time of a file of two hundred lines goes into its headers. Names
    that the files define must not collide, not even in unnamed namespaces.

    Args:
      name: the name of the source, without ".cc".
      files: the files; they are not compiled by themselves.
      testonly: as everywhere.
    """
    cc_library(
        name = name + "_files",
        testonly = testonly,
        textual_hdrs = files,
    )
    includes = ["#include \\\"%s/%s\\\"" % (native.package_name(), file) for file in files]
    native.genrule(
        name = name + "_source",
        testonly = testonly,
        outs = [name + ".cc"],
        cmd = "printf '%%s\\n' %s >$@" % " ".join(["\"%s\"" % i for i in includes]),
    )
