#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: fuzz.sh fuzz|replay PROGRAM CORPUS [DICTIONARY]
#
# Fuzzes for ten seconds, or for ten minutes with SHARD_TEST_LONG; or runs the
# corpus once.

set -euo pipefail
mode="$1" program="$2" corpus="$3" dictionary="${4:-}"

if [[ "$mode" == replay ]]; then
  exec "$program" "$corpus"/*
fi

seconds=10
if [[ -n "${SHARD_TEST_LONG:-}" ]]; then seconds=600; fi
found="$TEST_TMPDIR/found"
bad="$TEST_TMPDIR/bad"
mkdir -p "$found" "$bad"
options=(-max_total_time="$seconds" -max_len=65536 -timeout=10
  -rss_limit_mb=2048 -artifact_prefix="$bad/" -print_final_stats=1)
if [[ -n "$dictionary" ]]; then options+=(-dict="$dictionary"); fi

code=0
"$program" "${options[@]}" "$found" "$corpus" || code=$?
for input in "$bad"/*; do
  [[ -f "$input" ]] || continue
  code=1
  echo "fuzz: $(basename "$input"), in base64:"
  base64 -w 76 "$input"
done
exit "$code"
