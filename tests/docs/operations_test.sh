#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests that docs/operations.md says of NCCL's variables what shardctl says, that
# its commands are known, that the errors that it quotes are in the sources, and
# that it has each option of a URL over hosts.

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
  grep -RqF -- "${quote%% ...*}" core/collectives/nccl core/device/cuda core/engine/step ||
    fail "no message has '$quote'"
done

# Those of several hosts, in whose sources a message may go on in another line.
mapfile -t sources < <(find core/comm -name '*.cc')
perl -0pe 's/"\s*\n\s*"//g' "${sources[@]}" >"$TEST_TMPDIR/messages"
sed -nE '/^### Errors of several hosts/,/^After an error/p' "$document" |
  tr '\n' ' ' | grep -oE '"[^"]+"' | tr -d '"' |
  grep -vE '^Connection refused$' >"$TEST_TMPDIR/quotes"
[[ "$(wc -l <"$TEST_TMPDIR/quotes")" -ge 60 ]] || fail "few quotes"
while read -r quote; do
  grep -qF -- "$quote" "$TEST_TMPDIR/messages" || fail "no message has '$quote'"
done <"$TEST_TMPDIR/quotes"

# The options: those that the sources take, and no others.
taken() {
  sed -nE '/^std::string TakeHelperKeys/,/^}/s/.*\{("[a-z_", ]+)\}.*/\1/p' "$1" |
    grep -oE '[a-z_]+'
  grep -oE 'Take[A-Z][a-z]+\("[a-z_]+"' "$1" | cut -d'"' -f2
  printf '%s\n' rank world_size timeout
}
diff <(taken core/comm/network/open_network.cc | sort) \
  <(sed -nE '/^### The URL/,/^### Under/s/^\| `([a-z_]+)` \|.*/\1/p' "$document" |
    sort) || fail "the sources (<) take other options than the document (>) has"
