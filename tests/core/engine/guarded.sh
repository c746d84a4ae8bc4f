#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs a test program on the guard device: guarded.sh PROGRAM [ARGUMENTS...]
SHARD_TEST_GUARD=1 exec "$@"
