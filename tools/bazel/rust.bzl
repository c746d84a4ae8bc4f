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
            "//sdk/rust:crates",
        ],
        outs = [out],
        cmd = """
            scratch="$$(mktemp -d)"
            trap 'rm -rf "$$scratch"' EXIT
            build() {
              rustc --edition 2021 -O -D warnings -L "$$scratch" "$$@"
            }
            crate() {
              build --crate-type rlib --out-dir "$$scratch" --crate-name "$$@"
            }
            crate shard_sys sdk/rust/shard-sys/src/lib.rs
            crate shard sdk/rust/shard/src/lib.rs --extern shard_sys
            build $(location %s) --extern shard -o $@ \\
              -C link-arg=$(location //api:libshard.so.0)
        """ % src,
        executable = True,
        message = "Compiling Rust:",
    )
