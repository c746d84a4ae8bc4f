// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/dtypes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "sdk/cli/handles.h"
#include "shard/shard.h"

namespace shardctl::dtypes_test {
namespace {

template <typename T>
double ValueOf(int32_t dtype, T bits) {
  EXPECT_EQ(shard_dtype_size(dtype), sizeof(T));
  std::byte bytes[sizeof(T)];
  std::memcpy(bytes, &bits, sizeof(T));
  double value = 0;
  ToDoubles(dtype, bytes, 1, &value);
  return value;
}

TEST(DTypesTest, Floats) {
  EXPECT_EQ(ValueOf(SHARD_F32, -1.5f), -1.5);
  EXPECT_EQ(ValueOf(SHARD_F64, 1e300), 1e300);
  EXPECT_EQ(ValueOf(SHARD_BF16, uint16_t{0x3fc0}), 1.5);
  EXPECT_TRUE(std::isnan(ValueOf(SHARD_BF16, uint16_t{0x7fc1})));
  EXPECT_EQ(ValueOf(SHARD_F16, uint16_t{0xc500}), -5.0);
  EXPECT_EQ(ValueOf(SHARD_F16, uint16_t{0x0001}), 0x1p-24);
  EXPECT_EQ(ValueOf(SHARD_F16, uint16_t{0x7bff}), 65504.0);
  EXPECT_EQ(ValueOf(SHARD_F16, uint16_t{0xfc00}), -INFINITY);
  EXPECT_TRUE(std::isnan(ValueOf(SHARD_F16, uint16_t{0x7c01})));
}

TEST(DTypesTest, EightBitFloats) {
  // By OCP's table of E4M3, 448 is the largest value, and there are no
  // infinities.
  EXPECT_EQ(ValueOf(SHARD_F8_E4M3, uint8_t{0x7e}), 448.0);
  EXPECT_TRUE(std::isnan(ValueOf(SHARD_F8_E4M3, uint8_t{0x7f})));
  EXPECT_EQ(ValueOf(SHARD_F8_E4M3, uint8_t{0x01}), 0x1p-9);
  EXPECT_EQ(ValueOf(SHARD_F8_E5M2, uint8_t{0x7b}), 57344.0);
  EXPECT_EQ(ValueOf(SHARD_F8_E5M2, uint8_t{0x7c}), INFINITY);
  EXPECT_TRUE(std::isnan(ValueOf(SHARD_F8_E5M2, uint8_t{0x7d})));
  EXPECT_EQ(ValueOf(SHARD_F8_E5M2, uint8_t{0x81}), -0x1p-16);
}

TEST(DTypesTest, Integers) {
  EXPECT_EQ(ValueOf(SHARD_I8, int8_t{-3}), -3.0);
  EXPECT_EQ(ValueOf(SHARD_U8, uint8_t{253}), 253.0);
  EXPECT_EQ(ValueOf(SHARD_Q8, uint8_t{253}), 253.0);
  EXPECT_EQ(ValueOf(SHARD_I16, int16_t{-300}), -300.0);
  EXPECT_EQ(ValueOf(SHARD_U16, uint16_t{65535}), 65535.0);
  EXPECT_EQ(ValueOf(SHARD_I32, int32_t{-70000}), -70000.0);
  EXPECT_EQ(ValueOf(SHARD_U32, uint32_t{4000000000}), 4e9);
  EXPECT_EQ(ValueOf(SHARD_I64, int64_t{-1} << 52), -0x1p52);
  EXPECT_EQ(ValueOf(SHARD_U64, uint64_t{1} << 63), 0x1p63);
  EXPECT_EQ(ValueOf(SHARD_BOOL, uint8_t{1}), 1.0);
}

TEST(DTypesTest, NamesAndKinds) {
  EXPECT_EQ(DTypeText(SHARD_F8_E4M3), "f8_e4m3");
  EXPECT_EQ(DTypeText(99), "dtype 99");
  EXPECT_EQ(shard_dtype_size(99), 0u);
  EXPECT_EQ(ParseParamDType("bf16"), SHARD_BF16);
  EXPECT_THROW(ParseParamDType("i8"), Failure);
  EXPECT_THROW(ParseParamDType("float32"), Failure);
}

}  // namespace
}  // namespace shardctl::dtypes_test
