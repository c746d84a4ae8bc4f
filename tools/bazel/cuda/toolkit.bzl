# SPDX-License-Identifier: Apache-2.0
"""The CUDA toolkit of the machine, where it has one."""

_OLDEST = (12, 8)

# The headers that tests compare our declarations with.
_HEADERS = {
    "cublasLt.h": "SHARD_HAS_CUBLASLT_H",
    "cuda.h": "SHARD_HAS_CUDA_H",
}

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "headers",
    testonly = True,
    hdrs = glob([
        "include/*.h",
        "include/*.hpp",
        "include/crt/**",
        "include/nccl_device/**",
        "include/nv/**",
    ]),
    defines = {defines},
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _version(ctx, bin):
    """Returns nvcc's version, "13.0.88", or "" where nvcc does not run."""
    result = ctx.execute([bin + "/nvcc", "--version"])
    for word in result.stdout.replace("\n", " ").split(" "):
        if result.return_code == 0 and word.startswith("V"):
            return word[1:]
    return ""

def _find(ctx):
    """Returns (folder of nvcc, version, reason why there is none)."""
    named = ctx.os.environ.get("CUDA_PATH", "")
    on_path = ctx.which("nvcc")
    if named:
        bin, place = named + "/bin", "CUDA_PATH (%s)" % named
    elif on_path:
        bin, place = str(on_path.realpath.dirname), "PATH (%s)" % on_path
    else:
        bin, place = "/usr/local/cuda/bin", "/usr/local/cuda, on PATH or by CUDA_PATH"
    for letter in bin.elems():
        # The commands that run nvcc, and the message below, need no quotes then.
        if not letter.isalnum() and letter not in "/._+-":
            return "", "", "the path of the CUDA toolkit has a character other than letters, digits and /._+-"
    for program in ["nvcc", "fatbinary"]:
        if not bin.startswith("/") or not ctx.path(bin + "/" + program).exists:
            return "", "", "no CUDA toolkit is found in " + place
    version = _version(ctx, bin)
    numbers = version.split(".")
    if len(numbers) < 2 or not (numbers[0] + numbers[1]).isdigit():
        return "", "", "the nvcc found in %s does not run" % place
    if (int(numbers[0]), int(numbers[1])) < _OLDEST:
        return "", "", "the CUDA toolkit found in %s is %s, and older than %d.%d" % (
            (place, version) + _OLDEST
        )
    return bin, version, ""

def _cuda_toolkit_impl(ctx):
    bin, version, missing = _find(ctx)
    include = bin + "/../include"
    defines = []
    if bin != "" and ctx.path(include).exists:
        ctx.symlink(include, "include")

        # A toolkit may be there in parts.
        for header, define in _HEADERS.items():
            if ctx.path(include + "/" + header).exists:
                defines.append(define)
    ctx.file("BUILD.bazel", _BUILD.format(defines = defines))
    ctx.file("toolkit.bzl", "\n".join([
        '"""Written by //tools/bazel/cuda:toolkit.bzl."""',
        "CUDA_BIN = " + repr(bin),
        "CUDA_VERSION = " + repr(version),
        "CUDA_MISSING = " + repr(missing),
        "",
    ]))

# A repository with the target //:headers, those of the toolkit with a define for each
# of _HEADERS that is there, for tests (nothing without a toolkit), and the file
# toolkit.bzl:
#   CUDA_BIN       the folder of nvcc, or "" without a toolkit
#   CUDA_VERSION   nvcc's version, or ""
#   CUDA_MISSING   the reason why there is none, or ""
# The toolkit stays where it is: actions run nvcc by its path, for Bazel's sandbox
# shows the whole disk. CUDA_PATH names a toolkit, or a folder without one to build
# without CUDA. A toolkit that replaces another at the same place is seen after
# `bazel sync --configure`. Version 12.8 is the first that knows sm_120.
cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    configure = True,
    environ = [
        "CUDA_PATH",
        "PATH",
    ],
    local = True,
)
