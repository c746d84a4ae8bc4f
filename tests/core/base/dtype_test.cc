// SPDX-License-Identifier: Apache-2.0

#include "core/base/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/base/element_type.h"
#include "tests/core/base/expect_status.h"

namespace shard::dtype_test {
namespace {

// The values are written into files and fingerprints.
TEST(DType, ValuesNamesAndSizesAreFrozen) {
  const struct {
    int32_t value;
    DType dtype;
    const char* name;
    size_t size;
  } known[] = {
      {1, DType::kF32, "f32", 4},
      {2, DType::kBF16, "bf16", 2},
      {3, DType::kF16, "f16", 2},
      {4, DType::kF64, "f64", 8},
  };
  for (const auto& entry : known) {
    const auto dtype = DTypeFromValue(entry.value);
    ASSERT_OK(dtype);
    EXPECT_EQ(*dtype, entry.dtype);
    EXPECT_STREQ(DTypeName(*dtype), entry.name);
    EXPECT_EQ(DTypeSize(*dtype), entry.size);
  }
}

TEST(DType, UnknownValueIsNamed) {
  ExpectInvalid(DTypeFromValue(0), {"dtype 0"});
  ExpectInvalid(DTypeFromValue(5), {"dtype 5", "1 (f32)"});
  ExpectInvalid(DTypeFromValue(-3), {"dtype -3"});
  // 6 is f8_e4m3, 16 is i8, and 32 opaque: only files have these.
  for (const int32_t value : {-1, 0, 6, 16, 32, 99}) {
    const auto dtype = static_cast<DType>(value);
    EXPECT_STREQ(DTypeName(dtype), "unknown") << value;
    EXPECT_EQ(DTypeSize(dtype), 0u) << value;
    EXPECT_EQ(DTypeBytes(dtype, kQ8Block), 0u) << value;
  }
  for (const int32_t value : {-1, 0, 8, 99}) {
    const auto type = static_cast<ElementType>(value);
    EXPECT_FALSE(IsConvertibleFloat(type) || IsHalf(type) || IsQuantized(type))
        << value;
  }
}

// Every type in memory is a type in files, with the same facts.
TEST(ElementType, TheTable) {
  std::set<int32_t> values;
  std::set<std::string> names;
  for (const ElementTypeInfo& info : kElementTypes) {
    EXPECT_TRUE(values.insert(static_cast<int32_t>(info.type)).second);
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_FALSE(info.is_convertible && info.block > 0) << info.name;
  }
  for (int32_t value = 1; value <= 5; ++value) {
    const auto dtype = static_cast<DType>(value);
    EXPECT_EQ(DTypeSize(dtype), ElementSize(ElementTypeOf(dtype)));
    EXPECT_STREQ(DTypeName(dtype), ElementTypeName(ElementTypeOf(dtype)));
    EXPECT_EQ(IsQuantized(dtype), dtype == DType::kQ8);
    EXPECT_EQ(IsConvertibleFloat(dtype), dtype != DType::kQ8);
    EXPECT_EQ(IsHalf(dtype), dtype == DType::kBF16 || dtype == DType::kF16);
  }
  EXPECT_EQ(DTypeBytes(DType::kQ8, 2 * kQ8Block),
            static_cast<size_t>(2 * (kQ8Block + 4)));
  EXPECT_FALSE(IsElementType(0));
  EXPECT_FALSE(IsElementType(8));
  EXPECT_FALSE(IsElementType(33));
  // They are floats, but are only copied.
  EXPECT_FALSE(IsConvertibleFloat(ElementType::kF8E4M3));
  EXPECT_FALSE(IsConvertibleFloat(ElementType::kF8E5M2));
}

}  // namespace
}  // namespace shard::dtype_test
