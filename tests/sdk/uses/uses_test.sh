#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests uses.sh and the recorder, with a program that calls the functions that a
# file lists.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  cat "$TEST_TMPDIR/out" >&2
  exit 1
}

mapfile -t all < <(
  sed -nE 's/^FUNCTION\((.*),.*/\1/p' tests/sdk/uses/functions.inc
)
((${#all[@]} > 100)) || { echo "FAILED: ${#all[@]} functions" >&2; exit 1; }

# uses.sh runs programs below this folder.
program="run-$RANDOM"
trap 'rm -f "$program"' EXIT

# check COMMAND: runs uses.sh for a program that is this command.
check() {
  printf '#!/bin/bash\n%s\n' "$1" >"$program"
  chmod +x "$program"
  rm -f "$TEST_TMPDIR/uses"
  tests/sdk/uses/uses.sh "$program" >"$TEST_TMPDIR/out" 2>&1
}

call=tests/sdk/uses/call
if [[ "$(uname -m)" != x86_64 ]]; then
  check false || fail "the check is not skipped"
  grep -q '^uses: skipped: ' "$TEST_TMPDIR/out" || fail "no reason is given"
  exit 0
fi

check "$call ${all[*]}" || fail "every function was called"
grep -q '^version [0-9.]*, ABI 0$' "$TEST_TMPDIR/out" ||
  fail "the functions of the library did not run"

# The functions that are not called are listed, and no others. call itself calls
# the two of versions.
! check "$call shard_comm_free" || fail "most functions were never called"
diff <(printf '%s\n' "${all[@]}" |
  grep -vxE 'shard_(comm_free|version|abi_version)') \
  <(grep -x 'shard_[a-z0-9_]*' "$TEST_TMPDIR/out") || fail "not the unused ones"

# The calls of several processes add up.
half=$((${#all[@]} / 2))
check "$call ${all[*]:0:$half}; (exec $call ${all[*]:$half})" ||
  fail "two processes called every function"

! check "$call ${all[*]}; exit 3" || fail "the program failed"
grep -q 'exit code 3' "$TEST_TMPDIR/out" || fail "no exit code"

! check "LD_LIBRARY_PATH=$PWD/api $call" || fail "the recorder was not loaded"
grep -q 'has loaded' "$TEST_TMPDIR/out" || fail "no reason is given"

check "export SHARD_USES_VERSION=9.8.7 SHARD_USES_ABI_VERSION=6
  $call ${all[*]}" || fail "every function was called"
grep -qx 'version 9.8.7, ABI 6' "$TEST_TMPDIR/out" || fail "other versions"
