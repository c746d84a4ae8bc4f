#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: tar.sh PREFIX FOLDER
#
# Packs what was installed in PREFIX as FOLDER/libshard-VERSION-linux-MACHINE.tar.gz
# and prints this path. The same files give the same bytes, whoever packs them and
# when: names are sorted, files belong to root, and are as old as SOURCE_DATE_EPOCH
# says (seconds since 1970, default 0).

set -euo pipefail
prefix="$1"
folder="$2"

version="$(sed -n 's/^Version: //p' "$prefix/lib/pkgconfig/shard.pc")"
name="libshard-$version-linux-$(uname -m)"
mkdir -p "$folder"
# The new file takes the name of an old one when it is complete.
tar --create --directory="$prefix" --transform="flags=r;s,^\.,$name," \
  --sort=name --format=ustar --owner=root:0 --group=root:0 \
  --mtime="@${SOURCE_DATE_EPOCH:-0}" --mode='u=rwX,go=rX' . |
  gzip -9n >"$folder/$name.tar.gz.new"
mv -fT "$folder/$name.tar.gz.new" "$folder/$name.tar.gz"
echo "$folder/$name.tar.gz"
