// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/q8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/cpu/targets.h"

namespace shard::q8_test {
namespace {

constexpr size_t kBlock = static_cast<size_t>(kQ8Block);

struct Encoded {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  bool operator==(const Encoded&) const = default;
};

Encoded Encode(StateKind kind, const std::vector<float>& values,
               const RandomStream* random = nullptr) {
  Encoded encoded;
  encoded.codes.resize(values.size());
  encoded.scales.resize((values.size() + kBlock - 1) / kBlock);
  EncodeQ8(kind, values.data(), values.size(), random, 1, encoded.codes.data(),
           encoded.scales.data());
  return encoded;
}

std::vector<float> Decode(StateKind kind, const Encoded& encoded) {
  std::vector<float> values(encoded.codes.size());
  DecodeQ8(kind, encoded.codes.data(), encoded.scales.data(), values.data(),
           values.size());
  return values;
}

// Returns the value of a code as q8.h defines it, for a scale of 1.
double Meaning(StateKind kind, int code) {
  const auto z = [](int exponent, int mantissa, int steps) {
    return std::ldexp(1 + mantissa / double(steps), exponent);
  };
  if (kind == StateKind::kAverage) {
    const int c = code & 0x7F;
    const double value = (z(1 + c / 8, c % 8, 8) - 2) / 122878;
    return (code & 0x80) != 0 ? -value : value;
  }
  const double at = code < 48 ? z(code / 4 - 8, code % 4, 4)
                              : z(code / 16 + 1, code % 16, 16);
  return (at - 0x1p-8) / 126976;
}

// Returns the values of all codes that are not negative, in ascending order.
std::vector<double> Values(StateKind kind) {
  std::vector<double> values;
  for (int code = 0; code < (kind == StateKind::kAverage ? 128 : 256); ++code) {
    values.push_back(Meaning(kind, code));
  }
  return values;
}

// Returns magnitudes over five decades in each block, or their squares, as
// `kind` needs.
std::vector<float> Values(StateKind kind, size_t count) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> decades(-5, 0);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(generator) * std::pow(10.0f, decades(generator));
    if (kind != StateKind::kAverage) value *= value;
  }
  return values;
}

class Q8Test : public TargetsTest {};

TEST_P(Q8Test, EveryCodeMeansWhatTheHeaderSays) {
  for (const StateKind kind :
       {StateKind::kAverage, StateKind::kSquareAverage}) {
    Encoded encoded;
    for (int code = 0; code < 256; ++code) {
      encoded.codes.push_back(static_cast<uint8_t>(code));
    }
    encoded.scales = {3.0f};
    const std::vector<float> values = Decode(kind, encoded);
    for (int code = 0; code < 256; ++code) {
      const double expected = 3 * Meaning(kind, code);
      EXPECT_NEAR(static_cast<double>(values[static_cast<size_t>(code)]),
                  expected, 1e-6 * std::abs(expected))
          << code;
    }
  }
}

TEST_P(Q8Test, StepsAreAsSmallAsTheHeaderSays) {
  const std::vector<double> averages = Values(StateKind::kAverage);
  EXPECT_EQ(averages[127], 1);
  EXPECT_NEAR(averages[1], 2e-6, 1e-7);
  for (size_t c = 1; c < 128; ++c) {
    EXPECT_LE(averages[c] - averages[c - 1],
              1.0001 * (averages[1] + averages[c - 1] / 8))
        << c;
  }
  const std::vector<double> squares = Values(StateKind::kSquareAverage);
  EXPECT_NEAR(squares[255], 1, 1e-6);
  EXPECT_NEAR(squares[1], 7.7e-9, 1e-10);
  for (size_t c = 1; c < 256; ++c) {
    const double step = squares[c] - squares[c - 1];
    const double allowed = squares[c] > 1.3e-4   ? 1.0 / 16
                           : squares[c] > 2.5e-7 ? 0.27
                                                 : 1;
    EXPECT_LE(step, allowed * squares[c] * 1.0001) << c;
  }
}

