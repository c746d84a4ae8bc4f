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

# Compiles the C program of that number as C11 without a warning.
compile() {
  awk -v number="$1" '/^```c$/ { code = ++found == number; next }
    /^```$/ { code = 0 } code' README.md >"$2.c"
  gcc -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Werror -I api/include \
    "$2.c" api/libshard.so.0 -o "$2" || fail "it does not compile"
}

# The first program does what it says on one rank and on two.
example() {
  local program="$TEST_TMPDIR/fit"
  compile 1 "$program"
  diff <("$program") <(echo "rank 0 of 1: y = 2.00 x + 1.00") ||
    fail "one rank"
  diff <(sdk/cli/shardctl run -n 2 --timeout 40 -- "$program" | sort) - <<END ||
[0] rank 0 of 2: y = 2.00 x + 1.00
[1] rank 1 of 2: y = 2.00 x + 1.00
END
    fail "two ranks"
}

# The second one goes on with what another number of ranks saved, and prints
# what the comments behind its commands say.
checkpoints() {
  local program="$TEST_TMPDIR/resume" shardctl="$PWD/sdk/cli/shardctl"
  local readme="$PWD/README.md"
  compile 2 "$program"
  cd "$TEST_TMPDIR"
  for ranks in 2 3; do
    diff <("$shardctl" run -n "$ranks" --timeout 40 -- ./resume) \
      <(sed -nE "s,^ +shardctl run -n $ranks -- ./resume +# ,[0] ,p" \
        "$readme") || fail "$ranks ranks"
  done
}

# The table has the library's optimizers, all of them and no others.
optimizers() {
  diff <(grep -E '^\| optimizers ' README.md | cut -d'|' -f3 |
    grep -oE '`[^`]+`' | tr -d '`' | sort) \
    <(tests/docs/known_optimizers | sort) ||
    fail "README.md (<) and the library (>) have different optimizers"
}

"$1"
