#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: install.sh BUILT PREFIX
#
# Copies the headers of the current folder, and the results of Bazel in the
# folder BUILT, to the places below PREFIX where hosts look for them.
# tools/package --help lists these.

set -euo pipefail
built="$1"
prefix="$2"

# put MODE FROM TO: installs FROM as TO. The new file takes the name of the old
# one and never its bytes, so running programs go on, and a link to a file
# elsewhere is replaced and not followed. A folder of that name is an error, not
# the place to put the file (-T).
put() {
  local mode="$1" from="$2" to="$3"
  install -D -T -m "$mode" "$from" "$to.new"
  case "$from" in
    *.so.* | */shardctl) strip --strip-unneeded "$to.new" ;;
  esac
  take_name "$to"
}

# take_name TO: renames TO.new to TO.
take_name() {
  mv -fT "$1.new" "$1" && return
  rm -f "$1.new"
  exit 1
}

for header in api/include/shard/*.h; do
  put 644 "$header" "$prefix/include/shard/${header##*/}"
done
put 644 "$built/api/libshard.so.0" "$prefix/lib/libshard.so.0"
ln -sfT libshard.so.0 "$prefix/lib/libshard.so.new"
take_name "$prefix/lib/libshard.so"
put 755 "$built/sdk/cli/shardctl" "$prefix/bin/shardctl"

version="$(sed -nE 's/^#define SHARD_VERSION_(MAJOR|MINOR|PATCH) +//p' \
  api/include/shard/base.h | paste -sd.)"
put 644 /dev/stdin "$prefix/lib/pkgconfig/shard.pc" <<END
prefix=\${pcfiledir}/../..
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: shard
Description: Sharded data-parallel training (ZeRO) for engines in any language
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lshard
END
