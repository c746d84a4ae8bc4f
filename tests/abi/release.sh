#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: bazel run //tests/abi:release
#
# Puts the ABI on record as that of a release, in tests/abi/released/VERSION of
# the source tree, once for each version. released_test then allows additions
# only. docs/abi.md says what the record is for.

set -euo pipefail
source tests/abi/abi.sh

version="$(sed -nE 's/^#define SHARD_VERSION_(MAJOR|MINOR|PATCH) +//p' \
  api/include/shard/base.h | paste -sd.)"
out="${BUILD_WORKSPACE_DIRECTORY:?run me by bazel run}/tests/abi/released/$version"
if [[ -e "$out" ]]; then
  echo "$out is there already, and a release does not change; raise the version" \
    "in api/include/shard/base.h" >&2
  exit 1
fi
make_release "$out"
echo "wrote $out"
