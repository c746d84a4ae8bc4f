#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests that docs/README.md leads to every document, and that all links of the
# documents lead to something.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

documents=(CHANGELOG.md CONTRIBUTING.md README.md SECURITY.md docs/*.md)
tests/docs/links.sh "${documents[@]}" samples/*/README.md
for document in "${documents[@]}"; do
  name="${document#docs/}"
  [[ "$document" == docs/README.md ]] ||
    grep -qE "\]\((\.\./)?$name\)" docs/README.md ||
    fail "docs/README.md does not lead to $document"
done
