// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/norm.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/core/base/sanitizers.h"

namespace shard::norm_test {
namespace {

constexpr NormType kTypes[] = {NormType::kOne, NormType::kTwo, NormType::kP,
                               NormType::kInf};
constexpr float kMaxFloat = std::numeric_limits<float>::max();
constexpr float kTiniest = std::numeric_limits<float>::denorm_min();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double LargestOf(const std::vector<float>& values) {
  double largest = 0;
  for (const float x : values) {
    largest = std::max(largest, std::abs(static_cast<double>(x)));
  }
  return largest;
}

NormSum SumOf(NormType type, double p, const std::vector<float>& values) {
  NormSum sum = {};
  AddToNorm(type, p, LargestOf(values), values.data(), values.size(), &sum);
  return sum;
}

double NormOf(NormType type, double p, const std::vector<float>& values) {
  return FinishNorm(type, p, LargestOf(values), SumOf(type, p, values));
}

bool SameBytes(const NormSum& a, const NormSum& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

// Computes the exact sum in another way: one term after the other.
ExactSum TermsOneByOne(NormType type, const std::vector<float>& values) {
  ExactSum sum = {};
  for (const float value : values) {
    const double x = std::abs(static_cast<double>(value));
    AddExact(type == NormType::kOne ? x : x * x, &sum);
  }
  return sum;
}

std::vector<float> Normal(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// Returns numbers of both signs, with exponents in [lowest, highest].
std::vector<float> Exponents(size_t count, uint32_t seed, int lowest,
                             int highest) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> exponent(lowest, highest);
  std::uniform_real_distribution<float> mantissa(1.0f, 2.0f);
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::ldexp(mantissa(generator), exponent(generator));
    if (generator() % 2 == 0) value = -value;
  }
  return values;
}

struct Case {
  const char* name;
  std::vector<float> values;
};

// Returns cases of more than two blocks and a tail each.
std::vector<Case> Cases() {
  constexpr size_t kCount = 2 * 4096 + 1337;
  std::vector<Case> cases;
  cases.push_back({"normal", Normal(kCount, 1)});
  cases.push_back({"all exponents", Exponents(kCount, 2, -149, 127)});
  cases.push_back({"denormals", Exponents(kCount, 3, -149, -127)});
  cases.push_back({"largest", std::vector<float>(kCount, kMaxFloat)});
  cases.push_back({"tiniest", std::vector<float>(kCount, -kTiniest)});
  cases.push_back({"zeros", std::vector<float>(kCount)});
  cases.push_back({"ones", std::vector<float>(kCount, 1.0f)});
  // The spans of exponents lie around those at which another number of levels
  // is needed.
  for (int span = 14; span <= 100; span += 3) {
    cases.push_back({"span", Exponents(kCount, 4, -span, 0)});
    cases.back().values[7] = std::ldexp(2.0f - 0x1p-23f, 0);
    cases.back().values[8] = std::ldexp(1.0f + 0x1p-23f, -span);
  }
  std::vector<float> huge(kCount, 1e-30f);
  huge[5000] = kMaxFloat;
  huge[6000] = kTiniest;
  cases.push_back({"one huge", huge});
  // These exponents also lie at the edges of the range that one pass includes.
  cases.push_back({"powers of two", {}});
  for (size_t i = 0; i < kCount; ++i) {
    const auto exponent = static_cast<int>(i % 277) - 149;
    cases.back().values.push_back(std::ldexp(1.0f, exponent));
  }
  // All mantissa bits are set, so that every rounding would show.
  cases.push_back({"full", std::vector<float>(kCount, 2.0f - 0x1p-23f)});
  return cases;
}

// Runs on each instruction set of this machine, one by one.
class NormTest : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

// The sums are exact on every instruction set, so all sets have the same.
TEST_P(NormTest, OneAndTwoAreExact) {
  for (const auto& [name, values] : Cases()) {
    for (const NormType type : {NormType::kOne, NormType::kTwo}) {
      const NormSum sum = SumOf(type, 0, values);
      const ExactSum expected = TermsOneByOne(type, values);
      ASSERT_EQ(std::memcmp(&sum.terms, &expected, sizeof(expected)), 0)
          << name << ", type " << static_cast<int>(type);
    }
  }
}

// These blocks fill every bit of the doubles in which they are added up: 4094
// values whose terms leave the most to the last double, the largest value, and
// one with a bit at the very end. With the last exponent one lower a bit would
// be lost, so the norm must take another double there.
TEST_P(NormTest, FullBlocksAreExact) {
  struct Filling {
    NormType type;
    int exponent;  // The 4094 values are in [1, 2) times 2^exponent.
    // A term, in units of its last bit, leaves `rest` modulo `modulo` to the
    // last double.
    uint32_t modulo;
    uint32_t rest;
  };
  constexpr Filling kFillings[] = {
      {NormType::kOne, 0, 2, 1},       {NormType::kOne, -20, 32, 15},
      {NormType::kOne, -60, 32, 15},   {NormType::kTwo, 0, 512, 249},
      {NormType::kTwo, -20, 512, 249}, {NormType::kTwo, -40, 512, 249},
  };
  for (const Filling& filling : kFillings) {
    uint32_t mantissa = (2u << 23) - 1;
    while ((filling.type == NormType::kTwo ? mantissa * mantissa : mantissa) %
               filling.modulo !=
           filling.rest) {
      --mantissa;
    }
    for (int span = 12; span <= 120; ++span) {
      std::vector<float> values(4096, std::ldexp(static_cast<float>(mantissa),
                                                 filling.exponent - 23));
      values[0] = 2.0f - 0x1p-23f;
      values[1000] = std::ldexp(1.0f + 0x1p-23f, -span);
      const NormSum sum = SumOf(filling.type, 0, values);
      const ExactSum expected = TermsOneByOne(filling.type, values);
      ASSERT_EQ(std::memcmp(&sum.terms, &expected, sizeof(expected)), 0)
          << "type " << static_cast<int>(filling.type) << ", exponent "
          << filling.exponent << ", span " << span;
    }
  }
}

TEST_P(NormTest, EveryCountIsExact) {
  const std::vector<float> all = Normal(4096 + 70, 5);
  for (size_t count = 0; count <= all.size(); count += count < 140 ? 1 : 67) {
    const std::vector<float> values(
        all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
    for (const NormType type : {NormType::kOne, NormType::kTwo}) {
      const NormSum sum = SumOf(type, 0, values);
      const ExactSum expected = TermsOneByOne(type, values);
      ASSERT_EQ(std::memcmp(&sum.terms, &expected, sizeof(expected)), 0)
          << count;
    }
    ASSERT_EQ(NormOf(NormType::kInf, 0, values), LargestOf(values)) << count;
  }
}

TEST_P(NormTest, OrderAndSplitsDoNotShow) {
  std::mt19937 generator(6);
  for (auto& [name, values] : Cases()) {
    const double reference = LargestOf(values);
    for (const NormType type : kTypes) {
      constexpr double kP = 2.5;
      const NormSum expected = SumOf(type, kP, values);
      for (int round = 0; round < 3; ++round) {
        std::vector<float> shuffled = values;
        std::shuffle(shuffled.begin(), shuffled.end(), generator);
        // Ranks with tiles of any size and alignment, merged in any order.
        std::vector<NormSum> ranks(1 + generator() % 7);
        for (size_t begin = 0; begin < shuffled.size();) {
          const size_t tile =
              std::min<size_t>(shuffled.size() - begin, 1 + generator() % 3000);
          AddToNorm(type, kP, reference, shuffled.data() + begin, tile,
                    &ranks[generator() % ranks.size()]);
          begin += tile;
        }
        std::shuffle(ranks.begin(), ranks.end(), generator);
        NormSum merged = {};
        for (const NormSum& rank : ranks) MergeNorm(rank, &merged);
        ASSERT_TRUE(SameBytes(merged, expected))
            << name << ", type " << static_cast<int>(type);
      }
    }
  }
}

TEST_P(NormTest, OneHugeAndAMillionTiny) {
  std::vector<float> values(1000001, 0x1p-40f);
  values[123456] = 0x1p20f;
  // 2^40 + 10^6 2^-80: the small ones are far below the double's last bit.
  EXPECT_EQ(NormOf(NormType::kTwo, 0, values), 0x1p20);
  EXPECT_EQ(NormOf(NormType::kOne, 0, values), 0x1p20 + 1e6 * 0x1p-40);
  // They count when the huge one has gone.
  NormSum sum = SumOf(NormType::kTwo, 0, values);
  AddExact(-0x1p40, &sum.terms);
  EXPECT_EQ(RoundExact(sum.terms), 1e6 * 0x1p-80);
}

TEST_P(NormTest, ByHand) {
  const std::vector<float> values = {3, -4, 0, 12};
  EXPECT_EQ(NormOf(NormType::kOne, 0, values), 19);
  EXPECT_EQ(NormOf(NormType::kTwo, 0, values), 13);
  EXPECT_EQ(NormOf(NormType::kInf, 0, values), 12);
  // (27 + 64 + 1728)^(1/3)
  EXPECT_NEAR(NormOf(NormType::kP, 3, values), 12.20705, 1e-4);
  // (sqrt 3 + 2 + sqrt 12)^2
  EXPECT_NEAR(NormOf(NormType::kP, 0.5, values), 51.7846, 1e-4);
}

TEST_P(NormTest, PowersMatchLongDouble) {
  for (const auto& [name, values] : Cases()) {
    const double reference = LargestOf(values);
    for (const double p : {0.1, 0.5, 1.0, 2.0, 3.0, 7.5, 100.0, 1e6}) {
      long double expected = 0;
      for (const float x : values) {
        if (x == 0) continue;
        expected += std::pow(std::abs(static_cast<long double>(x)) / reference,
                             static_cast<long double>(p));
      }
      const auto sum =
          static_cast<double>(RoundExact(SumOf(NormType::kP, p, values).terms));
      ASSERT_NEAR(sum, static_cast<double>(expected),
                  1e-12 * static_cast<double>(expected))
          << name << ", p " << p;
    }
  }
}

TEST_P(NormTest, NothingOverflows) {
  const std::vector<float> values(100000, kMaxFloat);
  const auto max = static_cast<double>(kMaxFloat);
  EXPECT_EQ(NormOf(NormType::kOne, 0, values), 1e5 * max);
  EXPECT_NEAR(NormOf(NormType::kTwo, 0, values), std::sqrt(1e5) * max,
              1e-15 * 1e3 * max);
  EXPECT_NEAR(NormOf(NormType::kP, 20, values), std::pow(1e5, 1.0 / 20) * max,
              1e-12 * max);
  EXPECT_EQ(NormOf(NormType::kInf, 0, values), max);
}

TEST_P(NormTest, EmptyAndZerosAreZero) {
  for (const NormType type : kTypes) {
    EXPECT_EQ(NormOf(type, 3, {}), 0);
    EXPECT_EQ(NormOf(type, 3, std::vector<float>(77, -0.0f)), 0);
  }
}

TEST_P(NormTest, NonFiniteValuesShowInTheNorm) {
  for (const NormType type : kTypes) {
    for (const size_t where : {0u, 40u, 5000u, 5002u}) {
      std::vector<float> values(5003, 1.0f);
      NormSum good = {};
      AddToNorm(type, 3, 1, values.data(), values.size(), &good);
      values[where] = -kInfinity;
      NormSum bad = {};
      AddToNorm(type, 3, 1, values.data(), values.size(), &bad);
      EXPECT_EQ(FinishNorm(type, 3, 1, bad), kInfinity);
      values[(where + 1000) % values.size()] = -kNan;
      NormSum worse = {};
      AddToNorm(type, 3, 1, values.data(), values.size(), &worse);
      EXPECT_TRUE(std::isnan(FinishNorm(type, 3, 1, worse)));
      // On one rank it is so for all.
      MergeNorm(bad, &good);
      EXPECT_EQ(FinishNorm(type, 3, 1, good), kInfinity);
      MergeNorm(worse, &good);
      EXPECT_TRUE(std::isnan(FinishNorm(type, 3, 1, good)));
    }
  }
}

// The norm scales gradients by the same bits on any number of ranks.
TEST_P(NormTest, ClipCoefficientIsTheSameForEverySplit) {
  const std::vector<float> values = Normal(30000, 9);
  const auto coefficient = [](const NormSum& sum) {
    const double norm = FinishNorm(NormType::kTwo, 2, 0, sum);
    return std::min(1.0, 1.0 / (norm + 1e-6));
  };
  const double expected = coefficient(SumOf(NormType::kTwo, 2, values));
  EXPECT_NEAR(expected, 1 / std::sqrt(30000.0), 1e-4);
  for (const size_t world : {2u, 3u, 8u, 64u}) {
    NormSum merged = {};
    const size_t part = (values.size() + world - 1) / world;
    for (size_t begin = 0; begin < values.size(); begin += part) {
      NormSum rank = {};
      AddToNorm(NormType::kTwo, 2, 0, values.data() + begin,
                std::min(part, values.size() - begin), &rank);
      MergeNorm(rank, &merged);
    }
    EXPECT_EQ(std::bit_cast<uint64_t>(coefficient(merged)),
              std::bit_cast<uint64_t>(expected))
        << world << " ranks";
  }
}

std::vector<int64_t> Targets() {
  // The one for every processor is not in the list of what this one has.
  const int64_t all =
      (hwy::SupportedTargets() & int64_t{HWY_TARGETS}) | HWY_STATIC_TARGET;
  std::vector<int64_t> targets;
  for (int shift = 0; shift < 63; ++shift) {
    const int64_t bit = int64_t{1} << shift;
    if ((all & bit) != 0) targets.push_back(bit);
  }
  return targets;
}

INSTANTIATE_TEST_SUITE_P(AllTargets, NormTest, ::testing::ValuesIn(Targets()),
                         [](const auto& info) {
                           return std::string(hwy::TargetName(info.param));
                         });

TEST(NormTargetsTest, SeveralTargetsWereTested) {
  EXPECT_GE(Targets().size(), kSanitized ? 1u : 2u);
}

}  // namespace
}  // namespace shard::norm_test
