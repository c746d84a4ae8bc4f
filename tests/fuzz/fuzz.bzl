# SPDX-License-Identifier: Apache-2.0
"""Fuzz targets: see CONTRIBUTING.md."""

load("@rules_cc//cc:defs.bzl", "cc_binary")

_FUZZ = "//tools/bazel/clang:fuzz"

def fuzz_test(name, deps, dictionary = None, mutator = None):
    """Defines a fuzz target: NAME.cc with its corpus, corpus/NAME.

    Args:
      name: the name of the test, the source and the corpus.
      deps: the libraries that read the input.
      dictionary: words of the format, for libFuzzer.
      mutator: a library with LLVMFuzzerCustomMutator.
    """
    program = name + "_program"
    cc_binary(
        name = program,
        testonly = True,
        srcs = [name + ".cc"],
        linkopts = select({
            _FUZZ: ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        deps = deps + [":fuzz"] + select({
            _FUZZ: [mutator] if mutator else [],
            "//conditions:default": [":replay"],
        }),
    )
    native.sh_test(
        name = name,
        size = "medium",
        srcs = ["fuzz.sh"],
        args = select({
            _FUZZ: ["fuzz"],
            "//conditions:default": ["replay"],
        }) + [
            "$(location :%s)" % program,
            "%s/corpus/%s" % (native.package_name(), name),
        ] + (["$(location %s)" % dictionary] if dictionary else []),
        data = [":" + program] + native.glob(["corpus/%s/*" % name]) +
               ([dictionary] if dictionary else []),
        # The target has one thread, and the thread sanitizer's time is better
        # spent elsewhere.
        tags = ["notsan"],
    )
