// SPDX-License-Identifier: Apache-2.0

#include "core/model/names.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/core/base/expect_status.h"

namespace shard::names_test {
namespace {

TEST(CheckName, AcceptsWhatATerminalTakes) {
  for (const char* name : {"w", "0", " ", "a/b", "..", "\"", "gewicht_\xC3\xBC",
                           "\xC2\xA0", "\xF0\x9F\x98\x80"}) {
    EXPECT_OK(CheckName("name", name, 10));
    EXPECT_TRUE(IsPlainText(name)) << name;
  }
}

TEST(CheckName, SaysWhatIsWrongWithANameThatItEscapes) {
  ExpectInvalid(CheckName("blob name", "", 9), {"the blob name is empty"});
  ExpectInvalid(CheckName("name", "0123456789", 9),
                {"the name '0123456789'", "10 bytes", "at most 9"});
  for (const auto& [name, shown] : {std::pair("a\tb", "'a\\x09b'"),
                                    {"\x7F", "'\\x7f'"},
                                    {"\xC2\x85", "'\\xc2\\x85'"},
                                    {"\x1B[31m", "'\\x1b[31m'"},
                                    {"\xC3\xBC\n", "'\xC3\xBC\\x0a'"}}) {
    ExpectInvalid(CheckName("name", name, 9), {shown, "control character"});
    EXPECT_FALSE(IsPlainText(name));
  }
  ExpectInvalid(CheckName("name", std::string_view("a\0b", 3), 9),
                {"'a\\x00b'", "UTF-8"});
  ExpectInvalid(CheckName("name", "\xC3\xBC\xFF", 9),
                {"'\\xc3\\xbc\\xff'", "UTF-8"});
}

// The place of the byte does not matter, though eight bytes are looked at
// together.
TEST(IsPlainText, LooksAtEveryByte) {
  for (size_t length = 1; length <= 24; ++length) {
    for (size_t at = 0; at < length; ++at) {
      std::string text(length, 'x');
      for (int byte = 0; byte < 256; ++byte) {
        text[at] = static_cast<char>(byte);
        ASSERT_EQ(IsPlainText(text), byte >= 0x20 && byte < 0x7F)
            << byte << " at " << at << " of " << length;
      }
    }
  }
}

TEST(QuoteName, ShortensBetweenCharacters) {
  EXPECT_EQ(QuoteName(std::string(200, 'a')),
            "'" + std::string(200, 'a') + "'");
  EXPECT_EQ(QuoteName(std::string(199, 'a') + "\xC3\xBC"),
            "'" + std::string(199, 'a') + "...'");
}

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
  // These are not whole components, or have nothing after them.
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
}  // namespace shard::names_test
