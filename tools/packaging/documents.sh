#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: documents.sh BUILT PREFIX
#
# Copies what people read to the places below PREFIX where they look for it:
# documents of the current folder, the quickstart, and the man pages and
# completions that Bazel left in the folder BUILT. tools/bazel/install.sh copies
# what programs need.
#
# The quickstart is in share/shard, which images of containers keep; many leave
# share/doc out.

set -euo pipefail
built="$1"
prefix="$2"
folder="$prefix/share/doc/libshard"

# put FROM TO: any user may read the new file. An old one is removed first, and
# a link is not followed.
put() {
  install -D -T -m 644 "$1" "$2"
}

# put_document FROM TO: links lead to what is installed.
put_document() {
  tools/packaging/document.py "$1" | put /dev/stdin "$2"
}

for name in README.md CHANGELOG.md SECURITY.md docs/*.md; do
  put_document "$name" "$folder/$name"
done
for name in docs/*.svg; do
  put "$name" "$folder/$name"
done
put LICENSE "$folder/copyright"
put_document samples/quickstart/README.md \
  "$prefix/share/shard/samples/quickstart/README.md"
for name in samples/quickstart/quickstart.*; do
  put "$name" "$prefix/share/shard/$name"
done

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
tar -xf "$built/sdk/cli/pages/pages.tar" -C "$scratch"
(cd "$scratch" && find . -type f -printf '%P\0') |
  while IFS= read -r -d '' name; do
    put "$scratch/$name" "$prefix/$name"
  done
