// SPDX-License-Identifier: Apache-2.0

#include "core/observe/text_line.h"

#include <gtest/gtest.h>
#include <limits.h>

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

TEST(TextLineTest, LongTextIsCutBetweenItsEscapes) {
  for (const char byte : {'\x01', '"', '\n', '\xff'}) {
    const std::string text(5000, byte);
    const std::string quoted = Quoted(text);
    EXPECT_LE(quoted.size(), TextLine::kMostQuoted + 2);
    EXPECT_GT(quoted.size(), TextLine::kMostQuoted - 6);
    const std::string read = nlohmann::json::parse(quoted).get<std::string>();
    EXPECT_EQ(read, std::string(read.size(), byte == '\xff' ? '?' : byte));
  }
}

// A pipe takes as many bytes at once.
TEST(TextLineTest, ALineHasAnEnd) {
  TextLine line;
  for (int i = 0; i < 100; ++i) line << std::string(1000, 'y') << int64_t{9};
  EXPECT_LE(line.view().size(), size_t{PIPE_BUF});
  EXPECT_GT(line.view().size(), size_t{PIPE_BUF} - 100);
}

TEST(TextLineTest, TwoLongTextsLeaveRoomForTheRest) {
  TextLine line;
  const std::string text(5000, '\x01');
  line << std::string(900, 'x');
  line.AppendQuoted(text).AppendQuoted(text) << " the end\n";
  EXPECT_TRUE(line.view().ends_with(" the end\n"));
}

}  // namespace
}  // namespace shard::text_line_test
