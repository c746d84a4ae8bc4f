// SPDX-License-Identifier: Apache-2.0

#include "core/observe/text_line.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace shard::text_line_test {
namespace {

std::string Quoted(std::string_view text) {
  TextLine line;
  line.AppendQuoted(text);
  return std::string(line.view());
}

TEST(TextLineTest, NumbersHaveTheirPoint) {
  TextLine line;
  line.AppendFixed(1234567, 3) << " ";
  line.AppendFixed(5, 9) << " " << int64_t{-7};
  EXPECT_EQ(line.view(), "1234.567 0.000000005 -7");
}

TEST(TextLineTest, QuotedTextReadsBackFromJson) {
  const std::string awkward = "a \"b\" \\ c\nd\te\x01 \x7f größe 模型";
  for (const std::string& text : {std::string(), awkward}) {
    EXPECT_EQ(nlohmann::json::parse(Quoted(text)).get<std::string>(), text);
  }
}

TEST(TextLineTest, BytesThatAreNoCharacterBecomeQuestionMarks) {
  EXPECT_EQ(Quoted("a\xff\xc3"), "\"a??\"");
}

TEST(TextLineTest, LongTextIsCutAtACharacter) {
  std::string text(TextLine::kMostQuoted - 1, 'x');
  const std::string before = text;
  text += "ö and more";
  EXPECT_EQ(nlohmann::json::parse(Quoted(text)).get<std::string>(), before);
}

TEST(TextLineTest, ALineHasAnEnd) {
  TextLine line;
  for (int i = 0; i < 100; ++i) line << std::string(1000, 'y') << int64_t{9};
  EXPECT_LT(line.view().size(), 20000u);
}

}  // namespace
}  // namespace shard::text_line_test
