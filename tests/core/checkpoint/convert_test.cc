// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/store/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace shard::convert_test {
namespace {

template <typename From, typename To>
std::vector<To> Convert(ElementType from, DType to,
                        const std::vector<From>& values) {
  // Neither side is aligned, and nothing is written beyond the last element.
  std::vector<std::byte> in(values.size() * sizeof(From) + 1);
  if (!values.empty()) {
    std::memcpy(in.data() + 1, values.data(), values.size() * sizeof(From));
  }
  std::vector<std::byte> out(values.size() * sizeof(To) + 2, std::byte{0xEE});
  ConvertElements(from, in.data() + 1, to, out.data() + 1, values.size());
  EXPECT_EQ(out.front(), std::byte{0xEE});
  EXPECT_EQ(out.back(), std::byte{0xEE});
  std::vector<To> converted(values.size());
  if (!values.empty()) {
    std::memcpy(converted.data(), out.data() + 1, values.size() * sizeof(To));
  }
  return converted;
}

TEST(ConvertTest, F32ToNarrowGoesToNearestEven) {
  // 1 + 1/256 is halfway between two bf16 numbers, and so is 1 + 3/256.
  EXPECT_EQ(
      (Convert<float, uint16_t>(ElementType::kF32, DType::kBF16,
                                {1.0f, 1 + 1.0f / 256, 1 + 3.0f / 256, -2.5f,
                                 std::numeric_limits<float>::infinity()})),
      (std::vector<uint16_t>{0x3F80, 0x3F80, 0x3F82, 0xC020, 0x7F80}));
  EXPECT_EQ((Convert<float, uint16_t>(
                ElementType::kF32, DType::kF16,
                {1.0f, 1 + 1.0f / 2048, 1 + 3.0f / 2048, 65504.0f, 65536.0f})),
            (std::vector<uint16_t>{0x3C00, 0x3C00, 0x3C02, 0x7BFF, 0x7C00}));
}

TEST(ConvertTest, WideningIsExact) {
  EXPECT_EQ((Convert<uint16_t, float>(ElementType::kBF16, DType::kF32,
                                      {0x3F80, 0xC020, 0x0001})),
            (std::vector<float>{1.0f, -2.5f, std::ldexp(1.0f, -133)}));
  EXPECT_EQ((Convert<uint16_t, float>(ElementType::kF16, DType::kF32,
                                      {0x3C00, 0x0001, 0x7BFF})),
            (std::vector<float>{1.0f, std::ldexp(1.0f, -24), 65504.0f}));
  EXPECT_EQ(
      (Convert<float, double>(ElementType::kF32, DType::kF64, {0.1f, -3.0f})),
      (std::vector<double>{0.1f, -3.0}));
}

TEST(ConvertTest, F64ToF32RoundsAndOverflowsToInfinity) {
  EXPECT_EQ(
      (Convert<double, float>(ElementType::kF64, DType::kF32, {0.1, 1e300})),
      (std::vector<float>{0.1f, std::numeric_limits<float>::infinity()}));
}

// Elements that keep their type keep all bits, also those that fp32 cannot hold
// and those of NaN.
TEST(ConvertTest, TheSameTypeKeepsItsBits) {
  const double fine = 1 + std::ldexp(1.0, -50);
  EXPECT_EQ((Convert<double, double>(ElementType::kF64, DType::kF64, {fine})),
            (std::vector<double>{fine}));
  EXPECT_EQ((Convert<uint16_t, uint16_t>(ElementType::kBF16, DType::kBF16,
                                         {0x7F81, 0xFFFF})),
            (std::vector<uint16_t>{0x7F81, 0xFFFF}));
}

TEST(ConvertTest, ConvertsEveryLengthAroundAPiece) {
  for (const size_t count : {0, 1, 1023, 1024, 1025, 2049}) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 256);
    const auto narrow =
        Convert<float, uint16_t>(ElementType::kF32, DType::kBF16, values);
    EXPECT_EQ(
        (Convert<uint16_t, float>(ElementType::kBF16, DType::kF32, narrow)),
        values)
        << count;
    const auto wide =
        Convert<float, double>(ElementType::kF32, DType::kF64, values);
    EXPECT_EQ((Convert<double, float>(ElementType::kF64, DType::kF32, wide)),
              values)
        << count;
  }
}

}  // namespace
}  // namespace shard::convert_test
