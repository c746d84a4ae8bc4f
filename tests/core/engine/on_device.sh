#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs a test program with its engines on another device (see create_engine.h):
# on_device.sh DEVICE PROGRAM [ARG...]
#
# Tests are left out by what left_out in other_devices.bzl has put into the
# environment: lines of SHARD_TEST_LEFT_OUT, "PATTERN: REASON", which are printed
# first, and those that under_sanitizer.sh leaves out.
device="$1"
SHARD_TEST_DEVICE="$device"
export SHARD_TEST_DEVICE
shift
if [ "$SHARD_TEST_DEVICE" = fake_cuda ] || [ "$SHARD_TEST_DEVICE" = offloaded ]; then
  # Where dlopen finds libcuda.so.1. The program fails if the fake has seen work
  # without an order.
  LD_LIBRARY_PATH="$PWD/tests/fake_cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  SHARD_FAKE_CUDA_STRICT=1
  export LD_LIBRARY_PATH SHARD_FAKE_CUDA_STRICT
fi
# Those of the tests that run on it, where it is not for all.
only='*'
if [ "$SHARD_TEST_DEVICE" = namespaces ]; then
  # Hosts that have networks of their own. The tests run on several helpers of one
  # network, too: here, in the short form, some of each program.
  SHARD_TEST_DEVICE=tcp
  export SHARD_TEST_HOSTS=namespaces
  case "$1" in
    */training_tests) only='HostsTest.*' ;;
    *)
      [ -n "${SHARD_TEST_LONG-}" ] ||
        only='ClipGradNormTest.*:*/StagesTest.*/apart_stage?:*/SummonTest.*/apart_stage3:*/MissingGradsTest.*/apart_stage1:*WorldSizesTest.*'
      ;;
  esac
fi
if [ "$SHARD_TEST_DEVICE" = fake_nccl_ring ]; then
  # Sums have the order of a ring, so plans that are deterministic must not use
  # NCCL's.
  only='*StagesTest.*'
  SHARD_TEST_DEVICE=fake_nccl
elif [ "$SHARD_TEST_DEVICE" = tcp_chain ]; then
  # Hosts pass sums from one to the next, though so few send less otherwise: what
  # sums gradients of several ranks.
  only='*InvarianceTest.*:*StagesTest.*apart_*:*MissingGradsTest.*/apart_*'
  SHARD_TEST_DEVICE=tcp
  export SHARD_TEST_SUMS=chain
elif [ "$SHARD_TEST_DEVICE" = fake_nccl ]; then
  # Sums of NCCL have the bits that the tests expect of sums in the order of ranks;
  # nccl_sums_test is about another order.
  export SHARD_FAKE_NCCL_RANK_ORDER=1
fi
if [ "$SHARD_TEST_DEVICE" = fake_nccl ]; then
  LD_LIBRARY_PATH="$PWD/tests/fake_nccl:$PWD/tests/fake_cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  # So it does if the fake of NCCL has seen a call that NCCL forbids, or something
  # is left at its end.
  SHARD_FAKE_CUDA_STRICT=1
  SHARD_FAKE_NCCL_STRICT=1
  SHARD_FAKE_CUDA_DEVICES=64
  # Two calls at once on a communicator are seen where calls take their time.
  [ -z "${SHARD_TEST_LONG-}" ] || export SHARD_FAKE_NCCL_CALL_DELAY=50
  export LD_LIBRARY_PATH SHARD_FAKE_CUDA_STRICT SHARD_FAKE_CUDA_DEVICES \
    SHARD_FAKE_NCCL_STRICT
fi
program="$1"
shift
# Adds the tests of lines "PATTERN: REASON" to those that are left out.
left_out=
leave_out() {
  while IFS= read -r line; do
    [ -n "$line" ] || continue
    echo "left out on $device: $line"
    left_out="$left_out:${line%%: *}"
  done <<END
$1
END
}
leave_out "${SHARD_TEST_LEFT_OUT-}"
[ -n "${SHARD_TEST_LONG-}" ] || leave_out "${SHARD_TEST_ONLY_LONG-}"
# The test filter of Bazel, which --gtest_filter would override, comes before the
# tests that are left out.
if [ -n "$left_out" ] || [ "$only" != '*' ]; then
  left_out="${left_out#:}${GTEST_FILTER:+:${GTEST_FILTER#-}}"
  set -- "--gtest_filter=${TESTBRIDGE_TEST_ONLY:-$only}-$left_out" "$@"
fi
exec "$program" "$@"
