# SPDX-License-Identifier: Apache-2.0
"""Rust programs, compiled by rustc without cargo."""

def rust_program(name, src, out):
    """Compiles a program of one file that uses the crate shard.

    The library is linked by its path, for there is no libshard.so for -l to
    find. tests/sdk/rust builds the crates with cargo.

    Args:
      name: the name of the rule.
      src: the source file.
      out: the program.
    """
    native.genrule(
        name = name,
        testonly = True,
        srcs = [
            src,
            "//api:libshard.so.0",
            "//sdk/rust:libshard.rlib",
            "//sdk/rust:libshard_sys.rlib",
        ],
        outs = [out],
        cmd = """
            rustc --edition 2021 -O -D warnings --extern shard -o $@ \\
              -L "$$(dirname $(location //sdk/rust:libshard.rlib))" \\
              -C link-arg=$(location //api:libshard.so.0) $(location %s)
        """ % src,
        executable = True,
        message = "Compiling Rust:",
    )
