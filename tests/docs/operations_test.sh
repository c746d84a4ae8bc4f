#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests that docs/operations.md says of NCCL's variables what shardctl says, that
# its commands are known, and that the errors that it quotes are in the sources.

set -euo pipefail

document=docs/operations.md

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# Sets all variables of the table, and asks for their effects.
mapfile -t names < <(sed -nE 's/^\| `(NCCL_[A-Z0-9_]+)` \|.*/\1/p' "$document")
[[ "${#names[@]}" -ge 10 ]] || fail "few variables: ${names[*]}"
env "${names[@]/%/=1}" NCCL_CONF_FILE=/dev/null sdk/cli/shardctl doctor --nccl \
  --json >"$TEST_TMPDIR/doctor.json"
python3 - "$document" "$TEST_TMPDIR/doctor.json" <<'END' || fail "variables"
import json, re, sys
text = open(sys.argv[1]).read()
said = {finding["name"]: finding for finding in json.load(open(sys.argv[2]))["findings"]
        if finding["section"] == "nccl"}
for name, effect in re.findall(r"^\| `(NCCL_\w+)` \| (.*) \|$", text, re.M):
    found = said[name]
    # The first words: "refused", "harmless", "slower", "changes speed, and the order of sums".
    for words in ("refused", "harmless", "slower", "changes speed, and the order of sums"):
        assert (words in effect) == (words in found["found"]), (effect, found)
    assert ("unset it" in effect or "refused" in effect) <= (
        found["level"] == "warn"), (effect, found)
END

# The commands: a usage error would be 2.
grep -oE '^    shardctl .*' "$document" | while read -r _ arguments; do
  # shellcheck disable=SC2086
  sdk/cli/shardctl $arguments >"$TEST_TMPDIR/out" 2>&1 || [[ $? == 1 ]] ||
    fail "shardctl $arguments: $(<"$TEST_TMPDIR/out")"
done

# Words of libshard's own messages, which are quoted.
sed -nE '/^## Errors/,/^## After/p' "$document" | grep '^| `' |
  cut -d'|' -f2 | grep -oE '"[^"]+"' | tr -d '"' |
  grep -vE '^(unhandled|remote process)' | while read -r quote; do
  grep -RqF -- "${quote%% ...*}" core/collectives/nccl ||
    fail "no message has '$quote'"
done
