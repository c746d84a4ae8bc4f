#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests that Doxygen makes the reference of the headers without a warning, and
# that it has every function that the library exports, with its comment.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

out="$TEST_TMPDIR/reference"
{
  cat docs/Doxyfile
  echo "OUTPUT_DIRECTORY = $out"
} | doxygen - 2>"$TEST_TMPDIR/warnings" || fail "doxygen: exit code $?"
[[ ! -s "$TEST_TMPDIR/warnings" ]] || fail "$(<"$TEST_TMPDIR/warnings")"
sed -E 's/<[^>]*>//g' "$out"/html/*_8h.html >"$TEST_TMPDIR/text"
for function in $(cut -d' ' -f1 tests/abi/symbols.txt | grep '^shard_'); do
  grep -qwF "$function" "$TEST_TMPDIR/text" || fail "$function is in no page"
done
# Functions that share a comment in a header have it each.
shared="$(grep -cF "Return this rank and the number of ranks" \
  "$TEST_TMPDIR/text")"
((shared >= 2)) || fail "a shared comment is lost"
