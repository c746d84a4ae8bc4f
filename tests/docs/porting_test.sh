#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: porting_test CHECK
#
# Tests that docs/porting.md is true. CHECK is the name of a function below.

set -euo pipefail

readonly here="$PWD"
readonly work="$TEST_TMPDIR/work"
readonly document=docs/porting.md
export LD_LIBRARY_PATH="$PWD/api${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# Prints the diff of that number in the document.
diff_of() {
  awk -v number="$1" '$0 == "```diff" { code = ++found == number; next }
    /^```$/ { code = 0 } code' "$document"
}

# compile SOURCE PROGRAM
compile() {
  gcc -std=c11 -O1 -Wall -Wextra -Wpedantic -Werror -I api/include "$1" \
    "$PWD/api/libshard.so.0" -lm -o "$2" || fail "$1 does not compile"
}

# trains SOURCE RANKS...: expects the losses of the first program on each number
# of ranks.
trains() {
  local program="${1%.c}" ranks
  compile "$1" "$program"
  for ranks in "${@:2}"; do
    rm -rf "$work/checkpoints"
    (cd "$work" &&
      "$here/sdk/cli/shardctl" run -n "$ranks" --timeout 30 -- "$program") |
      sed 's/^\[0\] //' | diff "$work/expected" - ||
      fail "$1 on $ranks ranks has other losses (>) than train.c (<)"
  done
}

# The diffs make of train.c programs with the same losses.
diffs() {
  mkdir -p "$work"
  cp tests/docs/porting/train.c "$work"
  compile "$work/train.c" "$work/train"
  "$work/train" >"$work/expected"
  cat "$work/expected"
  [[ "$(wc -l <"$work/expected")" == 3 ]] || fail "not 3 lines"
  local stage number=0
  for stage in 1 3; do
    diff_of $((++number)) >"$work/diff"
    [[ -s "$work/diff" ]] || fail "$document has no diff for stage $stage"
    (cd "$work" && git apply diff) ||
      fail "the diff for stage $stage does not apply"
    cp "$work/train.c" "$work/stage$stage.c"
    trains "$work/stage$stage.c" 1 2 3
  done
  # As ranks that share no memory.
  sed 's/"env:"/"env:?direct=0"/' "$work/stage3.c" >"$work/apart.c"
  ! cmp -s "$work/stage3.c" "$work/apart.c" || fail "stage 3 has no URL"
  trains "$work/apart.c" 2 3
}

# The document has the errors that the program makes, and no others.
errors() {
  tests/docs/common_errors "$TEST_TMPDIR/checkpoints" |
    sed "s,$TEST_TMPDIR/,," >"$TEST_TMPDIR/printed"
  diff <(awk '$0 == "```text" { code = 1; next } /^```$/ { code = 0 } code' \
    "$document" | sort) <(sort "$TEST_TMPDIR/printed") ||
    fail "$document (<) and the library (>) have different messages"
}

"$1"
