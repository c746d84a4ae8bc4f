#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: diff_test DOCUMENT
#
# Tests that the diffs in DOCUMENT are those with which the files of the tree
# came to be: each of them can be taken back.

set -euo pipefail

diffs="$TEST_TMPDIR/diffs"
awk '$0 == "```diff" { code = 1; next } /^```$/ { code = 0 } code' "$1" >"$diffs"
[[ -s "$diffs" ]] || { echo "FAILED: $1 has no diffs" >&2; exit 1; }
# Bazel gives the test links, which are no files to git.
cp -RL kernels tests "$TEST_TMPDIR"
cd "$TEST_TMPDIR"
git apply --reverse --check "$diffs" || {
  echo "FAILED: $1 shows other files than there are" >&2
  exit 1
}
