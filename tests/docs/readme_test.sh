#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: readme_test CHECK
#
# Tests that README.md is true. CHECK is the name of a function below.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# Prints the C program of that number.
program() {
  awk -v number="$1" '/^```c$/ { code = ++found == number; next }
    /^```$/ { code = 0 } code' "$readme"
}

# Prints the commands after that program.
commands() {
  awk -v number="$1" '/^```c$/ { code = 1; ++found }
    /^```$/ { code = 0; next } code || found != number { next }
    /^    / { print substr($0, 5); inside = 1; next } inside { exit }' "$readme"
}

# The programs do what README says, built and run by its commands exactly as it
# has them. There are two differences: tools/package only installs files that
# are built already, and gcc must print no warning.
programs() {
  local readme="$PWD/README.md" source="$PWD"
  export HOME="$TEST_TMPDIR/home"
  mkdir -p "$HOME" "$TEST_TMPDIR/checkout/tools"
  cd "$TEST_TMPDIR/checkout"
  cat >tools/package <<END
#!/bin/sh
cd '$source' && exec tools/bazel/install.sh . "\$2"
END
  chmod +x tools/package
  gcc() {
    command gcc -Wall -Wextra -Wpedantic -Wconversion -Werror "$@"
  }
  export -f gcc
  program 1 >fit.c
  program 2 >resume.c
  { commands 1; commands 2; } >commands
  grep -q '^tools/package ' commands || fail "README.md installs nothing"
  timeout 50 bash -euo pipefail commands >printed || fail "exit code $?"
  {
    echo "rank 0 of 1: y = 2.00 x + 1.00"
    echo "[0] rank 0 of 2: y = 2.00 x + 1.00"
    echo "[1] rank 1 of 2: y = 2.00 x + 1.00"
    sed -nE 's,^shardctl run .* -- \./resume +# ,[0] ,p' commands
  } >expected
  [[ "$(wc -l <expected)" == 5 ]] || fail "README.md does not resume twice"
  diff <(sort printed) <(sort expected) || fail "not what README.md says"
  # The installed program looks for the library nowhere else.
  diff <(readelf -d "$HOME/shard/bin/shardctl" |
    sed -nE 's/.*\((RPATH|RUNPATH)\).*\[(.*)\]/\1 \2/p') \
    <(echo 'RUNPATH $ORIGIN/../lib') ||
    fail "shardctl (<) has another search path than ../lib (>)"
}

# README's table has exactly the library's optimizers.
optimizers() {
  export LD_LIBRARY_PATH="$PWD/api${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  diff <(grep -E '^\| optimizers ' README.md | cut -d'|' -f3 |
    grep -oE '`[^`]+`' | tr -d '`' | sort) \
    <(tests/docs/known_optimizers | sort) ||
    fail "README.md (<) and the library (>) have different optimizers"
}

"$1"
