// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/block_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/base/dtype.h"
#include "kernels/cpu/convert.h"
#include "tests/kernels/cpu/targets.h"

namespace shard::block_sum_test {
namespace {

constexpr size_t kCount = 2500;  // Three chunks of a sum.

class BlockSumTest : public TargetsTest {};

std::vector<float> Values(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(kCount);
  for (float& value : values) value = normal(random);
  values[7] = -0.0f;
  return values;
}

// Blocks of a dtype, and their values in fp32.
struct Blocks {
  Blocks(DType dtype, size_t num_blocks)
      : stored(num_blocks * kCount * DTypeSize(dtype)),
        values(num_blocks, std::vector<float>(kCount)) {
    for (size_t i = 0; i < num_blocks; ++i) {
      unsigned char* const at = stored.data() + i * kCount * DTypeSize(dtype);
      Narrow(dtype, Values(static_cast<uint32_t>(i)).data(), at, kCount,
             nullptr);
      Widen(dtype, at, values[i].data(), kCount);
    }
  }
  std::vector<unsigned char> stored;
  std::vector<std::vector<float>> values;
};

TEST_P(BlockSumTest, SumsInTheOrderOfRanksAndRoundsOnce) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType recv_dtype : {DType::kF32, DType::kBF16}) {
      for (const bool add : {false, true}) {
        for (int own = 0; own < 3; ++own) {
          const Blocks peers(dtype, 2);
          const Blocks mine(dtype, 1);
          std::vector<const std::vector<float>*> ranks = {&peers.values[0],
                                                          &peers.values[1]};
          ranks.insert(ranks.begin() + own, &mine.values[0]);
          const std::vector<float> given = Values(9);
          std::vector<unsigned char> recv(kCount * DTypeSize(recv_dtype));
          std::vector<float> old(kCount);
          Narrow(recv_dtype, given.data(), recv.data(), kCount, nullptr);
          Widen(recv_dtype, recv.data(), old.data(), kCount);
          SumBlocks({mine.stored.data(), own, peers.stored.data(), 3, dtype,
                     kCount, recv.data(), recv_dtype, add});
          std::vector<float> sums(kCount);
          std::vector<float> expected(kCount);
          std::vector<unsigned char> rounded(recv.size());
          Widen(recv_dtype, recv.data(), sums.data(), kCount);
          for (size_t i = 0; i < kCount; ++i) {
            const float sum = (*ranks[0])[i] + (*ranks[1])[i] + (*ranks[2])[i];
            expected[i] = add ? old[i] + sum : sum;
          }
          Narrow(recv_dtype, expected.data(), rounded.data(), kCount, nullptr);
          EXPECT_TRUE(recv == rounded)
              << DTypeName(dtype) << " to " << DTypeName(recv_dtype) << ", "
              << add << ", own " << own;
        }
      }
    }
  }
}

// A rank that has nothing to add has zeros, and -0 + 0 is 0.
TEST_P(BlockSumTest, AMissingBlockIsZeros) {
  const Blocks peers(DType::kF32, 1);
  std::vector<float> recv(kCount, 5);
  SumBlocks({nullptr, 0, peers.stored.data(), 2, DType::kF32, kCount,
             recv.data(), DType::kF32, false});
  EXPECT_EQ(recv, peers.values[0]);
  EXPECT_TRUE(std::signbit(peers.values[0][7]));
  EXPECT_FALSE(std::signbit(recv[7]));
  SumBlocks({nullptr, 0, nullptr, 1, DType::kF32, kCount, recv.data(),
             DType::kF32, true});
  EXPECT_EQ(recv, peers.values[0]);
  SumBlocks({nullptr, 0, nullptr, 1, DType::kF32, kCount, recv.data(),
             DType::kF32, false});
  EXPECT_EQ(recv, std::vector<float>(kCount));
}

SHARD_ON_ALL_TARGETS(BlockSumTest);

}  // namespace
}  // namespace shard::block_sum_test
