// SPDX-License-Identifier: Apache-2.0

#include "core/base/dtype.h"

#include <gtest/gtest.h>

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
  EXPECT_STREQ(DTypeName(static_cast<DType>(99)), "unknown");
  EXPECT_EQ(DTypeSize(static_cast<DType>(99)), 0u);
}

}  // namespace
}  // namespace shard::dtype_test
