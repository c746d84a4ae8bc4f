#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs a test program with its engines on another device (see create_engine.h):
# on_device.sh DEVICE PROGRAM [--gtest_filter=-LEFT_OUT [--only_long=LEFT_OUT]]
#
# The tests of --only_long are left out, too, unless SHARD_TEST_LONG is set, and so
# are those that under_sanitizer.sh leaves out.
SHARD_TEST_DEVICE="$1"
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
        only='ClipGradNormTest.*:*/StagesTest.*/apart_stage?:*/SummonTest.*/apart_stage3:*/MissingGradsTest.*/apart_stage1:CheckpointTest.LoadsEvery*'
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
  export LD_LIBRARY_PATH SHARD_FAKE_CUDA_STRICT SHARD_FAKE_CUDA_DEVICES \
    SHARD_FAKE_NCCL_STRICT
fi
# The test filter of Bazel, which --gtest_filter would override, comes before the
# tests that are left out.
program="$1"
shift
case "${1-}" in
  --gtest_filter=-*)
    left_out="${1#--gtest_filter=}"
    shift
    case "${1-}" in
      --only_long=?*)
        [ -n "${SHARD_TEST_LONG-}" ] || left_out="$left_out:${1#--only_long=}"
        shift
        ;;
      --only_long=) shift ;;
    esac
    left_out="$left_out${GTEST_FILTER:+:${GTEST_FILTER#-}}"
    set -- "--gtest_filter=${TESTBRIDGE_TEST_ONLY:-$only}$left_out" "$@"
    ;;
esac
exec "$program" "$@"
