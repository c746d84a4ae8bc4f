#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests a program with libraries that say they are of other versions.

set -euo pipefail

if [[ "$(uname -m)" != x86_64 ]]; then
  echo "skipped: the recorder of tests/sdk/uses is for x86-64"
  exit 0
fi

export SHARD_USES_LIBRARY="$PWD/api/libshard.so.0"
export LD_LIBRARY_PATH="$PWD/tests/sdk/uses"

# prints PATTERN [VARIABLE=VALUE...]: expects lines of this pattern, and no
# others, from the program.
prints() {
  local pattern="$1" printed
  shift
  printed="$(env "$@" tests/sdk/cpp/open_model)"
  if [[ "$(grep -cE "$pattern" <<<"$printed")" != 2 ]]; then
    echo "FAILED: $*: not '$pattern' but: $printed" >&2
    exit 1
  fi
}

prints '^made$' SHARD_USES_VERSION=0.99.1
prints '^FAILED_PRECONDITION: .* version 0\.0\.7 .* headers of version 0\.' \
  SHARD_USES_VERSION=0.0.7
prints '^FAILED_PRECONDITION: .* ABI 3, .* with ABI 0; ' \
  SHARD_USES_ABI_VERSION=3
