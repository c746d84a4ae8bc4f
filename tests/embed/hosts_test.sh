#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: hosts_test HOST...
#
# Runs each host on two ranks, and expects that all ranks of all hosts print the
# same: the same error message, the same losses, the same parameters, bit by
# bit. Each host checks for itself that the loss goes down. Then each host loads
# the checkpoint of each, on three ranks, and has the same parameters.

set -euo pipefail

export LD_LIBRARY_PATH="$PWD/api${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
status=0

fail() {
  echo "FAILED: $*" >&2
  status=1
}

# run_ranks HOST RANKS FOLDER EXPECTED: EXPECTED may be empty; sets `output`.
run_ranks() {
  local host="$1" folder="$3" expected="$4" rank
  # Process ids repeat from one sandbox to the next; random digits do not.
  SHARD_RENDEZVOUS="embed-$(od -An -N8 -tx8 /dev/urandom | tr -d ' ')"
  export SHARD_RENDEZVOUS SHARD_WORLD_SIZE="$2"
  local pids=()
  for ((rank = 0; rank < SHARD_WORLD_SIZE; rank++)); do
    SHARD_RANK=$rank timeout 40 "./$host" "$folder" \
      >"$TEST_TMPDIR/$rank.out" &
    pids+=($!)
  done
  for ((rank = 0; rank < SHARD_WORLD_SIZE; rank++)); do
    wait "${pids[$rank]}" || fail "$host rank $rank"
    output="$(<"$TEST_TMPDIR/$rank.out")"
    echo "$(basename "$host") rank $rank: $output"
    if [[ -z "$expected" ]]; then expected="$output"; fi
    [[ "$output" == "$expected" ]] ||
      fail "$host rank $rank: not '$expected', as the first one"
  done
}

folder_of() {
  echo "$TEST_TMPDIR/$(basename "$1")-checkpoints"
}

trained=""
for host in "$@"; do
  run_ranks "$host" 2 "$(folder_of "$host")" "$trained"
  if [[ -z "$trained" ]]; then trained="$output"; fi
done

pattern=$'^INVALID_ARGUMENT: unknown optimizer \'adamx\'; known: [^\n]*\n'
pattern+='first [0-9a-f]{16} last [0-9a-f]{16} params [0-9a-f]{16}$'
[[ "$trained" =~ $pattern ]] || fail "not what a host prints"

# The expected output is the message, and the parameters.
loaded="${trained%%$'\n'*}"$'\n'"loaded params ${trained##* }"
for saver in "$@"; do
  for host in "$@"; do
    run_ranks "$host" 3 "$(folder_of "$saver")" "$loaded"
  done
done
exit "$status"
