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

# A name takes the place of another, never its bytes: what runs goes on.
put() {
  local mode="$1" from="$2" to="$3"
  install -D -m "$mode" "$from" "$to.new"
  [[ "$mode" == 644 && "$to" != *.so.* ]] || strip --strip-unneeded "$to.new"
  mv -f "$to.new" "$to"
}

for header in api/include/shard/*.h; do
  put 644 "$header" "$prefix/include/shard/${header##*/}"
done
put 644 "$built/api/libshard.so.0" "$prefix/lib/libshard.so.0"
ln -sf libshard.so.0 "$prefix/lib/libshard.so"
put 755 "$built/sdk/cli/shardctl" "$prefix/bin/shardctl"

version="$(sed -nE 's/^#define SHARD_VERSION_(MAJOR|MINOR|PATCH) +//p' \
  api/include/shard/base.h | paste -sd.)"
mkdir -p "$prefix/lib/pkgconfig"
cat >"$prefix/lib/pkgconfig/shard.pc" <<END
prefix=\${pcfiledir}/../..
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: shard
Description: Sharded data-parallel training (ZeRO) for engines in any language
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lshard
END
