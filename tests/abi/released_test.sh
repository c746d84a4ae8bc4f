#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests that programs which were built against a release run with the library of
# today: for each release on record, and for today's ABI as if it had been
# released. Then breaks that record in every way that is not allowed.

set -euo pipefail
source tests/abi/abi.sh

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# Prints what of a release is not there any more, a line each.
broken() {
  local release="$1" now="$2" code=0
  grep -vxFf "$now/symbols.txt" "$release/symbols.txt" | sed 's/^/symbol /' ||
    true
  # A constant is as it was, a struct is as large or larger, and a field is at its
  # place. A reserved field may be another one now.
  awk -v now="$now/layout.txt" '
    BEGIN {
      while ((getline line < now) > 0) {
        split(line, word)
        value[word[1] " " word[2]] = word[3] " " word[4]
        split(word[2], name, ".")
        if (word[1] == "field") place[name[1] " " word[3] " " word[4]] = 1
      }
    }
    $1 == "constant" || $1 == "field" {
      split($2, name, ".")
      kept = value[$1 " " $2] == $3 " " $4
      if (name[2] == "reserved") kept = (name[1] " " $3 " " $4) in place
    }
    $1 == "struct" || $1 == "init" {
      kept = value[$1 " " $2] + 0 >= $3 + 0
    }
    !kept { print }' "$release/layout.txt"
  tests/abi/without_additions.py "$release/libshard.abi" "$now/libshard.abi" \
    "$release/compared.abi" "$now/compared.abi"
  abidiff --no-added-syms "$release/compared.abi" "$now/compared.abi" \
    >"$now/abidiff" || code=$?
  if ((code != 0)); then
    echo "types: abidiff says $code"
    cat "$now/abidiff"
  fi
}

# Builds the host of a release, and lets it train, and load what it saved, with
# the library of today.
run_host() {
  local release="$1" host="$TEST_TMPDIR/$2"
  gcc -std=c11 -O1 -I "$release/include" "$release/host.c" "$PWD/$library" \
    -o "$host" || fail "the host of $2 does not compile"
  [[ "$("$host" "$host.checkpoints")" == *$'\n'"first "* ]] ||
    fail "the host of $2 does not train"
  [[ "$("$host" "$host.checkpoints")" == *$'\n'"loaded "* ]] ||
    fail "the host of $2 does not load"
}

export LD_LIBRARY_PATH="$PWD/api"
now="$TEST_TMPDIR/now"
make_release "$now"
run_host "$now" today
for release in tests/abi/released/*/; do
  [[ -d "$release" ]] || continue
  version="$(basename "$release")"
  cp -rL "$release" "$TEST_TMPDIR/$version"
  what="$(broken "$TEST_TMPDIR/$version" "$now")"
  [[ -z "$what" ]] || fail "programs built with $version may not run: $what"
  run_host "$TEST_TMPDIR/$version" "$version"
done

# ---- The rules themselves ----------------------------------------------------

# change FILE COMMAND: makes a release that differs from today's record by what
# the sed COMMAND does to FILE, and prints what is broken.
change() {
  rm -rf "$TEST_TMPDIR/changed"
  cp -r "$now" "$TEST_TMPDIR/changed"
  sed -i -E "$2" "$TEST_TMPDIR/changed/$1"
  ! cmp -s "$now/$1" "$TEST_TMPDIR/changed/$1" || fail "'$2' changes nothing"
  broken "$TEST_TMPDIR/changed" "$now"
}

allowed() {
  local what
  what="$(change "$@")"
  [[ -z "$what" ]] || fail "an addition is not allowed ($*): $what"
}

refused() {
  [[ -n "$(change "$@")" ]] || fail "a program breaks unnoticed: $*"
}

# A release that had less.
allowed symbols.txt '/^shard_comm_barrier /d'
allowed layout.txt '/^constant SHARD_POISONED/d'
allowed layout.txt '/^field shard_step_options.clip_value/d
  s/^(struct shard_step_options|init SHARD_STEP_OPTIONS_INIT) 64/\1 56/'
allowed layout.txt 's/^(field shard_comm_options).log_level/\1.reserved/'
allowed libshard.abi "s/(name='shard_step_options' size-in-bits=)'512'/\1'448'/
  /layout-offset-in-bits='448'/{N;/clip_value/{N;d}}"
allowed libshard.abi "/elf-symbol name='shard_comm_barrier'/d
  /function-decl name='shard_comm_barrier'/,/function-decl>/d"
allowed libshard.abi "s/name='log_level'/name='reserved'/"

# A release that had more, or something else.
refused symbols.txt '1i shard_aaa SHARD_0 T'
refused layout.txt 's/^(constant SHARD_POISONED) .*/\1 99/'
refused layout.txt 's/^(field shard_step_options.timeout) 32/\1 40/'
refused layout.txt 's/^(field shard_step_options.timeout)/\1s/'
refused layout.txt 's/^(struct shard_step_options) 64/\1 72/'
long="$(sed -nE "s/.*<typedef-decl name='int64_t'.* id='([^']*)'.*/\1/p" \
  "$now/libshard.abi")"
refused libshard.abi "/function-decl name='shard_comm_barrier'/,/function-decl>/s/type-id='[^']*' name='timeout'/type-id='$long' name='timeout'/"
refused libshard.abi "/class-decl name='shard_step_report'/,/class-decl>/s/name='grad_norm' type-id='[^']*'/name='grad_norm' type-id='$long'/"
