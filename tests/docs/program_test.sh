#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: program_test DOCUMENT
#
# Tests that the first C program in DOCUMENT compiles as C11 without a warning,
# and prints the lines of the first block of text that follows it, in any order.

set -euo pipefail

export LD_LIBRARY_PATH="$PWD/api${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# Prints the first block of a language, c or text.
block() {
  awk -v open='```'"$1" '$0 == open { code = 1; next }
       code && /^```$/ { exit } code' "$2"
}

source="$TEST_TMPDIR/program.c"
block c "$1" >"$source"
block text "$1" >"$TEST_TMPDIR/expected"
[[ -s "$TEST_TMPDIR/expected" ]] || fail "$1 does not say what is printed"
gcc -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Werror -I api/include \
  "$source" api/libshard.so.0 -o "$TEST_TMPDIR/program" ||
  fail "it does not compile"
# The program may make files.
cd "$TEST_TMPDIR"
./program | sort | diff <(sort expected) - ||
  fail "$1 (<) and its program (>) say different things"
