// SPDX-License-Identifier: Apache-2.0
//
// Errors, versions and element types.

#include <set>
#include <string>

#include "tests/api/api_testing.h"

namespace shard_api_testing::error_test {
namespace {

TEST(ErrorTest, NullIsSuccess) {
  EXPECT_EQ(shard_error_code(nullptr), SHARD_OK);
  EXPECT_STREQ(shard_error_message(nullptr), "");
  EXPECT_EQ(shard_error_rank(nullptr), -1);
  EXPECT_STREQ(shard_error_detail(nullptr), "");
  shard_error_free(nullptr);
}

TEST(ErrorTest, CodesHaveNames) {
  std::set<std::string> names;
  for (shard_code code = 0; code <= 16; ++code) {
    names.insert(shard_code_name(code));
  }
  for (shard_code code = 64; code <= 68; ++code) {
    names.insert(shard_code_name(code));
  }
  EXPECT_EQ(names.size(), 22u);
  EXPECT_EQ(names.count("UNKNOWN_CODE"), 0u);
  EXPECT_STREQ(shard_code_name(SHARD_OK), "OK");
  EXPECT_STREQ(shard_code_name(SHARD_INVALID_ARGUMENT), "INVALID_ARGUMENT");
  EXPECT_STREQ(shard_code_name(SHARD_RANK_LOST), "RANK_LOST");
  EXPECT_STREQ(shard_code_name(SHARD_BACKEND_UNAVAILABLE),
               "BACKEND_UNAVAILABLE");
  for (const shard_code code : {-1, 17, 63, 69, INT32_MAX, INT32_MIN}) {
    EXPECT_STREQ(shard_code_name(code), "UNKNOWN_CODE");
  }
}

TEST(ErrorTest, OutlivesWhatItIsAbout) {
  shard_error* error = nullptr;
  {
    const Model model = SmallModel();
    error = shard_model_freeze(model.get(), 99);
  }
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(shard_error_code(error), SHARD_INVALID_ARGUMENT);
  EXPECT_EQ(shard_error_rank(error), -1);
  EXPECT_STREQ(shard_error_detail(error), "");
  EXPECT_FAILS(error, SHARD_INVALID_ARGUMENT, "99", "0 to 4");
}

// A host may pass in any bytes; the message that it reads is one line of UTF-8.
TEST(ErrorTest, MessagesAreOneLineOfUtf8) {
  const Model model = SmallModel();
  shard_plan_options options = PlanOptions(1);
  options.optimizer = "two\nlines";
  shard_plan* plan = nullptr;
  EXPECT_FAILS(shard_plan_create(model.get(), &options, &plan),
               SHARD_INVALID_ARGUMENT, "two\\x0alines");
  options.optimizer = "\xff\xfe";
  EXPECT_FAILS(shard_plan_create(model.get(), &options, &plan),
               SHARD_INVALID_ARGUMENT, "'\\xff\\xfe'");
  // Text that is UTF-8 stays as it is.
  options.optimizer = "größe";
  EXPECT_FAILS(shard_plan_create(model.get(), &options, &plan),
               SHARD_INVALID_ARGUMENT, "'größe'");
  options.optimizer = "größe\t\xc3";
  EXPECT_FAILS(shard_plan_create(model.get(), &options, &plan),
               SHARD_INVALID_ARGUMENT, "'größe\\x09\\xc3'");
}

TEST(VersionTest, IsThatOfTheHeader) {
  EXPECT_EQ(shard_version(), std::to_string(SHARD_VERSION_MAJOR) + "." +
                                 std::to_string(SHARD_VERSION_MINOR) + "." +
                                 std::to_string(SHARD_VERSION_PATCH));
  EXPECT_EQ(shard_abi_version(), 0);
}

TEST(DTypeTest, NamesAndSizes) {
  std::set<std::string> names;
  for (shard_dtype dtype = -1; dtype <= 64; ++dtype) {
    const std::string name = shard_dtype_name(dtype);
    if (name == "unknown") {
      EXPECT_EQ(shard_dtype_size(dtype), 0u) << dtype;
      continue;
    }
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(shard_dtype_size(dtype) == 0, dtype == SHARD_OPAQUE) << name;
  }
  EXPECT_EQ(names.size(), 17u);
  EXPECT_STREQ(shard_dtype_name(SHARD_BF16), "bf16");
  EXPECT_STREQ(shard_dtype_name(SHARD_OPAQUE), "opaque");
  EXPECT_EQ(shard_dtype_size(SHARD_F64), 8u);
  EXPECT_EQ(shard_dtype_size(SHARD_U16), 2u);
  EXPECT_STREQ(shard_dtype_name(INT32_MIN), "unknown");
}

}  // namespace
}  // namespace shard_api_testing::error_test
