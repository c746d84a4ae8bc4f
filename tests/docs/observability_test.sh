#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests docs/observability.md: its program compiles and prints what the document
# says, its log is that of the document but for times, and the table of events
# has every event of the library.

set -euo pipefail

export LD_LIBRARY_PATH="$PWD/api${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
document="$PWD/docs/observability.md"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# Prints the first block of a language: c, text or log.
block() {
  awk -v open='```'"$1" '$0 == open { code = 1; next }
       code && /^```$/ { exit } code' "$document"
}

# Replaces times, which differ from run to run.
without_times() {
  sed -E 's/time=[^ ]+/time=T/; s/seconds=[0-9.]+/seconds=S/'
}

block c >"$TEST_TMPDIR/program.c"
gcc -std=c11 -Wall -Wextra -Wpedantic -Werror -I api/include \
  "$TEST_TMPDIR/program.c" api/libshard.so.0 -o "$TEST_TMPDIR/program" ||
  fail "the program does not compile"
cd "$TEST_TMPDIR"
SHARD_LOG=info SHARD_TRACE=trace.json SHARD_METRICS=shard.prom SHARD_DUMP=dump.json \
  ./program >printed 2>log || fail "the program: $(cat printed log)"
diff <(block text) printed || fail "what is printed is not as in the document"
diff <(block log | without_times) <(without_times <log) ||
  fail "the log is not as in the document"

# The metrics have the lines that the document shows, and every event.
grep '^shard_\|^# .* shard_' "$document" | while read -r line; do
  grep -qxF "$line" shard.rank0.prom || fail "the metrics have no '$line'"
done
sed -nE 's/^shard_event_calls_total.*category="(.*)",event="(.*)".*/\2 \1/p' \
  shard.rank0.prom | sort >events
[[ -s events ]] || fail "there are no metrics"
awk -F'|' '/^\| `/ && NF == 5 && $3 !~ /log|trace|metrics|dump|^ *$/ {
             n = split($2, names, ","); gsub(/ /, "", $3)
             for (i = 1; i <= n; ++i) { gsub(/[` ]/, "", names[i])
                                        print names[i], $3 } }' "$document" |
  sort >documented
diff documented events || fail "the table of events (<) is not the library's (>)"
grep -q '"name":"step"' trace.json || fail "the trace has no step"

# The dump has the keys that the document lists.
awk '/^## The dump/ { on = 1 } /^## Events/ { on = 0 } on' "$document" |
  sed -nE 's/^\| (`[a-z_]+`(, `[a-z_]+`)*) \|.*/\1/p' | tr -d '`,' | tr ' ' '\n' |
  while read -r key; do
    case "$key" in
      dtype | recv_dtype | root | ranks | first | stride) ;;  # Of some alone.
      *) grep -q "\"$key\":" dump.rank0.json || fail "the dump has no '$key'" ;;
    esac
  done
