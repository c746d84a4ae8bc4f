// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/partial_sum.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/base/dtype.h"
#include "kernels/cpu/block_sum.h"
#include "kernels/cpu/convert.h"
#include "tests/kernels/cpu/targets.h"

namespace shard::partial_sum_test {
namespace {

constexpr size_t kCount = 2500;  // Three chunks of a sum.
constexpr size_t kBlocks = 5;

class PartialSumTest : public TargetsTest {};

using Block = std::vector<unsigned char>;

// Returns blocks of several magnitudes, whose sums in another order have other
// bits; some elements are -0 in all of them.
std::vector<Block> MakeBlocks(DType dtype) {
  std::vector<Block> blocks;
  for (size_t b = 0; b < kBlocks; ++b) {
    std::mt19937 random(static_cast<uint32_t>(b));
    std::normal_distribution<float> normal;
    std::vector<float> values(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      const float scale = static_cast<float>(1 << (3 * ((i + b) % 4)));
      values[i] = i % 31 == 0 ? -0.0f : normal(random) * scale;
    }
    blocks.emplace_back(kCount * DTypeSize(dtype));
    Narrow(dtype, values.data(), blocks.back().data(), kCount, nullptr);
  }
  return blocks;
}

// A sum has the same bits wherever it is cut into two parts, and whichever
// blocks are missing.
TEST_P(PartialSumTest, PartsOfASumAreOneSum) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::vector<Block> blocks = MakeBlocks(dtype);
    for (unsigned missing = 0; missing < 1u << kBlocks; ++missing) {
      // Returns those of the blocks [begin, end) that there are.
      const auto present = [&](size_t begin, size_t end) {
        std::vector<const void*> sources;
        for (size_t i = begin; i < end; ++i) {
          if ((missing >> i & 1) == 0) sources.push_back(blocks[i].data());
        }
        return sources;
      };
      const auto all = present(0, kBlocks);
      std::vector<float> expected(kCount);
      SumSources(all.data(), all.size(), all.size() < kBlocks, dtype, kCount,
                 expected.data(), DType::kF32, /*add=*/false);
      for (size_t cut = 1; cut < kBlocks && !all.empty(); ++cut) {
        const auto first = present(0, cut);
        std::vector<float> part(kCount, 3);
        if (!first.empty()) {
          ContinueSum(nullptr, first.data(), first.size(), first.size() < cut,
                      dtype, kCount, part.data());
        }
        const auto second = present(cut, kBlocks);
        const bool zeros = first.empty() || second.size() < kBlocks - cut;
        std::vector<float> sum(kCount, 3);
        ContinueSum(first.empty() ? nullptr : part.data(), second.data(),
                    second.size(), zeros, dtype, kCount, sum.data());
        EXPECT_EQ(
            std::memcmp(sum.data(), expected.data(), kCount * sizeof(float)), 0)
            << DTypeName(dtype) << ", missing " << missing << ", cut " << cut;
      }
    }
  }
}

SHARD_ON_ALL_TARGETS(PartialSumTest);

}  // namespace
}  // namespace shard::partial_sum_test
