// SPDX-License-Identifier: Apache-2.0
//
// Compares our declarations of NCCL with nccl.h, where there is one.

#include "core/collectives/nccl/nccl_api.h"

#include <gtest/gtest.h>

#include "tests/core/base/called_alike.h"

#if defined(SHARD_HAS_CUDA_H) && __has_include(<nccl.h>)

#include <nccl.h>

// The versions that have SHARD_NCCL_PEERS.
#if NCCL_VERSION_CODE >= 22902 && __has_include(<nccl_device/core.h>)
#include <nccl_device.h>
#define SHARD_HAS_NCCL_DEVICE_H
#endif

#include <cstddef>

namespace shard::nccl {
namespace {

using testing::CalledAlike;

#define SHARD_CHECK(name, symbol, parameters)                           \
  static_assert(                                                        \
      CalledAlike<decltype(NcclApi::name), decltype(&::symbol)>::value, \
      #symbol);
SHARD_NCCL(SHARD_CHECK)
SHARD_NCCL_REGISTRATION(SHARD_CHECK)
#if NCCL_VERSION_CODE >= 22700
SHARD_NCCL_WINDOWS(SHARD_CHECK)
#endif
#ifdef SHARD_HAS_NCCL_DEVICE_H
SHARD_NCCL_PEERS(SHARD_CHECK)
#endif
#undef SHARD_CHECK

TEST(NcclApiTest, HasTheValuesOfTheHeader) {
  const auto is = [](auto ours, auto header) {
    EXPECT_EQ(static_cast<long long>(ours), static_cast<long long>(header));
  };
  is(NcclResult::kSuccess, ncclSuccess);
  is(NcclResult::kUnhandledCudaError, ncclUnhandledCudaError);
  is(NcclResult::kSystemError, ncclSystemError);
  is(NcclResult::kInternalError, ncclInternalError);
  is(NcclResult::kInvalidArgument, ncclInvalidArgument);
  is(NcclResult::kInvalidUsage, ncclInvalidUsage);
  is(NcclResult::kRemoteError, ncclRemoteError);
  is(NcclResult::kInProgress, ncclInProgress);
  is(NcclType::kInt8, ncclInt8);
  is(NcclType::kFloat16, ncclFloat16);
  is(NcclType::kFloat32, ncclFloat32);
  is(NcclType::kBfloat16, ncclBfloat16);
  is(sizeof(NcclId), sizeof(ncclUniqueId));
#if NCCL_VERSION_CODE >= 22700
  is(kNcclSymmetric, NCCL_WIN_COLL_SYMMETRIC);
#endif
}

// The header's has more at its end.
TEST(NcclApiTest, TheConfigIsTheBeginningOfTheHeaders) {
  const ncclConfig_t header = NCCL_CONFIG_INITIALIZER;
  const NcclConfig ours;
  EXPECT_LE(sizeof(NcclConfig), sizeof(ncclConfig_t));
  EXPECT_EQ(ours.magic, header.magic);
  EXPECT_EQ(ours.cga_cluster_size, header.cgaClusterSize);
  EXPECT_EQ(ours.split_share, header.splitShare);
#define SHARD_SAME(ours, theirs) \
  EXPECT_EQ(offsetof(NcclConfig, ours), offsetof(ncclConfig_t, theirs))
  SHARD_SAME(size, size);
  SHARD_SAME(magic, magic);
  SHARD_SAME(version, version);
  SHARD_SAME(blocking, blocking);
  SHARD_SAME(cga_cluster_size, cgaClusterSize);
  SHARD_SAME(min_ctas, minCTAs);
  SHARD_SAME(max_ctas, maxCTAs);
  SHARD_SAME(net_name, netName);
  SHARD_SAME(split_share, splitShare);
#undef SHARD_SAME
}

}  // namespace
}  // namespace shard::nccl

#else

TEST(NcclApiTest, HasTheValuesOfTheHeader) {
  GTEST_SKIP() << "there is no nccl.h";
}

#endif
