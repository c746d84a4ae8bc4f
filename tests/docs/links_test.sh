#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests that docs/README.md leads to every document, and that links from one
# document to another lead to a file and a heading that are there.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# anchors DOCUMENT: prints the names of its headings in links.
anchors() {
  sed -n 's/^##* //p' "$1" | tr 'A-Z ' 'a-z-' | sed 's/[^a-z0-9_-]//g'
}

for document in CHANGELOG.md CONTRIBUTING.md README.md SECURITY.md docs/*.md; do
  name="${document#docs/}"
  [[ "$document" == docs/README.md ]] ||
    grep -qE "\]\((\.\./)?$name\)" docs/README.md ||
    fail "docs/README.md does not lead to $document"
  for link in $(grep -oE '\]\([^) ]*\.md(#[^) ]*)?\)|\]\(#[^) ]*\)' "$document" |
    sed 's/^](//; s/)$//'); do
    [[ "$link" != */samples/* && "$link" != samples/* ]] || continue
    target="${link%%#*}"
    target="${target:+$(dirname "$document")/$target}"
    target="${target:-$document}"
    [[ -e "$target" ]] || fail "$document links to $link, which is not there"
    [[ "$link" != *'#'* ]] || grep -qx -- "${link#*#}" <(anchors "$target") ||
      fail "$document links to $link, and no heading of $target is called so"
  done
done
