#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests install.sh with names that are taken already, and with prefixes of any
# name.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

cd "$TEST_SRCDIR/$TEST_WORKSPACE"
built="$TEST_TMPDIR/built"
mkdir -p "$built/api" "$built/sdk/cli" "$built/sdk/network"
cp /bin/true "$built/api/libshard.so.0"
cp /bin/true "$built/api/libshard_cuda.so"
cp /bin/true "$built/sdk/cli/shardctl"
cp /bin/true "$built/sdk/network/shard-network"

install_to() {
  tools/bazel/install.sh "$built" "$1" 2>"$TEST_TMPDIR/err" ||
    fail "'$1': $(<"$TEST_TMPDIR/err")"
}

expect_error() {
  ! tools/bazel/install.sh "$built" "$1" 2>"$TEST_TMPDIR/err" ||
    fail "'$1' is no error"
  grep -q "$2" "$TEST_TMPDIR/err" || fail "'$1': $(<"$TEST_TMPDIR/err")"
  [[ -z "$(find "$1" -name '*.new')" ]] || fail "drafts stay in '$1'"
}

# install.sh does not judge the contents of a folder by its name.
for name in "plain" "with space" "libshard.so.0.d" "-dash"; do
  prefix="$TEST_TMPDIR/$name"
  install_to "$prefix"
  cmp api/include/shard/shard.h "$prefix/include/shard/shard.h"
  "$prefix/bin/shardctl"
  "$prefix/libexec/libshard/shard-network"
  [[ "$(readlink "$prefix/lib/libshard.so")" == libshard.so.0 ]] ||
    fail "'$name': libshard.so is no link to libshard.so.0"
  [[ -z "$(find "$prefix" -name '*.new')" ]] || fail "drafts stay in '$name'"
done

# Installs once more, over the files that are there. A link is replaced, and the
# file that it leads to stays.
prefix="$TEST_TMPDIR/plain"
echo precious >"$TEST_TMPDIR/precious"
for name in include/shard/base.h lib/pkgconfig/shard.pc lib/libshard.so.0 \
  lib/libshard.so bin/shardctl; do
  ln -sf "$TEST_TMPDIR/precious" "$prefix/$name"
done
install_to "$prefix"
[[ "$(<"$TEST_TMPDIR/precious")" == precious ]] || fail "a link was followed"
for name in include/shard/base.h lib/pkgconfig/shard.pc lib/libshard.so.0; do
  [[ ! -L "$prefix/$name" ]] || fail "$name is a link still"
done

# Any user may read the files, whoever installs them.
prefix="$TEST_TMPDIR/masked"
(umask 077 && install_to "$prefix")
[[ -z "$(find "$prefix" ! -type l ! -perm -a+r)" ]] ||
  fail "not for all: $(find "$prefix" ! -type l ! -perm -a+r)"

# A file cannot take the place of a folder.
for name in include/shard/base.h lib/libshard.so lib/pkgconfig/shard.pc; do
  prefix="$TEST_TMPDIR/folder-${name##*/}"
  mkdir -p "$prefix/$name"
  expect_error "$prefix" "cannot overwrite directory"
done
