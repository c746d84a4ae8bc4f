// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/cpu/halves.h"
#include "tests/kernels/cpu/targets.h"

namespace shard::convert_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<uint16_t> Narrowed(DType dtype, const std::vector<float>& from,
                               const RandomStream* random = nullptr) {
  std::vector<uint16_t> to(from.size());
  Narrow(dtype, from.data(), to.data(), from.size(), random);
  return to;
}

std::vector<float> Widened(DType dtype, const std::vector<uint16_t>& from) {
  std::vector<float> to(from.size());
  Widen(dtype, from.data(), to.data(), from.size());
  return to;
}

// Returns numbers of every exponent, with mantissas at, just below and just
// above those that are exact and those that are halfway, in both formats.
std::vector<float> Interesting() {
  std::vector<float> values = {0.0f, -0.0f, kInfinity, -kInfinity};
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const uint32_t place : {13u, 16u}) {
      for (uint32_t kept = 0; kept < 4; ++kept) {
        for (const uint32_t cut :
             {0u, 1u, (1u << (place - 1)) - 1, 1u << (place - 1),
              (1u << (place - 1)) + 1, (1u << place) - 1}) {
          const uint32_t bits = exponent << 23 | kept << place | cut;
          values.push_back(std::bit_cast<float>(bits));
          values.push_back(std::bit_cast<float>(bits | 0x80000000));
          values.push_back(std::bit_cast<float>(bits | 0x7F << 16));
        }
      }
    }
  }
  std::mt19937 generator(1);
  while (values.size() < 20003) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(generator()));
    if (!std::isnan(value)) values.push_back(value);
  }
  return values;
}

class ConvertTest : public TargetsTest {};

TEST_P(ConvertTest, WidensEveryNumber) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<uint16_t> all(65536);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    const std::vector<float> wide = Widened(dtype, all);
    for (size_t i = 0; i < all.size(); ++i) {
      const double expected = HalfToDouble(dtype, all[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide[i])) << i;
      } else {
        ASSERT_EQ(static_cast<double>(wide[i]), expected) << i;
        ASSERT_EQ(std::signbit(wide[i]), std::signbit(expected)) << i;
      }
    }
    // Narrowing the widened numbers loses nothing.
    const auto back = Narrowed(dtype, wide);
    for (size_t i = 0; i < all.size(); ++i) {
      if (!std::isnan(wide[i])) {
        ASSERT_EQ(back[i], all[i]);
      }
    }
  }
}

TEST_P(ConvertTest, NarrowsToNearestEven) {
  const std::vector<float> values = Interesting();
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const auto narrow = Narrowed(dtype, values);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(narrow[i], HalfFromFloat(dtype, values[i]))
          << std::hexfloat << values[i] << " to " << DTypeName(dtype);
    }
  }
}

TEST_P(ConvertTest, NaNStaysNaN) {
  // The last two of each four have no mantissa bit among those that are kept.
  // There are enough for whole vectors, whose comparisons differ from those of
  // a single element in Highway.
  std::vector<float> nans;
  for (int i = 0; i < 33; ++i) {
    nans.insert(nans.end(), {kNaN, -kNaN, std::bit_cast<float>(0x7F800001u),
                             std::bit_cast<float>(0xFF800001u)});
  }
  const RandomStream random = {};
  for (const auto& narrow :
       {Narrowed(DType::kBF16, nans), Narrowed(DType::kBF16, nans, &random)}) {
    for (const uint16_t bits : narrow) {
      EXPECT_TRUE(std::isnan(HalfToDouble(DType::kBF16, bits)));
    }
  }
  for (const uint16_t bits : Narrowed(DType::kF16, nans)) {
    EXPECT_TRUE(std::isnan(HalfToDouble(DType::kF16, bits)));
  }
}

