#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: uses.sh PROGRAM...
#
# Runs each PROGRAM, without arguments, with the recorder of this folder as
# libshard.so.0, and fails when a program fails, or when there is a function of
# the library that none of them calls; it lists these.
#
# The test of a language is a target of uses.bzl, whose programs run the whole
# suite of the language:
#
#     load("//tests/sdk/uses:uses.bzl", "uses_test")
#
#     uses_test(
#         name = "uses_test",
#         programs = [":sdk_tests"],
#     )
#
# A program must find libshard.so.0 through LD_LIBRARY_PATH, which comes before
# a RUNPATH but not before an RPATH. Processes that it forks or starts record
# too: a suite that starts shardctl, whose calls are not the suite's, does so
# without SHARD_USES_FILE in the environment.
#
# For tests of the wrong version: with SHARD_USES_VERSION=0.1.0 in the
# environment of such a process, shard_version returns that; so does
# shard_abi_version with SHARD_USES_ABI_VERSION=1.

set -euo pipefail

readonly recorder="$PWD/tests/sdk/uses"

if [[ "$(uname -m)" != x86_64 ]]; then
  echo "uses: skipped: the recorder's instructions are those of x86-64"
  exit 0
fi

export SHARD_USES_LIBRARY="$PWD/api/libshard.so.0"
export SHARD_USES_FILE="$TEST_TMPDIR/uses"
export LD_LIBRARY_PATH="$recorder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

status=0
for program in "$@"; do
  "./$program" || {
    echo "FAILED: $program: exit code $?" >&2
    status=1
  }
done

if [[ ! -e "$SHARD_USES_FILE" ]]; then
  echo "FAILED: no program has loaded $recorder/libshard.so.0; has one an" \
    "RPATH, or another name for the library?" >&2
  exit 1
fi

# A line for each function: its name, and the byte that a call sets.
unused="$(paste <(sed -nE 's/^FUNCTION\((.*),.*/\1/p' "$recorder/functions.inc") \
  <(od -An -v -tu1 -w1 "$SHARD_USES_FILE") | awk '$2 != 1 { print $1 }')"
if [[ -n "$unused" ]]; then
  echo "FAILED: these functions of the library are never called:" >&2
  echo "$unused" >&2
  status=1
fi
exit "$status"
