#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs a test program with its engines on another device (see create_engine.h):
# on_device.sh DEVICE PROGRAM [ARGUMENTS...]
SHARD_TEST_DEVICE="$1"
export SHARD_TEST_DEVICE
shift
exec "$@"