TEST_P(ConvertTest, Fp32IsCopied) {
  const std::vector<float> values = Interesting();
  std::vector<float> copy(values.size());
  Widen(DType::kF32, values.data(), copy.data(), copy.size());
  EXPECT_EQ(copy, values);
  std::vector<float> back(values.size());
  Narrow(DType::kF32, copy.data(), back.data(), back.size(), nullptr);
  EXPECT_EQ(back, values);
}

TEST_P(ConvertTest, StochasticIsUnbiased) {
  // bf16's neighbors of these values are 2^-7 apart.
  std::vector<float> values;
  for (int i = 0; i < 300; ++i) {
    values.push_back((1 + static_cast<float>(i) / 16384) * (i % 2 ? 1 : -1));
  }
  constexpr int kSeeds = 4000;
  std::vector<double> sums(values.size());
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const RandomStream random = {seed, 1, 2, 100};
    const auto narrow = Narrowed(DType::kBF16, values, &random);
    for (size_t i = 0; i < values.size(); ++i) {
      const double value = HalfToDouble(DType::kBF16, narrow[i]);
      ASSERT_LT(std::abs(value - static_cast<double>(values[i])), 1.0 / 128);
      sums[i] += value;
    }
  }
  for (size_t i = 0; i < values.size(); ++i) {
    // The tolerance is five standard deviations of the mean, where that is
    // largest.
    EXPECT_NEAR(sums[i] / kSeeds, static_cast<double>(values[i]),
                5 * 0.5 / 128 / std::sqrt(kSeeds))
        << i;
  }
}

TEST_P(ConvertTest, StochasticKeepsWhatIsExact) {
  std::vector<uint16_t> all;
  for (uint32_t i = 0; i < 65536; ++i) {
    if (!std::isnan(HalfToDouble(DType::kBF16, static_cast<uint16_t>(i)))) {
      all.push_back(static_cast<uint16_t>(i));
    }
  }
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const RandomStream random = {seed, 0, 0, 0};
    EXPECT_EQ(Narrowed(DType::kBF16, Widened(DType::kBF16, all), &random), all);
  }
}

TEST_P(ConvertTest, StochasticStaysFinite) {
  const std::vector<float> values(1000, FLT_MAX);
  const RandomStream random = {5, 0, 0, 0};
  for (const uint16_t bits : Narrowed(DType::kBF16, values, &random)) {
    ASSERT_EQ(bits, 0x7F7F);
  }
}

// The result does not depend on where a call begins.
TEST_P(ConvertTest, SplitCallsAreOneCall) {
  const std::vector<float> values = Interesting();
  const RandomStream random = {5, 6, 7, 1000};
  const auto whole = Narrowed(DType::kBF16, values, &random);
  for (const size_t split : {1u, 24u, 255u, 256u, 1003u}) {
    std::vector<uint16_t> parts(values.size());
    Narrow(DType::kBF16, values.data(), parts.data(), split, &random);
    RandomStream rest = random;
    rest.first_element += static_cast<int64_t>(split);
    Narrow(DType::kBF16, values.data() + split, parts.data() + split,
           values.size() - split, &rest);
    EXPECT_EQ(parts, whole) << split;
  }
}

// A call of no elements reads and writes nothing.
TEST_P(ConvertTest, NothingToDo) {
  const RandomStream random = {};
  float wide = 7;
  uint16_t narrow = 7;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Widen(dtype, nullptr, &wide, 0);
    Narrow(dtype, nullptr, &narrow, 0, nullptr);
  }
  Narrow(DType::kBF16, nullptr, &narrow, 0, &random);
  EXPECT_EQ(wide, 7);
  EXPECT_EQ(narrow, 7);
}

SHARD_ON_ALL_TARGETS(ConvertTest);

TEST(ConvertTargetsTest, StochasticIsTheSameOnAll) {
  ExpectSameOnAllTargets([] {
    const RandomStream random = {1, 2, 3, 17};
    return Narrowed(DType::kBF16, Interesting(), &random);
  });
}

}  // namespace
}  // namespace shard::convert_test
