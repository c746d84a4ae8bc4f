// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tests/kernels/cpu/targets.h"

namespace shard {
namespace {

using Words = std::array<uint32_t, 4>;

std::vector<uint16_t> Bits(const RandomStream& stream, uint32_t tensor) {
  std::vector<uint16_t> bits(kRandomBlock);
  RandomBits(stream, tensor, bits.data());
  return bits;
}

// The four words of counter c of a block, put together again by the mapping in
// random.h.
Words WordsOf(const std::vector<uint16_t>& bits, size_t c) {
  Words words;
  for (size_t w = 0; w < 4; ++w) {
    const size_t low = 128 * (w / 2) + 4 * c + 2 * (w % 2);
    words[w] = bits[low] | static_cast<uint32_t>(bits[low + 1]) << 16;
  }
  return words;
}

class RandomTest : public TargetsTest {};

// The known answers of Random123 1.14 for philox4x32 with 7 rounds
// (tests/kat_vectors): counter, key, result.
TEST_P(RandomTest, KnownAnswers) {
  EXPECT_EQ(WordsOf(Bits({0, 0, 0, 0}, 0), 0),
            (Words{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  // All ones: the last counter of the last block of pair 15.
  constexpr uint32_t kOnes = 0xffffffff;
  const RandomStream ones = {std::numeric_limits<uint64_t>::max(), kOnes, kOnes,
                             std::numeric_limits<int64_t>::max() - 255};
  EXPECT_EQ(WordsOf(Bits(ones, 29), 31),
            (Words{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}));
  // The digits of pi: counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822
  // 299f31d0. The upper four bits of the second word are the pair's.
  constexpr uint64_t kCounter = 0x5a308d3'243f6a88;
  const RandomStream pi = {0x299f31d0'a4093822, 0x03707344, 0x13198a2e,
                           static_cast<int64_t>(kCounter / 32 * 256)};
  EXPECT_EQ(WordsOf(Bits(pi, 15), kCounter % 32),
            (Words{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}));
}

TEST_P(RandomTest, IsUniform) {
  constexpr int kBlocks = 4000;
  double sum = 0;
  double squares = 0;
  for (int b = 0; b < kBlocks; ++b) {
    for (const uint16_t bits : Bits({7, 1, 2, b * kRandomBlock}, 1)) {
      const double x = (bits + 0.5) / 65536;
      sum += x;
      squares += x * x;
    }
  }
  // Four standard deviations of the mean are 0.0012.
  const double count = kBlocks * static_cast<double>(kRandomBlock);
  EXPECT_NEAR(sum / count, 0.5, 0.0012);
  EXPECT_NEAR(squares / count, 1.0 / 3, 0.0012);
}

// Every part of the key matters, also in its upper bits.
TEST_P(RandomTest, DependsOnEachPartOfTheKey) {
  const auto bits = Bits({1, 2, 3, 0}, 0);
  EXPECT_EQ(Bits({1, 2, 3, 0}, 0), bits);
  EXPECT_NE(Bits({2, 2, 3, 0}, 0), bits);
  EXPECT_NE(Bits({1 + (uint64_t{1} << 32), 2, 3, 0}, 0), bits);
  EXPECT_NE(Bits({1, 3, 3, 0}, 0), bits);
  EXPECT_NE(Bits({1, 2, 4, 0}, 0), bits);
  EXPECT_NE(Bits({1, 2, 3, 256}, 0), bits);
  EXPECT_NE(Bits({1, 2, 3, int64_t{256} << 32}, 0), bits);
  for (uint32_t tensor = 1; tensor <= 3; ++tensor) {
    EXPECT_NE(Bits({1, 2, 3, 0}, tensor), bits) << tensor;
  }
  EXPECT_NE(Bits({1, 2, 3, 0}, 3), Bits({1, 2, 3, 0}, 1));
}

TEST_P(RandomTest, TheSecondOfAPairHasTheOtherByteFirst) {
  const auto first = Bits({1, 2, 3, 512}, TensorOfState(0));
  const auto second = Bits({1, 2, 3, 512}, TensorOfState(1));
  for (size_t e = 0; e < first.size(); ++e) {
    EXPECT_EQ(second[e], (first[e] & 0xFF) << 8 | first[e] >> 8) << e;
  }
}

// Two numbers in [0, 1) that no rounding may tell from independent ones: each
// pair of fractions has the probability of a product that both are larger.
void ExpectIndependent(const std::vector<std::pair<uint16_t, uint16_t>>& pairs,
                       const char* what) {
  const auto count = static_cast<double>(pairs.size());
  for (const double f : {1.0 / 16, 0.3, 0.5, 0.9}) {
    for (const double g : {1.0 / 16, 0.3, 0.5, 0.9}) {
      const auto both =
          std::count_if(pairs.begin(), pairs.end(), [f, g](const auto& pair) {
            return pair.first < 65536 * f && pair.second < 65536 * g;
          });
      // Five standard deviations, and what two bytes say of each other.
      const double p = f * g;
      EXPECT_NEAR(static_cast<double>(both) / count, p,
                  5 * std::sqrt(p * (1 - p) / count) + 0x1p-10)
          << what << ", " << f << ", " << g;
    }
  }
}

TEST_P(RandomTest, NeighboursAreIndependent) {
  constexpr int64_t kBlocks = 400;
  std::vector<std::pair<uint16_t, uint16_t>> elements, far, blocks, steps,
      params, states;
  for (int64_t b = 0; b < kBlocks; ++b) {
    const auto bits = Bits({7, 1, 2, b * kRandomBlock}, TensorOfState(0));
    const auto block =
        Bits({7, 1, 2, (b + 1) * kRandomBlock}, TensorOfState(0));
    const auto step = Bits({7, 2, 2, b * kRandomBlock}, TensorOfState(0));
    const auto param = Bits({7, 1, 3, b * kRandomBlock}, TensorOfState(0));
    const auto state = Bits({7, 1, 2, b * kRandomBlock}, TensorOfState(1));
    for (size_t e = 0; e < bits.size(); ++e) {
      if (e % 2 == 0) elements.emplace_back(bits[e], bits[e + 1]);
      if (e < 128) far.emplace_back(bits[e], bits[e + 128]);
      blocks.emplace_back(bits[e], block[e]);
      steps.emplace_back(bits[e], step[e]);
      params.emplace_back(bits[e], param[e]);
      states.emplace_back(bits[e], state[e]);
    }
  }
  ExpectIndependent(elements, "elements");
  ExpectIndependent(far, "words");
  ExpectIndependent(blocks, "blocks");
  ExpectIndependent(steps, "steps");
  ExpectIndependent(params, "parameters");
  ExpectIndependent(states, "states");
}

SHARD_ON_ALL_TARGETS(RandomTest);

TEST(RandomTargetsTest, SameOnAll) {
  ExpectSameOnAllTargets([] { return Bits({123, 4, 5, 256 * 77}, 2); });
}

}  // namespace
}  // namespace shard
