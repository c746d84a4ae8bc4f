#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests that docs/shardctl.md has every command, and in each section exactly the
# options of that command, that the help of each command has an example, and
# that `plan` prints the table that the document shows.

set -euo pipefail

document=docs/shardctl.md

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# Takes the lines of a list between its title and an empty line.
commands="$(sdk/cli/shardctl --help |
  awk '/^Subcommands:/ { list = 1; next } list && NF == 0 { exit }
       list && /^  [a-z]/ { print $1 }' | sort)"
[[ "$(wc -l <<<"$commands")" -ge 10 ]] || fail "few commands: $commands"
diff <(echo "$commands") <(sed -nE 's/^## ([a-z]+)$/\1/p' "$document" | sort) ||
  fail "shardctl (<) and $document (>) have different commands"
diff <(echo "$commands") \
  <(sed -nE 's/^\| \[`([a-z]+)`\]\(#([a-z]+)\).*/\1/p' "$document" | sort) ||
  fail "shardctl (<) and the table of $document (>) have different commands"

# Options of all commands are described once, at the top.
common="$(sed '/^## /,$d' "$document")"
for command in $commands; do
  help="$(sdk/cli/shardctl "$command" --help)"
  grep -qE "^(Example: |  )shardctl $command " <<<"$help" ||
    fail "shardctl $command --help has no example"
  section="$(awk -v begin="## $command" '$0 == begin { on = 1; next }
    on && /^## / { exit } on' "$document")"
  has="$(sed -nE 's/^  (-[a-z],)?(--[a-z0-9-]+).*/\2/p' <<<"$help" |
    grep -vx -e --help)"
  for option in $has; do
    grep -qE -- "$option([^a-z-]|\$)" <<<"$section$common" || {
      # Options that the conversions share are described with the first one.
      [[ "$command" =~ ^(merge|import)$ ]] &&
        grep -qE -- "$option([^a-z-]|\$)" \
          <<<"$(awk '/^## reshard$/ { on = 1; next } on && /^## / { exit } on' \
            "$document")"
    } || fail "$document does not have $option of $command"
  done
  for option in $(grep -oE -- '`--[a-z0-9-]+' <<<"$section" | tr -d '`' |
    sort -u); do
    grep -qx -e "$option" -e --help <<<"$has"$'\n--help' ||
      fail "$document has $option, which $command has not"
  done
done

# The first block of the section is a command, the next one its output.
awk '$0 == "```json" { code = 1; next } /^```$/ { exit } code' "$document" \
  >"$TEST_TMPDIR/gpt2.json"
awk '/^## plan$/ { on = 1; next } /^[A-Z]/ { if (on) exit }
  on { sub(/^    /, ""); print }' "$document" | sed '/./,$!d' \
  >"$TEST_TMPDIR/example"
PATH="$PWD/sdk/cli:$PATH"
cd "$TEST_TMPDIR"
bash -euo pipefail <(head -n 1 example) >printed
diff <(tail -n +3 example | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}') printed ||
  fail "$document (<) shows another table than shardctl plan prints (>)"
