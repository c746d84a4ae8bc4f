#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
echo "libshard's build has no coverage tools: 'bazel coverage' does not work" >&2
exit 1
