// SPDX-License-Identifier: Apache-2.0

#include "core/model/names.h"

#include <gtest/gtest.h>

namespace shard {
namespace {

TEST(CleanTensorName, StripsWrappersAnywhere) {
  EXPECT_EQ(CleanTensorName("_fsdp_wrapped_module.a.weight"), "a.weight");
  EXPECT_EQ(CleanTensorName("a._checkpoint_wrapped_module.weight"), "a.weight");
  EXPECT_EQ(CleanTensorName("a._fpw_module.b._orig_mod.weight"), "a.b.weight");
  EXPECT_EQ(CleanTensorName("_orig_mod._fsdp_wrapped_module._fpw_module.w"),
            "w");
}

TEST(CleanTensorName, LeavesTheRestAlone) {
  EXPECT_EQ(CleanTensorName(""), "");
  EXPECT_EQ(CleanTensorName("weight"), "weight");
  EXPECT_EQ(CleanTensorName("a.b.c"), "a.b.c");
  // Not whole components, or nothing after them.
  EXPECT_EQ(CleanTensorName("my_orig_mod.w"), "my_orig_mod.w");
  EXPECT_EQ(CleanTensorName("_orig_mod2.w"), "_orig_mod2.w");
  EXPECT_EQ(CleanTensorName("a._orig_mod"), "a._orig_mod");
}

TEST(CleanTensorName, LeadingModuleOnRequestAndOnce) {
  EXPECT_EQ(CleanTensorName("module.a.w"), "module.a.w");
  EXPECT_EQ(CleanTensorName("module.a.w", true), "a.w");
  EXPECT_EQ(CleanTensorName("module.module.w", true), "module.w");
  EXPECT_EQ(CleanTensorName("_orig_mod.module.w", true), "w");
  EXPECT_EQ(CleanTensorName("a.module.w", true), "a.module.w");
  EXPECT_EQ(CleanTensorName("module", true), "module");
}

TEST(CleanTensorName, IsIdempotent) {
  const std::string once = CleanTensorName("_orig_mod._orig_mod.a.w");
  EXPECT_EQ(once, "a.w");
  EXPECT_EQ(CleanTensorName(once), once);
}

}  // namespace
}  // namespace shard
