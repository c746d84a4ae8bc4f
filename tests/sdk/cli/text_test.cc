// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sdk/cli/handles.h"
#include "sdk/cli/progress.h"
#include "sdk/cli/table.h"

namespace shardctl::text_test {
namespace {

TEST(TextTest, HarmlessTextStays) {
  EXPECT_EQ(Shown("h.0.attn.weight"), "h.0.attn.weight");
  EXPECT_EQ(Shown("größe 模型 🙂"), "größe 模型 🙂");
}

TEST(TextTest, ControlCharactersAreWritten) {
  EXPECT_EQ(Shown("a\x1b[31mb\nc\td\re"), "a\\x1b[31mb\\nc\\td\\x0de");
  EXPECT_EQ(Shown("\x7f"), "\\x7f");
  EXPECT_EQ(Shown(std::string("a\0b", 3)), "a\\x00b");
  // U+009B is a C1 control that is a CSI by itself.
  EXPECT_EQ(Shown("\xc2\x9b"
                  "2J"),
            "\\u{9b}2J");
  // Text that looks like an escape is distinguished from one.
  EXPECT_EQ(Shown("a\\nb"), "a\\\\nb");
  // Escapes in a message are not escaped again.
  EXPECT_EQ(ShownMessage("a\\x1b\x1b"), "a\\x1b\\x1b");
}

TEST(TextTest, DirectionMarksAndHiddenCharactersAreEscaped) {
  EXPECT_EQ(Shown("\xe2\x80\xae"
                  "gnp"),
            "\\u{202e}gnp");
  EXPECT_EQ(Shown("a\xe2\x80\x8b"
                  "b"),
            "a\\u{200b}b");
  EXPECT_EQ(Shown("\xef\xbb\xbf"), "\\u{feff}");
  EXPECT_EQ(Shown("\xe2\x80\xa8"), "\\u{2028}");
  EXPECT_EQ(Shown("\xf3\xa0\x81\x81"), "\\u{e0041}");
}

TEST(TextTest, BytesThatAreNoUtf8AreWritten) {
  EXPECT_EQ(Shown("\xff"
                  "a"),
            "\\xffa");
  EXPECT_EQ(Shown("\xc3"), "\\xc3");                    // It is cut off.
  EXPECT_EQ(Shown("\xc0\xaf"), "\\xc0\\xaf");           // It is overlong.
  EXPECT_EQ(Shown("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // It is a surrogate.
  EXPECT_EQ(Shown("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(TextTest, Html) {
  EXPECT_EQ(HtmlText("<a href=\"x\" b='y'>&amp;\n"),
            "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;amp;\\n");
}

TEST(TextTest, Bytes) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(1023), "1,023 B");
  EXPECT_EQ(BytesText(1024), "1.00 KiB");
  EXPECT_EQ(BytesText(12345678), "11.8 MiB");
  EXPECT_EQ(BytesText(uint64_t{500} << 30), "500 GiB");
  // It is not "1024.00 MiB".
  EXPECT_EQ(BytesText((uint64_t{1} << 30) - 1), "1.00 GiB");
  EXPECT_EQ(BytesText(UINT64_MAX), "16.0 EiB");
}

TEST(TextTest, Counts) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(1000), "1,000");
  EXPECT_EQ(CountText(124439808), "124,439,808");
  EXPECT_EQ(ShortCount(124439808), "124 M");
  EXPECT_EQ(ShortCount(999600), "1 M");
}

TEST(TextTest, Seconds) {
  EXPECT_EQ(SecondsText(0.00085), "850 us");
  EXPECT_EQ(SecondsText(0.0123), "12.3 ms");
  EXPECT_EQ(SecondsText(4.561), "4.56 s");
  EXPECT_EQ(SecondsText(100), "1 min 40 s");
  EXPECT_EQ(SecondsText(7380), "2 h 03 min");
  EXPECT_EQ(SecondsText(NAN), "-");
  EXPECT_EQ(SecondsText(INFINITY), "-");
}

TEST(TextTest, ParsesBytes) {
  EXPECT_EQ(ParseBytes("4096"), 4096u);
  EXPECT_EQ(ParseBytes("5GB"), 5000000000u);
  EXPECT_EQ(ParseBytes("1.5 KiB"), 1536u);
  for (const char* const wrong :
       {"", "GB", "5 apples", "-1", "0", "1e30", "nan", "5GBx", "inf"}) {
    EXPECT_THROW(ParseBytes(wrong), Failure) << wrong;
  }
}

TEST(TextTest, MatchesAsAShellButOverDots) {
  EXPECT_TRUE(Matches("h.*.weight", "h.0.attn.weight"));
  EXPECT_FALSE(Matches("h.*.weight", "h.0.bias"));
  EXPECT_TRUE(Matches("*", ".hidden/x"));
}

TEST(TableTest, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({"key", ">bytes", "note"});
  table.Add({"a", "1", ""});
  table.Add({"größer", "10,000", "x"});
  EXPECT_EQ(table.Text("  "),
            "  key      bytes  note\n"
            "  a            1\n"
            "  größer  10,000  x\n");
}

TEST(ProgressTest, BarHasWhatFits) {
  const uint64_t gib = uint64_t{1} << 30;
  EXPECT_EQ(BarText("verifying", gib, 4 * gib, 2, 100),
            "verifying  25% [#####               ]  1.00 GiB of 4.00 GiB, "
            "512 MiB/s, 6 s left");
  EXPECT_EQ(BarText("verifying", gib, 4 * gib, 2, 60),
            "verifying  25%  1.00 GiB of 4.00 GiB, 512 MiB/s, 6 s left");
  EXPECT_EQ(BarText("verifying", gib, 4 * gib, 2, 50),
            "verifying  25%  1.00 GiB of 4.00 GiB, 512 MiB/s");
  EXPECT_EQ(BarText("verifying", gib, 4 * gib, 2, 20), "verifying  25%");
  EXPECT_EQ(BarText("verifying", gib, 4 * gib, 2, 5), "veri");
}

TEST(ProgressTest, BarOfNothingAndOfTooMuch) {
  EXPECT_EQ(BarText("x", 0, 0, 0, 80),
            "x 100% [####################]  0 B of 0 B");
  EXPECT_EQ(BarText("x", 9, 8, 0, 80),
            "x 100% [####################]  8 B of 8 B");
  // The bar does not show 100% before the end.
  EXPECT_EQ(BarText("x", 9999, 10000, 0, 10), "x  99%");
}

}  // namespace
}  // namespace shardctl::text_test
