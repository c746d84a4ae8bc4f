// SPDX-License-Identifier: Apache-2.0
//
// Compares the fake's declarations of NCCL with the library's, and with nccl.h
// and nccl_device.h, where there are these.

#include "tests/fake_nccl/abi.h"

#include <gtest/gtest.h>

#include "core/collectives/nccl/nccl_api.h"
#include "tests/core/base/called_alike.h"

namespace shard::testing::fake_nccl {
namespace {

struct Functions {
#define SHARD_POINTER(symbol, parameters) Result(*symbol) parameters;
#define SHARD_LATER_POINTER(symbol, since, parameters) \
  SHARD_POINTER(symbol, parameters)
  SHARD_FAKE_NCCL(SHARD_POINTER)
  SHARD_FAKE_NCCL_LATER(SHARD_LATER_POINTER)
  SHARD_FAKE_NCCL_DEVICE(SHARD_LATER_POINTER)
#undef SHARD_LATER_POINTER
#undef SHARD_POINTER
};

// The library calls the fake in the way in which it calls NCCL.
#define SHARD_CHECK(name, symbol, parameters)                    \
  static_assert(CalledAlike<decltype(nccl::NcclApi::name),       \
                            decltype(Functions::symbol)>::value, \
                #symbol);
SHARD_NCCL(SHARD_CHECK)
SHARD_NCCL_REGISTRATION(SHARD_CHECK)
SHARD_NCCL_WINDOWS(SHARD_CHECK)
SHARD_NCCL_PEERS(SHARD_CHECK)
#undef SHARD_CHECK

TEST(AbiTest, HasTheValuesOfTheLibrary) {
  EXPECT_EQ(kWinCollSymmetric, nccl::kNcclSymmetric);
}

}  // namespace
}  // namespace shard::testing::fake_nccl

#if defined(SHARD_HAS_CUDA_H) && __has_include(<nccl.h>)

#include <nccl.h>

// The versions that have SHARD_FAKE_NCCL_DEVICE.
#if NCCL_VERSION_CODE >= 22902 && __has_include(<nccl_device/core.h>)
#include <nccl_device.h>
#define SHARD_HAS_NCCL_DEVICE_H
#endif

#include <cstddef>

namespace shard::testing::fake_nccl {
namespace {

#define SHARD_CHECK(symbol, parameters)                                     \
  static_assert(                                                            \
      CalledAlike<decltype(Functions::symbol), decltype(&::symbol)>::value, \
      #symbol);
SHARD_FAKE_NCCL(SHARD_CHECK)
#undef SHARD_CHECK
#define SHARD_CHECK_LATER(symbol, since, parameters)                        \
  static_assert(                                                            \
      NCCL_VERSION_CODE < since || CalledAlike<decltype(Functions::symbol), \
                                               decltype(&::symbol)>::value, \
      #symbol);
#if NCCL_VERSION_CODE >= 22800
SHARD_FAKE_NCCL_LATER(SHARD_CHECK_LATER)
#endif
#ifdef SHARD_HAS_NCCL_DEVICE_H
SHARD_FAKE_NCCL_DEVICE(SHARD_CHECK_LATER)
#endif
#undef SHARD_CHECK_LATER

TEST(AbiTest, HasTheValuesOfTheHeader) {
  const auto is = [](auto ours, auto header) {
    EXPECT_EQ(static_cast<long long>(ours), static_cast<long long>(header));
  };
  is(Result::kSuccess, ncclSuccess);
  is(Result::kUnhandledCudaError, ncclUnhandledCudaError);
  is(Result::kSystemError, ncclSystemError);
  is(Result::kInternalError, ncclInternalError);
  is(Result::kInvalidArgument, ncclInvalidArgument);
  is(Result::kInvalidUsage, ncclInvalidUsage);
  is(Result::kRemoteError, ncclRemoteError);
  is(Result::kInProgress, ncclInProgress);
  is(RedOp::kSum, ncclSum);
  is(RedOp::kProd, ncclProd);
  is(RedOp::kMax, ncclMax);
  is(RedOp::kMin, ncclMin);
  is(RedOp::kAvg, ncclAvg);
  is(DataType::kInt8, ncclInt8);
  is(DataType::kUint8, ncclUint8);
  is(DataType::kInt32, ncclInt32);
  is(DataType::kUint32, ncclUint32);
  is(DataType::kInt64, ncclInt64);
  is(DataType::kUint64, ncclUint64);
  is(DataType::kFloat16, ncclFloat16);
  is(DataType::kFloat32, ncclFloat32);
  is(DataType::kFloat64, ncclFloat64);
  is(DataType::kBfloat16, ncclBfloat16);
  is(sizeof(UniqueId), sizeof(ncclUniqueId));
  is(kUndefined, NCCL_CONFIG_UNDEF_INT);
  is(kNoColor, NCCL_SPLIT_NOCOLOR);
#if NCCL_VERSION_CODE >= 22800
  is(DataType::kFloat8e4m3, ncclFloat8e4m3);
  is(DataType::kFloat8e5m2, ncclFloat8e5m2);
  is(kNumTypes, ncclNumTypes);
  is(kWindowAlignment, NCCL_WIN_REQUIRED_ALIGNMENT);
  is(kShrinkAbort, NCCL_SHRINK_ABORT);
  is(kWinCollSymmetric, NCCL_WIN_COLL_SYMMETRIC);
#endif
}

TEST(AbiTest, AConfigurationIsThatOfTheHeader) {
  ncclConfig_t header = NCCL_CONFIG_INITIALIZER;
  const Config ours;
  EXPECT_EQ(ours.magic, header.magic);
  EXPECT_EQ(offsetof(Config, magic), offsetof(ncclConfig_t, magic));
  EXPECT_EQ(offsetof(Config, version), offsetof(ncclConfig_t, version));
  EXPECT_EQ(offsetof(Config, blocking), offsetof(ncclConfig_t, blocking));
  EXPECT_EQ(offsetof(Config, net_name), offsetof(ncclConfig_t, netName));
  EXPECT_EQ(offsetof(Config, split_share), offsetof(ncclConfig_t, splitShare));
#if NCCL_VERSION_CODE >= 22800
  EXPECT_EQ(offsetof(Config, comm_name), offsetof(ncclConfig_t, commName));
  EXPECT_EQ(offsetof(Config, nvlink_centric_sched),
            offsetof(ncclConfig_t, nvlinkCentricSched));
  EXPECT_LE(sizeof(Config), sizeof(ncclConfig_t));
#endif
}

}  // namespace
}  // namespace shard::testing::fake_nccl

#else

TEST(AbiTest, HasNoHeaderToCompare) { GTEST_SKIP() << "there is no nccl.h"; }

#endif
