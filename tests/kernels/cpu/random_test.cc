// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/kernels/cpu/targets.h"

namespace shard {
namespace {

using Words = std::array<uint32_t, 4>;

std::vector<uint32_t> Bits(const RandomStream& stream, uint32_t tensor) {
  std::vector<uint32_t> bits(kRandomBlock);
  RandomBits(stream, tensor, bits.data());
  return bits;
}

// The four words of counter c of a block, put together again by the mapping in
// random.h.
Words WordsOf(const std::vector<uint32_t>& bits, size_t c) {
  Words words;
  for (size_t w = 0; w < 4; ++w) {
    const size_t low = 128 * (w / 2) + 2 * c + w % 2;
    words[w] = bits[low] | bits[low + 64] << 16;
  }
  return words;
}

class RandomTest : public TargetsTest {};

// The known answers of Random123 1.14 for philox4x32 with 10 rounds
// (tests/kat_vectors): counter, key, result.
TEST_P(RandomTest, KnownAnswers) {
  EXPECT_EQ(WordsOf(Bits({0, 0, 0, 0}, 0), 0),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  // All ones: the last counter of the last block of tensor 15.
  constexpr uint32_t kOnes = 0xffffffff;
  const RandomStream ones = {std::numeric_limits<uint64_t>::max(), kOnes, kOnes,
                             std::numeric_limits<int64_t>::max() - 255};
  EXPECT_EQ(WordsOf(Bits(ones, 15), 31),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // The digits of pi: counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822
  // 299f31d0. The upper four bits of the second word are the tensor's.
  constexpr uint64_t kCounter = 0x5a308d3'243f6a88;
  const RandomStream pi = {0x299f31d0'a4093822, 0x03707344, 0x13198a2e,
                           static_cast<int64_t>(kCounter / 32 * 256)};
  EXPECT_EQ(WordsOf(Bits(pi, 8), kCounter % 32),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST_P(RandomTest, IsSixteenBitsAndUniform) {
  constexpr int kBlocks = 4000;
  double sum = 0;
  double squares = 0;
  for (int b = 0; b < kBlocks; ++b) {
    for (const uint32_t bits : Bits({7, 1, 2, b * kRandomBlock}, 1)) {
      ASSERT_LT(bits, 65536u);
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
  EXPECT_NE(Bits({1, 2, 3, 0}, 1), bits);
}

SHARD_ON_ALL_TARGETS(RandomTest);

TEST(RandomTargetsTest, SameOnAll) {
  ExpectSameOnAllTargets([] { return Bits({123, 4, 5, 256 * 77}, 2); });
}

}  // namespace
}  // namespace shard
