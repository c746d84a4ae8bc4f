// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace shard::exact_sum_test {
namespace {

ExactSum SumOf(const std::vector<double>& values) {
  ExactSum sum = {};
  for (const double value : values) AddExact(value, &sum);
  return sum;
}

bool SameBytes(const ExactSum& a, const ExactSum& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

TEST(ExactSum, EmptyIsZero) { EXPECT_EQ(RoundExact(ExactSum{}), 0.0); }

TEST(ExactSum, OneValueReadsBack) {
  for (int exponent = -298; exponent <= 300; ++exponent) {
    const double power = std::ldexp(1.0, exponent);
    EXPECT_EQ(RoundExact(SumOf({power})), power) << exponent;
    if (exponent < -298 + 52) continue;
    const double full = std::ldexp(2.0 - 0x1p-52, exponent);
    EXPECT_EQ(RoundExact(SumOf({full})), full) << exponent;
  }
}

TEST(ExactSum, NothingIsLost) {
  // In double, 1 would vanish beside 2^200 in any order.
  EXPECT_EQ(RoundExact(SumOf({0x1p200, 1, 0x1p-298, -0x1p200})), 1.0);
  EXPECT_EQ(RoundExact(SumOf({0x1p200, 1, 0x1p-298, -1, -0x1p200})), 0x1p-298);
}

// A word that is 2^64 - 1 carries when one is added, and borrows when it is
// taken away again.
TEST(ExactSum, CarriesAndBorrowsGoAllTheWay) {
  ExactSum sum = {};
  for (int exponent = -298; exponent < 300; ++exponent) {
    AddExact(std::ldexp(1.0, exponent), &sum);
  }
  AddExact(0x1p-298, &sum);
  EXPECT_TRUE(SameBytes(sum, SumOf({0x1p300})));
  AddExact(-0x1p-298, &sum);
  for (int exponent = -298; exponent < 300; ++exponent) {
    AddExact(-std::ldexp(1.0, exponent), &sum);
  }
  EXPECT_TRUE(SameBytes(sum, ExactSum{}));
}

TEST(ExactSum, RoundsOnceTiesToEven) {
  // 2^53 + 1 lies halfway between two doubles, so terms far below decide.
  EXPECT_EQ(RoundExact(SumOf({0x1p53, 1})), 0x1p53);
  EXPECT_EQ(RoundExact(SumOf({0x1p53, 1, 0x1p-298})), 0x1p53 + 2);
  EXPECT_EQ(RoundExact(SumOf({0x1p53, 1, -0x1p-298})), 0x1p53);
  EXPECT_EQ(RoundExact(SumOf({0x1p53, 3})), 0x1p53 + 4);
  EXPECT_EQ(RoundExact(SumOf({0x1p53, 3, -0x1p-200})), 0x1p53 + 2);
}

TEST(ExactSum, OrderAndGroupsDoNotShow) {
  std::mt19937_64 generator(1);
  std::vector<double> values;
  for (int i = 0; i < 500; ++i) {
    // The terms are whole multiples of the lowest bit, of both signs.
    const double mantissa = static_cast<double>(generator() >> 11) - 0x1p52;
    const int exponent = static_cast<int>(generator() % 450) - 298;
    values.push_back(std::ldexp(mantissa, exponent));
  }
  values.push_back(0x1p250);
  const ExactSum expected = SumOf(values);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(values.begin(), values.end(), generator);
    ExactSum merged = {};
    for (size_t begin = 0; begin < values.size();) {
      const size_t end = std::min(values.size(), begin + 1 + generator() % 100);
      MergeExact(SumOf({values.begin() + static_cast<std::ptrdiff_t>(begin),
                        values.begin() + static_cast<std::ptrdiff_t>(end)}),
                 &merged);
      begin = end;
    }
    ASSERT_TRUE(SameBytes(merged, expected));
  }
}

}  // namespace
}  // namespace shard::exact_sum_test
