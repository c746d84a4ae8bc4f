# SPDX-License-Identifier: Apache-2.0
"""Several files compiled as one."""

load("@rules_cc//cc:defs.bzl", "cc_library")

def one_source(name, files, testonly = False):
    """Makes NAME.cc, which has the text of all files.

    Most of the time of a file of two hundred lines goes into its headers. Names
    that the files define must not collide, not even in unnamed namespaces.

    The text is copied, and not included: a header that a target needs to be
    compiled counts as an input of all targets above it, so that each change of a
    file would make all their objects in a cache useless.

    Args:
      name: the name of the source, without ".cc".
      files: the files. Messages and debug information name them.
      testonly: as everywhere.
    """
    native.genrule(
        name = name + "_source",
        testonly = testonly,
        srcs = files,
        outs = [name + ".cc"],
        cmd = "for i in $(SRCS); do echo \"#line 1 \\\"$$i\\\"\"; cat $$i; done >$@",
    )

def one_source_library(name, srcs, parts = 1, **kwargs):
    """Defines a cc_library whose .cc files are compiled as one: see one_source.

    Args:
      name: the name of the library.
      srcs: the .cc files, and headers that only they include.
      parts: the number of sources that the files become, in their order. One core
        compiles a source, so none should take much longer than the others of the
        tree.
      **kwargs: passed on to cc_library.
    """
    files = [src for src in srcs if src.endswith(".cc")]
    headers = [src for src in srcs if not src.endswith(".cc")]
    sources = []
    for part in range(parts):
        source = "%s_part_%d" % (name, part + 1)
        one_source(
            name = source,
            files = files[part * len(files) // parts:(part + 1) * len(files) // parts],
        )
        sources.append(source + ".cc")
    cc_library(
        name = name,
        srcs = headers + sources,
        **kwargs
    )