// A value is rounded to one of the two codes around it; rounding to nearest
// takes the nearer.
TEST_P(Q8Test, RoundTripIsWithinTheStep) {
  const RandomStream random = {1, 2, 3, 512};
  for (const StateKind kind :
       {StateKind::kAverage, StateKind::kSquareAverage}) {
    const std::vector<double> codes = Values(kind);
    const std::vector<float> values = Values(kind, 3 * kBlock + 77);
    for (const bool nearest : {false, true}) {
      const Encoded encoded = Encode(kind, values, nearest ? nullptr : &random);
      const std::vector<float> decoded = Decode(kind, encoded);
      for (size_t i = 0; i < values.size(); ++i) {
        const auto scale = static_cast<double>(encoded.scales[i / kBlock]);
        const double x = std::abs(static_cast<double>(values[i])) / scale;
        const double y = std::abs(static_cast<double>(decoded[i])) / scale;
        ASSERT_GE(values[i] * decoded[i], 0) << i;
        const auto next = std::min(
            std::upper_bound(codes.begin(), codes.end(), x), codes.end() - 1);
        double lower = *(next - 1);
        double upper = *next;
        // A positive square is not 0.
        if (kind != StateKind::kAverage && lower == 0) lower = upper;
        const double tolerance = 1e-6 * upper;
        if (nearest && std::abs(x - (lower + upper) / 2) > tolerance) {
          ASSERT_NEAR(y, x < (lower + upper) / 2 ? lower : upper, tolerance)
              << i;
        } else if (std::abs(y - lower) > tolerance) {
          ASSERT_NEAR(y, upper, tolerance) << i;
        }
      }
    }
  }
}

// Decoded values get their codes and scales again when they are encoded,
// whatever the random bits are. The largest value of a block stays to a unit in
// the last place.
TEST_P(Q8Test, CodesAndScalesStay) {
  for (const StateKind kind : {StateKind::kAverage, StateKind::kSquareAverage,
                               StateKind::kSquareMaximum}) {
    std::vector<float> values = Values(kind, 64 * kBlock);
    for (size_t i = 0; i < values.size(); i += kBlock) {
      values[i] = 10 * std::abs(values[i]) + 100;
    }
    const Encoded first = Encode(kind, values);
    for (size_t i = 0; i < values.size(); i += kBlock) {
      ASSERT_NEAR(static_cast<double>(first.scales[i / kBlock] / values[i]), 1,
                  1.3e-7);
    }
    const std::vector<float> once = Decode(kind, first);
    EXPECT_EQ(Encode(kind, once), first);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const RandomStream random = {seed, 0, 0, 0};
      const Encoded again = Encode(kind, once, &random);
      EXPECT_EQ(again.scales, first.scales);
      EXPECT_EQ(again.codes, first.codes);
    }
  }
}

// The mean over many seeds is the value; the mean of a square is the square,
// not its root.
TEST_P(Q8Test, RoundsWithoutBias) {
  constexpr int kSeeds = 3000;
  for (const StateKind kind :
       {StateKind::kAverage, StateKind::kSquareAverage}) {
    const std::vector<float> values = Values(kind, kBlock);
    std::vector<double> sums(kBlock);
    std::vector<double> squares(kBlock);
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      const RandomStream random = {seed, 0, 0, 0};
      const std::vector<float> decoded =
          Decode(kind, Encode(kind, values, &random));
      for (size_t i = 0; i < kBlock; ++i) {
        const auto x = static_cast<double>(decoded[i]);
        sums[i] += x;
        squares[i] += x * x;
      }
    }
    const double largest = *std::max_element(values.begin(), values.end());
    double bias = 0;
    double magnitude = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      const auto x = static_cast<double>(values[i]);
      // Leaves out the values that are raised to code 1.
      if (kind != StateKind::kAverage && x < 1e-6 * largest) continue;
      const double mean = sums[i] / kSeeds;
      const double variance = squares[i] / kSeeds - mean * mean;
      EXPECT_NEAR(
          mean, x,
          5 * std::sqrt(std::max(variance, 0.0) / kSeeds) + 1e-4 * std::abs(x))
          << i;
      bias += mean - x;
      magnitude += std::abs(x);
    }
    EXPECT_LT(std::abs(bias), 1e-3 * magnitude);
  }
}

TEST_P(Q8Test, APositiveSquareNeverBecomesZero) {
  std::vector<float> values(kBlock, 1e-12f);
  values[17] = 1;
  values[30] = 0;
  for (const StateKind kind :
       {StateKind::kSquareAverage, StateKind::kSquareMaximum}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const RandomStream random = {seed, 0, 0, 0};
      const Encoded encoded = Encode(kind, values, &random);
      for (size_t i = 0; i < kBlock; ++i) {
        EXPECT_EQ(encoded.codes[i], i == 17 ? 255 : i == 30 ? 0 : 1) << i;
      }
    }
  }
}

