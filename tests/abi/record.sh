#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: bazel run //tests/abi:record
#
# Writes the records of the ABI anew, into the source tree. Look at the
# difference before you commit it: until 1.0 an incompatible one is allowed, but
# it must be meant, and raises the number in the SONAME once there are users.

set -euo pipefail
source tests/abi/abi.sh
out="${BUILD_WORKSPACE_DIRECTORY:?run me by bazel run}/tests/abi"

make_symbols >"$out/symbols.txt"
make_layout >"$out/layout.txt"
make_abi >"$out/libshard.abi"
echo "wrote $out/{symbols.txt,layout.txt,libshard.abi}"
