// SPDX-License-Identifier: Apache-2.0

#include "core/base/strings.h"

#include <gtest/gtest.h>

#include <clocale>
#include <cstdint>
#include <limits>
#include <locale>
#include <string>
#include <string_view>
#include <vector>

namespace shard::strings_test {
namespace {

enum class Color : int32_t { kRed = 7 };

TEST(StrCat, JoinsEveryKindOfPiece) {
  EXPECT_EQ(StrCat(), "");
  EXPECT_EQ(StrCat("a", std::string("b"), std::string_view("c"), 'd'), "abcd");
  EXPECT_EQ(StrCat(true, " ", false), "true false");
  EXPECT_EQ(StrCat(-1, " ", size_t{2}, " ", int8_t{-3}, " ", uint8_t{200}),
            "-1 2 -3 200");
  EXPECT_EQ(StrCat(Color::kRed), "7");
  EXPECT_EQ(StrCat(std::numeric_limits<int64_t>::min()),
            "-9223372036854775808");
  EXPECT_EQ(StrCat(std::numeric_limits<uint64_t>::max()),
            "18446744073709551615");
}

TEST(StrCat, FloatsAreShortestAndReadBack) {
  EXPECT_EQ(StrCat(0.1), "0.1");
  EXPECT_EQ(StrCat(3e-4), "3e-04");
  for (const double value :
       {1.0 / 3, 1e300, 5e-324, -0.0, 123456789.123456789}) {
    EXPECT_EQ(ParseDouble(StrCat(value)), value);
  }
}

// A host that groups digits must not change our text.
class Grouping : public std::numpunct<char> {
  char do_thousands_sep() const override { return '\''; }
  std::string do_grouping() const override { return "\3"; }
  char do_decimal_point() const override { return ','; }
};

TEST(StrCat, IgnoresTheGlobalLocale) {
  const std::locale before =
      std::locale::global(std::locale(std::locale(), new Grouping));
  EXPECT_EQ(StrCat(1234567, " ", 0.5), "1234567 0.5");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(ParseDouble("0.5"), 0.5);
  std::locale::global(before);
}

TEST(StrAppend, Appends) {
  std::string out = "x";
  StrAppend(&out, 1, "y");
  EXPECT_EQ(out, "x1y");
}

TEST(FormatList, Formats) {
  using List = std::vector<int64_t>;
  EXPECT_EQ(FormatList(List()), "[]");
  EXPECT_EQ(FormatList(List{5}), "[5]");
  EXPECT_EQ(FormatList(List{2, -3, 4}), "[2, -3, 4]");
}

TEST(FormatBytes, ExactBelowOneKibibyteThenRounded) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(uint64_t{12'900'000}), "12.3 MiB");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 40), "3.0 TiB");
  // There is no unit after PiB, so larger sizes keep it.
  EXPECT_EQ(FormatBytes(uint64_t{1} << 62), "4096.0 PiB");
}

TEST(FormatHex, SixteenDigits) {
  EXPECT_EQ(FormatHex(0), "0x0000000000000000");
  EXPECT_EQ(FormatHex(0xDEADBEEFu), "0x00000000deadbeef");
  EXPECT_EQ(FormatHex(~uint64_t{0}), "0xffffffffffffffff");
}

TEST(ParseInt, TakesTheWholeTextOrNothing) {
  EXPECT_EQ(ParseInt("0"), 0);
  EXPECT_EQ(ParseInt("-42"), -42);
  EXPECT_EQ(ParseInt("9223372036854775807"),
            std::numeric_limits<int64_t>::max());
  for (const char* bad : {"", " 1", "1 ", "1x", "0x10", "+1", "1.0", "--1",
                          "9223372036854775808"}) {
    EXPECT_EQ(ParseInt(bad), std::nullopt) << bad;
  }
}

TEST(ParseDouble, TakesFiniteNumbersOnly) {
  EXPECT_EQ(ParseDouble("1e-3"), 1e-3);
  EXPECT_EQ(ParseDouble("-2"), -2.0);
  for (const char* bad :
       {"", "nan", "inf", "-inf", "1e999", "1,5", "1.5 ", "abc", "0.5.5"}) {
    EXPECT_EQ(ParseDouble(bad), std::nullopt) << bad;
  }
}

TEST(IsValidUtf8, AcceptsWellFormed) {
  EXPECT_TRUE(IsValidUtf8(""));
  EXPECT_TRUE(IsValidUtf8("weight"));
  EXPECT_TRUE(IsValidUtf8("\xC3\xA9"));          // U+00E9
  EXPECT_TRUE(IsValidUtf8("\xE2\x82\xAC"));      // U+20AC
  EXPECT_TRUE(IsValidUtf8("\xF0\x9F\x98\x80"));  // U+1F600
  EXPECT_TRUE(IsValidUtf8("\xF4\x8F\xBF\xBF"));  // U+10FFFF
}

TEST(IsValidUtf8, RejectsEverythingElse) {
  for (const std::string& bad :
       {std::string("a\0b", 3),           // NUL
        std::string("\x80"),              // a continuation byte
        std::string("\xC3"),              // cut short
        std::string("\xE2\x82"),          // cut short
        std::string("\xC3("),             // no continuation
        std::string("\xC0\xAF"),          // overlong '/'
        std::string("\xE0\x80\xAF"),      // overlong
        std::string("\xF0\x80\x80\xAF"),  // overlong
        std::string("\xED\xA0\x80"),      // surrogate U+D800
        std::string("\xF4\x90\x80\x80"),  // above U+10FFFF
        std::string("\xFF")}) {
    EXPECT_FALSE(IsValidUtf8(bad)) << ::testing::PrintToString(bad);
  }
}

TEST(Split, HasOnePieceMoreThanSeparators) {
  using Pieces = std::vector<std::string_view>;
  EXPECT_EQ(Split("a,bc,d", ','), (Pieces{"a", "bc", "d"}));
  EXPECT_EQ(Split("", ','), Pieces{""});
  EXPECT_EQ(Split(",a,,", ','), (Pieces{"", "a", "", ""}));
  EXPECT_EQ(Split("a,b", '|'), Pieces{"a,b"});
}

}  // namespace
}  // namespace shard::strings_test
