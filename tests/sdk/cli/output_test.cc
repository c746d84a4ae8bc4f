// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/output.h"

#include <gtest/gtest.h>

#include <vector>

namespace shardctl {
namespace {

using Lines = std::vector<std::string>;

// Feeds the pieces one by one, and ends.
Lines Split(bool redraws, const std::vector<std::string>& pieces) {
  Lines lines;
  const auto sink = [&](std::string_view line) { lines.emplace_back(line); };
  LineSplitter splitter(redraws);
  for (const std::string& piece : pieces) splitter.Feed(piece, sink);
  splitter.Finish(sink);
  return lines;
}

TEST(LineSplitterTest, WholeLines) {
  EXPECT_EQ(Split(false, {}), Lines{});
  EXPECT_EQ(Split(false, {"a\nb\n"}), (Lines{"a", "b"}));
  EXPECT_EQ(Split(false, {"a", "b", "\n\nc"}), (Lines{"ab", "", "c"}));
  EXPECT_EQ(Split(false, {"10%\r20%\n"}), Lines{"10%\r20%"});
}

TEST(LineSplitterTest, RedrawnLinesEndAsTheyLook) {
  EXPECT_EQ(Split(true, {"10%\r", "20%\rdone\n"}), Lines{"done"});
  EXPECT_EQ(Split(true, {"\r10%", "\r20%", "\r\n"}), Lines{"20%"});
  EXPECT_EQ(Split(true, {"dos\r\n"}), Lines{"dos"});
  EXPECT_EQ(Split(true, {"10%\r20%\r"}), Lines{"20%"});
}

TEST(LineSplitterTest, Bar) {
  LineSplitter splitter(true);
  const auto sink = [](std::string_view) {};
  splitter.Feed("plain", sink);
  EXPECT_EQ(splitter.bar(), "");
  splitter.Feed("\n10%\r", sink);
  EXPECT_EQ(splitter.bar(), "10%");
  splitter.Feed("20%", sink);
  EXPECT_EQ(splitter.bar(), "20%");
  splitter.Feed("\n", sink);
  EXPECT_EQ(splitter.bar(), "");
}

TEST(LineSplitterTest, EndlessLinesAreBroken) {
  const std::string mebibyte(size_t{1} << 20, 'x');
  EXPECT_EQ(Split(false, {mebibyte, "y\n"}), (Lines{mebibyte, "y"}));
}

}  // namespace
}  // namespace shardctl
