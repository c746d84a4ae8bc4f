#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests docs/cpp.md: the first block of C++ is a program that prints the first
# block of text, also when it goes on from its checkpoint; the other blocks are
# statements, which compile.

set -euo pipefail

export LD_LIBRARY_PATH="$PWD/api${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

readonly document=docs/cpp.md
readonly flags=(-std=c++20 -Wall -Wextra -Wpedantic -Wconversion -Werror
  -I api/include -I sdk/cpp/include)

# block LANGUAGE NUMBER: prints a block, from 1; nothing where there is none.
block() {
  awk -v open='```'"$1" -v number="$2" '
    $0 == open { code = ++found == number; next }
    /^```$/ { code = 0 } code' "$document"
}

block cpp 1 >"$TEST_TMPDIR/program.cc"
block text 1 >"$TEST_TMPDIR/expected"
[[ -s "$TEST_TMPDIR/expected" ]] || fail "$document says nothing of its output"
g++ "${flags[@]}" "$TEST_TMPDIR/program.cc" api/libshard.so.0 \
  -o "$TEST_TMPDIR/program" || fail "the program does not compile"

{
  echo '#include <cstdio>'
  echo '#include "shard/shard.hpp"'
  for ((i = 2; ; ++i)); do
    block cpp "$i" >"$TEST_TMPDIR/block"
    [[ -s "$TEST_TMPDIR/block" ]] || break
    echo "void block_$i([[maybe_unused]] shard::Engine& engine,"
    echo "              [[maybe_unused]] const shard::Plan& plan,"
    echo "              [[maybe_unused]] shard::ParamId weight) {"
    cat "$TEST_TMPDIR/block"
    echo "}"
  done
} >"$TEST_TMPDIR/blocks.cc"
((i > 4)) || fail "there are $((i - 1)) blocks"
g++ "${flags[@]}" -fsyntax-only "$TEST_TMPDIR/blocks.cc" ||
  fail "a block does not compile"

# The program makes files.
cd "$TEST_TMPDIR"
for run in first second; do
  ./program | diff expected - || fail "not what the document says, $run run"
done
