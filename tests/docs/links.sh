#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: links.sh DOCUMENT...
#
# Fails unless each link of the documents leads to a file, a folder or a heading
# that is there. Links to other hosts are not followed.

set -euo pipefail

# prose DOCUMENT: prints it in one line, without code, in which `](` is no link.
prose() {
  awk '/^```/ { code = !code; next } !code && !/^    /' "$1" | tr '\n' ' ' |
    sed 's/`[^`]*`//g'
}

# anchors DOCUMENT: prints the names of its headings in links.
anchors() {
  sed -n 's/^##* //p' "$1" | tr 'A-Z ' 'a-z-' | sed 's/[^a-z0-9_-]//g'
}

# leads_to DOCUMENT LINK: returns whether there is what the link names.
leads_to() {
  local target="$1"
  [[ "$2" == '#'* ]] || target="$(dirname "$1")/${2%%#*}"
  [[ -e "$target" ]] || return
  [[ "$2" != *'#'* ]] || anchors "$target" | grep -qx -- "${2#*#}"
}

failed=0
for document in "$@"; do
  for link in $(prose "$document" | grep -oE '\]\([^) ]+\)' | sed 's/^](//; s/)$//'); do
    [[ "$link" == *:* ]] || leads_to "$document" "$link" || {
      echo "FAILED: $document links to $link, which is not there" >&2
      failed=1
    }
  done
done
exit "$failed"
