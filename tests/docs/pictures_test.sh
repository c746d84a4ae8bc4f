#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests that the pictures in the documents are those that their scripts draw.

set -euo pipefail

for script in docs/draw_*.py; do
  picture="docs/$(basename "$script" .py | sed 's/^draw_//').svg"
  diff "$picture" <(python3 "$script") || {
    echo "FAILED: run python3 $script > $picture" >&2
    exit 1
  }
done
