#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests that the predictions of docs/benchmarks.md are made of what the library
# counts: the bytes per element of each form of AdamW, and the launches.

set -euo pipefail

export LD_LIBRARY_PATH="$PWD/api${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
document=docs/benchmarks.md

fail() {
  echo "FAILED: $document: $*" >&2
  exit 1
}

tests/docs/step_bytes >"$TEST_TMPDIR/counted"
diff <(grep -v '^buffers: ' "$TEST_TMPDIR/counted" | sort) \
  <(awk -F' *[|] *' '/^[|] `adamw / && !/10,000/ {
      gsub(/`/, "", $2); print $2 ": " $4 }' "$document" | sort) ||
  fail "the library (<) counts other bytes than the table (>)"
buffers="$(sed -n 's/^buffers: //p' "$TEST_TMPDIR/counted")"
grep -q "and $buffers launches" "$document" ||
  fail "10,000 tensors are $buffers buffers"
