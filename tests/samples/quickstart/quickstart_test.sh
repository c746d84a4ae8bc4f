#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: quickstart_test PROGRAM...
#
# Tests the quickstart of C, the first PROGRAM: it learns, a run that goes on
# ends with the bits of a run that did not stop, and more ranks can go on. Then
# expects that each other PROGRAM, which is the same in another language, saves
# the same checkpoints, before and after it has stopped.

set -euo pipefail

export LD_LIBRARY_PATH="$PWD/api${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PYTHONPATH="$PWD/sdk/python" PYTHONDONTWRITEBYTECODE=1
shardctl="$PWD/sdk/cli/shardctl"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# train RANKS PROGRAM FOLDER STEPS: prints what rank 0 does.
train() {
  local ranks="$1" program="$2"
  shift 2
  "$shardctl" run -n "$ranks" --timeout 40 -- "$PWD/$program" "$@" ||
    fail "$program $* on $ranks ranks: exit code $?"
}

# same A B: expects two checkpoints with the same bits.
same() {
  "$shardctl" diff "$1" "$2" || fail "$1 and $2 differ"
}

expect_usage() {
  local code=0
  "$PWD/$1" "${@:2}" 2>"$TEST_TMPDIR/err" || code=$?
  [[ "$code" == 2 ]] && grep -q "^usage: quickstart FOLDER STEPS" \
    "$TEST_TMPDIR/err" || fail "$*: exit code $code, $(<"$TEST_TMPDIR/err")"
}

# The model learns: bytes by their frequency alone have a loss above 3.
c="$1"
once="$TEST_TMPDIR/once"
train 2 "$c" "$once" 400 >"$TEST_TMPDIR/printed"
cat "$TEST_TMPDIR/printed"
[[ "$(wc -l <"$TEST_TMPDIR/printed")" == 8 ]] || fail "not 8 lines"
awk '$2 == "step" && $3 == "400:" && $4 == "loss" && $5 > 1 && $5 < 2.6 { ok = 1 }
  END { exit !ok }' "$TEST_TMPDIR/printed" || fail "the loss stays above 2.6"

# A second run goes on where the first one ended.
twice="$TEST_TMPDIR/twice"
train 2 "$c" "$twice" 150
train 2 "$c" "$twice" 400
same "$once" "$twice"
train 2 "$c" "$twice" 400 >"$TEST_TMPDIR/printed"
[[ ! -s "$TEST_TMPDIR/printed" ]] || fail "trains though all steps are done"
train 3 "$c" "$twice" 410

expect_usage "$c" "$once"
expect_usage "$c" "$once" 0
expect_usage "$c" "$once" 10 "$TEST_TMPDIR/missing"

# The other languages print and save the same, in a run from the beginning and in
# one that goes on.
short="$TEST_TMPDIR/short"
longer="$TEST_TMPDIR/longer"
train 2 "$c" "$short" 50 >"$TEST_TMPDIR/expected"
train 2 "$c" "$longer" 60
for program in "${@:2}"; do
  own="$TEST_TMPDIR/$(basename "$program")-checkpoints"
  train 2 "$program" "$own" 50 | diff "$TEST_TMPDIR/expected" - ||
    fail "$program prints other lines (>) than $c (<)"
  same "$short" "$own"
  train 2 "$program" "$own" 60
  same "$longer" "$own"
  expect_usage "$program" "$own"
  expect_usage "$program" "$own" x
  expect_usage "$program" "$own" 10 "$TEST_TMPDIR/missing"
done
