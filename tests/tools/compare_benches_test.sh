#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests the output of compare_benches for programs whose results are known.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# program NAME LINE...: makes a program that prints the lines, with the number
# of its run for RUN.
program() {
  local path="$TEST_TMPDIR/$1"
  shift
  {
    echo '#!/usr/bin/env bash'
    echo 'echo run >>"$0.runs"; run="$(wc -l <"$0.runs")"'
    for line in "$@"; do echo "echo \"${line//RUN/\$run}\""; done
  } >"$path"
  chmod +x "$path"
}

compare() {
  rm -f "$TEST_TMPDIR"/*.runs
  tools/compare_benches.py "$@"
}

cd "$TEST_SRCDIR/$TEST_WORKSPACE"
before="$TEST_TMPDIR/before"
after="$TEST_TMPDIR/after"

# The ratio is the median. A result that only one program prints is left out.
# Other lines may be anything.
program before "BENCH fake step_ms 4 ms" "BENCH fake gone 1 ms" "words"
program after "BENCH fake step_ms \$((RUN == 2 ? 9 : 2)) ms" "BENCH fake new 1 x"
printed="$(compare --pairs 5 "$before" "$after")"
expected="BENCH fake step_ms.after_over_before 0.5 ratio"
expected+="  (4 -> 2 ms; before over itself 1.000 to 1.000)"
[[ "$printed" == "$expected" ]] || fail "'$printed' is not '$expected'"
[[ "$(wc -l <"$before.runs")" == 10 ]] || fail "before did not run twice a round"
[[ "$(wc -l <"$after.runs")" == 5 ]] || fail "after did not run once a round"

# A program that differs from itself is reported.
program before "BENCH fake step_ms \$((RUN % 2 + 1)) ms"
printed="$(compare --pairs 6 "$before" "$after")"
[[ "$printed" =~ "before over itself 0.875 to 2.000" ]] || fail "'$printed'"

# Options after the programs are passed to them.
program after 'BENCH fake step_ms ${1#--ms=} ms'
printed="$(compare --pairs 1 "$after" "$after" --ms=7)"
[[ "$printed" =~ "(7 -> 7 ms" ]] || fail "'$printed'"

# Wrong uses are errors.
program broken "BENCH fake step_ms 1 ms"
echo 'exit 3' >>"$TEST_TMPDIR/broken"
! compare "$before" "$TEST_TMPDIR/broken" 2>"$TEST_TMPDIR/err" ||
  fail "a program that fails is no error"
grep -q "broken failed with exit code 3" "$TEST_TMPDIR/err" ||
  fail "$(<"$TEST_TMPDIR/err")"
program other "BENCH fake other_ms 1 ms"
! compare --pairs 1 "$before" "$TEST_TMPDIR/other" 2>"$TEST_TMPDIR/err" ||
  fail "nothing in common is no error"
grep -q "no metric that both programs print" "$TEST_TMPDIR/err" ||
  fail "$(<"$TEST_TMPDIR/err")"
! compare --pairs 0 "$before" "$before" 2>"$TEST_TMPDIR/err" ||
  fail "0 pairs are no error"
grep -q "at least 1, not 0" "$TEST_TMPDIR/err" ||
  fail "$(<"$TEST_TMPDIR/err")"
