#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs "$@" without address space randomization where that is allowed, and with
# it elsewhere: a container may forbid the change.
if setarch --addr-no-randomize true 2>/dev/null; then
  exec setarch --addr-no-randomize "$@"
fi
exec "$@"
