#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the program of docs/go.md on two ranks, and expects that it prints what the
# document says.

set -euo pipefail

export LD_LIBRARY_PATH="$PWD/api${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
example="$PWD/tests/sdk/go/go_example"
document="$PWD/docs/go.md"
# The program makes files.
cd "$TEST_TMPDIR"

SHARD_RENDEZVOUS="go-$(od -An -N8 -tx8 /dev/urandom | tr -d ' ')"
export SHARD_RENDEZVOUS SHARD_WORLD_SIZE=2
SHARD_RANK=1 timeout 40 "$example" >1.out &
SHARD_RANK=0 timeout 40 "$example" >0.out
wait $!
awk '$0 == "```text" { text = 1; next } text && /^```$/ { exit } text' \
  "$document" | diff - 0.out || {
  echo "FAILED: docs/go.md (<) and its program (>) say different things" >&2
  exit 1
}
