#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: install.sh BUILT PREFIX
#
# Copies the headers of the current folder, and what Bazel built in the folder
# BUILT, to where hosts look for them below PREFIX. tools/package --help says
# where that is.

set -euo pipefail
built="$1"
prefix="$2"

# put MODE FROM TO: a name takes the place of another, never its bytes, so what
# runs goes on, and a link to a file elsewhere is replaced and not followed. A
# folder of that name is an error, not the place to put it (-T).
put() {
  local mode="$1" from="$2" to="$3"
  install -D -T -m "$mode" "$from" "$to.new"
  case "$from" in
    *.so.* | */shardctl) strip --strip-unneeded "$to.new" ;;
  esac
  take_name "$to"
}

# take_name TO: TO.new becomes TO.
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
