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

#include "kernels/cpu/aes_round.h"
#include "tests/kernels/cpu/targets.h"

namespace shard::random_test {
namespace {

using Words = std::array<uint32_t, 4>;

std::vector<uint16_t> Bits(const RandomStream& stream, uint32_t tensor) {
  std::vector<uint16_t> bits(kRandomBlock);
  RandomBits(stream, tensor, bits.data());
  return bits;
}

// Returns the four words of counter c of a block, put together again by the
// mapping in random.h.
Words WordsOf(const std::vector<uint16_t>& bits, size_t c) {
  Words words;
  for (size_t w = 0; w < 4; ++w) {
    const size_t low = 8 * c + 2 * w;
    words[w] = bits[low] | static_cast<uint32_t>(bits[low + 1]) << 16;
  }
  return words;
}

class RandomTest : public TargetsTest {};

// The expected words are those that Random123 1.14's ars4x32_R(5, counter, key)
// returns.
TEST_P(RandomTest, KnownAnswers) {
  EXPECT_EQ(WordsOf(Bits({0, 0, 0, 0}, 0), 0),
            (Words{0x7ecce06f, 0x7cdc3bca, 0x15513c87, 0x29d24c9b}));
  // The last counter of the last block of pair 15, with a key of ones.
  constexpr uint32_t kOnes = 0xffffffff;
  const RandomStream ones = {std::numeric_limits<uint64_t>::max(), kOnes, kOnes,
                             std::numeric_limits<int64_t>::max() - 255};
  EXPECT_EQ(WordsOf(Bits(ones, 29), 31),
            (Words{0x8f23509f, 0x5778f5fe, 0x4cdcc0ca, 0x77c5980f}));
  // The digits of pi: counter 243f6a88 05a308d3 of pair 8, key a4093822
  // 299f31d0 082efa98 ec4e6c89.
  constexpr uint64_t kCounter = 0x05a308d3'243f6a88;
  const RandomStream pi = {0x299f31d0'a4093822, 0xec4e6c89, 0x082efa98,
                           static_cast<int64_t>(kCounter / 32 * 256)};
  EXPECT_EQ(WordsOf(Bits(pi, 15), kCounter % 32),
            (Words{0xc4c3e3ae, 0x759ef221, 0x69de2e5d, 0xaf08a417}));
}

// Tests the rounds of the target without vectors by the example of FIPS 197,
// appendix B, whose first two rounds have these inputs, keys and results.
TEST(AesRoundTest, IsThatOfFips197) {
  const AesState start = {0x19, 0x3d, 0xe3, 0xbe, 0xa0, 0xf4, 0xe2, 0x2b,
                          0x9a, 0xc6, 0x8d, 0x2a, 0xe9, 0xf8, 0x48, 0x08};
  const AesState key = {0xa0, 0xfa, 0xfe, 0x17, 0x88, 0x54, 0x2c, 0xb1,
                        0x23, 0xa3, 0x39, 0x39, 0x2a, 0x6c, 0x76, 0x05};
  const AesState after = {0xa4, 0x9c, 0x7f, 0xf2, 0x68, 0x9f, 0x35, 0x2b,
                          0x6b, 0x5b, 0xea, 0x43, 0x02, 0x6a, 0x50, 0x49};
  EXPECT_EQ(AesRound(start, key, false), after);
  // The last round.
  const AesState before_last = {0xeb, 0x40, 0xf2, 0x1e, 0x59, 0x2e, 0x38, 0x84,
                                0x8b, 0xa1, 0x13, 0xe7, 0x1b, 0xc3, 0x42, 0xd2};
  const AesState last_key = {0xd0, 0x14, 0xf9, 0xa8, 0xc9, 0xee, 0x25, 0x89,
                             0xe1, 0x3f, 0x0c, 0xc8, 0xb6, 0x63, 0x0c, 0xa6};
  const AesState output = {0x39, 0x25, 0x84, 0x1d, 0x02, 0xdc, 0x09, 0xfb,
                           0xdc, 0x11, 0x85, 0x97, 0x19, 0x6a, 0x0b, 0x32};
  EXPECT_EQ(AesRound(before_last, last_key, true), output);
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

// Every part of the key matters, its upper bits included.
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

// Expects that no rounding can tell pairs of numbers in [0, 1) from independent
// ones: for each pair of fractions, the probability that both numbers are below
// theirs is the product.
void ExpectIndependent(const std::vector<std::pair<uint16_t, uint16_t>>& pairs,
                       const char* what) {
  const auto count = static_cast<double>(pairs.size());
  for (const double f : {1.0 / 16, 0.3, 0.5, 0.9}) {
    for (const double g : {1.0 / 16, 0.3, 0.5, 0.9}) {
      const auto both =
          std::count_if(pairs.begin(), pairs.end(), [f, g](const auto& pair) {
            return pair.first < 65536 * f && pair.second < 65536 * g;
          });
      // The tolerance is five standard deviations, and the dependence of two
      // numbers that share their bytes.
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
// 0 leaves the choice to the library, which for these bits may be a set that
// the other kernels are not compiled for.
INSTANTIATE_TEST_SUITE_P(TheBest, RandomTest, testing::Values(0u));

TEST(RandomTargetsTest, SameOnAll) {
  ExpectSameOnAllTargets([] { return Bits({123, 4, 5, 256 * 77}, 2); });
}

}  // namespace
}  // namespace shard::random_test
