#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: readme_test CHECK
#
# README.md says what is so. CHECK is the name of a function below.

set -euo pipefail

export LD_LIBRARY_PATH="$PWD/api${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# The C program compiles as C11 without a warning, and does what it says on one
# rank and on two.
example() {
  local source="$TEST_TMPDIR/fit.c" program="$TEST_TMPDIR/fit"
  awk '/^```c$/ { code = 1; next } /^```$/ { code = 0 } code' README.md \
    >"$source"
  gcc -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Werror -I api/include \
    "$source" api/libshard.so.0 -o "$program" || fail "it does not compile"
  diff <("$program") <(echo "rank 0 of 1: y = 2.00 x + 1.00") ||
    fail "one rank"
  diff <(sdk/cli/shardctl run -n 2 --timeout 40 -- "$program" | sort) - <<END ||
[0] rank 0 of 2: y = 2.00 x + 1.00
[1] rank 1 of 2: y = 2.00 x + 1.00
END
    fail "two ranks"
}

# The table has the library's optimizers, all of them and no others.
optimizers() {
  diff <(grep -E '^\| optimizers ' README.md | cut -d'|' -f3 |
    grep -oE '`[^`]+`' | tr -d '`' | sort) \
    <(tests/docs/known_optimizers | sort) ||
    fail "README.md (<) and the library (>) have different optimizers"
}

"$1"
