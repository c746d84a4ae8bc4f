#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: hosts_test HOST...
#
# Runs each host on two ranks, and expects that all ranks of all hosts print the
# same: the same error message, the same losses, the same parameters, bit by
# bit. Each host checks itself that the loss goes down.

set -euo pipefail

export LD_LIBRARY_PATH="$PWD/api${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export SHARD_WORLD_SIZE=2
status=0
expected=""

for host in "$@"; do
  # Process ids repeat from one sandbox to the next; this does not.
  SHARD_RENDEZVOUS="embed-$(od -An -N8 -tx8 /dev/urandom | tr -d ' ')"
  export SHARD_RENDEZVOUS
  pids=()
  for rank in 0 1; do
    SHARD_RANK=$rank timeout 40 "./$host" >"$TEST_TMPDIR/$rank.out" &
    pids+=($!)
  done
  for rank in 0 1; do
    if ! wait "${pids[$rank]}"; then
      echo "FAILED: $host rank $rank" >&2
      status=1
    fi
    output="$(<"$TEST_TMPDIR/$rank.out")"
    echo "$(basename "$host") rank $rank: $output"
    if [[ -z "$expected" ]]; then expected="$output"; fi
    if [[ "$output" != "$expected" ]]; then
      echo "FAILED: $host rank $rank differs from the first host" >&2
      status=1
    fi
  done
done

pattern=$'^INVALID_ARGUMENT: unknown optimizer \'adamx\'; known: [^\n]*\n'
pattern+='first [0-9a-f]{16} last [0-9a-f]{16} params [0-9a-f]{16}$'
if [[ ! "$expected" =~ $pattern ]]; then
  echo "FAILED: not what a host prints" >&2
  status=1
fi
exit "$status"