// With stochastic rounding, a maximum would climb.
TEST_P(Q8Test, AMaximumIsRoundedToNearest) {
  const auto kind = StateKind::kSquareMaximum;
  const std::vector<float> values = Values(kind, kBlock);
  const Encoded nearest = Encode(kind, values);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const RandomStream random = {seed, 0, 0, 0};
    EXPECT_EQ(Encode(kind, values, &random), nearest);
  }
}

TEST_P(Q8Test, ZerosAndTinyBlocks) {
  const RandomStream random = {};
  for (const StateKind kind : {StateKind::kAverage, StateKind::kSquareAverage,
                               StateKind::kSquareMaximum}) {
    const std::vector<float> zeros(kBlock + 5);
    const Encoded encoded = Encode(kind, zeros, &random);
    EXPECT_EQ(encoded.codes, std::vector<uint8_t>(kBlock + 5, 0));
    EXPECT_EQ(encoded.scales, std::vector<float>(2, 0.0f));
    EXPECT_EQ(Decode(kind, encoded), zeros);
  }
  const std::vector<float> tiny(kBlock, 1e-35f);
  for (const float x : Decode(StateKind::kAverage,
                              Encode(StateKind::kAverage, tiny, &random))) {
    EXPECT_EQ(x, 0);
  }
  for (const float x :
       Decode(StateKind::kSquareAverage,
              Encode(StateKind::kSquareAverage, tiny, &random))) {
    EXPECT_NEAR(static_cast<double>(x), 1e-35, 0.07 * 1e-35);
  }
  // The blocks with the largest and with the smallest values that are kept.
  for (const StateKind kind :
       {StateKind::kAverage, StateKind::kSquareAverage}) {
    for (const float value : {0x1p-110f, 0x1.8p127f}) {
      for (const float x :
           Decode(kind, Encode(kind, std::vector<float>(kBlock, value)))) {
        EXPECT_NEAR(static_cast<double>(x / value), 1, 1e-6);
      }
    }
  }
}

TEST_P(Q8Test, NonFiniteValuesStayVisible) {
  const RandomStream random = {};
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(),
                          -std::numeric_limits<float>::quiet_NaN()}) {
    for (const StateKind kind :
         {StateKind::kAverage, StateKind::kSquareAverage}) {
      for (const size_t where : {size_t{0}, size_t{100}, kBlock + 4}) {
        std::vector<float> values(kBlock + 5, 1.0f);
        values[where] = bad;
        const std::vector<float> decoded =
            Decode(kind, Encode(kind, values, &random));
        // The block with the value is lost, and no other.
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(std::isnan(decoded[i]), i / kBlock == where / kBlock) << i;
        }
      }
    }
  }
}

TEST_P(Q8Test, SplitCallsAreOneCall) {
  for (const StateKind kind :
       {StateKind::kAverage, StateKind::kSquareAverage}) {
    const std::vector<float> values = Values(kind, 5 * kBlock + 33);
    const RandomStream random = {9, 8, 7, 1024};
    const Encoded whole = Encode(kind, values, &random);
    Encoded parts;
    for (const auto& [begin, end] :
         {std::pair{size_t{0}, 2 * kBlock}, {2 * kBlock, values.size()}}) {
      RandomStream rest = random;
      rest.first_element += static_cast<int64_t>(begin);
      const Encoded part = Encode(kind,
                                  {values.begin() + static_cast<long>(begin),
                                   values.begin() + static_cast<long>(end)},
                                  &rest);
      parts.codes.insert(parts.codes.end(), part.codes.begin(),
                         part.codes.end());
      parts.scales.insert(parts.scales.end(), part.scales.begin(),
                          part.scales.end());
    }
    EXPECT_EQ(parts, whole);
  }
}

SHARD_ON_ALL_TARGETS(Q8Test);

TEST(Q8TargetsTest, SameOnAll) {
  for (const StateKind kind : {StateKind::kAverage, StateKind::kSquareAverage,
                               StateKind::kSquareMaximum}) {
    ExpectSameOnAllTargets([kind] {
      const RandomStream random = {1, 2, 3, 256};
      return Encode(kind, Values(kind, 5 * kBlock + 33), &random);
    });
  }
}

TEST(Q8BytesTest, TwoStatesTakeLittleMoreThanTwoBytes) {
  EXPECT_LE(2 * DTypeBytes(DType::kQ8, 1 << 20), (size_t{21} << 20) / 10);
}

}  // namespace
}  // namespace shard::q8_test
