#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests the functions that the programs of tools/ share, in different
# environments.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

checkout="$TEST_SRCDIR/$TEST_WORKSPACE"
here="$TEST_TMPDIR/here"
key=0123456789abcdef
mkdir -p "$here"

# in_tool ENVIRONMENT... -- COMMAND: runs COMMAND in a tool that was started in
# `here`. Prints its output, and writes its errors into the file `err`.
in_tool() {
  local environment=()
  while [[ "$1" != -- ]]; do environment+=("$1"); shift; done
  shift
  (cd "$here" && env -u HOME -u XDG_CACHE_HOME -u SHARD_BUILD_CACHE -u CDPATH \
    "${environment[@]}" bash -euo pipefail \
    -c "source '$checkout/tools/bazel/common.sh'; $1") 2>"$TEST_TMPDIR/err"
}

# expect VALUE ENVIRONMENT... -- COMMAND: expects COMMAND to print VALUE.
expect() {
  local expected="$1" printed
  shift
  printed="$(in_tool "$@")" || fail "'$*': exit code $?"
  [[ "$printed" == "$expected" ]] ||
    fail "'$*' prints '$printed', not '$expected'; $(<"$TEST_TMPDIR/err")"
}

# `cd` with a CDPATH prints the folder that it goes to.
cd "$checkout"
for cdpath in . "$checkout" "$here:."; do
  printed="$(CDPATH="$cdpath" bash -c 'source tools/bazel/common.sh; echo "$root"')"
  [[ "$printed" == "$PWD" ]] || fail "with CDPATH=$cdpath the root is '$printed'"
done
expect "$here" -- 'echo "$caller"'

# Objects are kept in the first of these folders.
objects=libshard/objects/$key
expect "$here/h/.cache/$objects" HOME="$here/h" -- "object_cache $key"
expect "$here/a b/$objects" HOME="$here/h" XDG_CACHE_HOME="$here/a b" -- \
  "object_cache $key"
expect "$here/h/.cache/$objects" HOME="$here/h" XDG_CACHE_HOME=relative -- \
  "object_cache $key"
expect "$here/of mine/$key" HOME="$here/h" SHARD_BUILD_CACHE="of mine" -- \
  "object_cache $key"
for folder in "$here/h/.cache/$objects" "$here/of mine/$key"; do
  [[ -d "$folder/ac" && -d "$folder/cas" ]] || fail "no $folder"
done

# Where there can be no folder, a message says so, and there is no error.
expect "" -- "object_cache $key"
grep -q "neither SHARD_BUILD_CACHE nor HOME" "$TEST_TMPDIR/err" ||
  fail "$(<"$TEST_TMPDIR/err")"
echo >"$here/file"
expect "" HOME="$here/file" -- "object_cache $key"
grep -q "'$here/file/.cache/$objects' cannot be written" "$TEST_TMPDIR/err" ||
  fail "$(<"$TEST_TMPDIR/err")"
expect "" SHARD_BUILD_CACHE=/proc/nowhere -- "object_cache $key"

# Old objects of this layout are deleted, and nothing else is.
kept=("of mine/$key/ac/new" "of mine/other/ac/old" "of mine/old"
  "of mine/$key/old")
gone=("of mine/$key/ac/00/old" "of mine/fedcba9876543210/cas/old")
for file in "${kept[@]}" "${gone[@]}"; do
  mkdir -p "$here/${file%/*}"
  touch -d "$([[ "$file" == *new ]] || echo "20 days ago")" "$here/$file"
done
expect "$here/of mine/$key" SHARD_BUILD_CACHE="of mine" -- "object_cache $key"
for file in "${kept[@]}"; do
  [[ -e "$here/$file" ]] || fail "$file is gone"
done
for file in "${gone[@]}"; do
  [[ ! -e "$here/$file" ]] || fail "$file is there"
done

# So are those that were used least recently, beyond a limit.
objects="$here/of mine/fedcba9876543210/cas"
for age in 1 2 3; do
  head -c 600000 /dev/zero >"$objects/$age"
  touch -d "$age days ago" "$objects/$age"
done
# expect_objects LIMIT AGES: with LIMIT for all objects these are left.
expect_objects() {
  expect "$here/of mine/$key" SHARD_BUILD_CACHE="of mine" \
    SHARD_BUILD_CACHE_GB="$1" -- "object_cache $key"
  [[ "$(cd "$objects" && echo *)" == "$2" ]] ||
    fail "with $1 GB: $(ls "$objects"), not $2"
}
expect_objects many "1 2 3"
grep -q "SHARD_BUILD_CACHE_GB is 'many'" "$TEST_TMPDIR/err" ||
  fail "$(<"$TEST_TMPDIR/err")"
expect_objects 16 "1 2 3"
expect_objects 0.0015 "1 2"
expect_objects 0 "*"
[[ -e "$here/of mine/other/ac/old" ]] || fail "a file of another layout is gone"
