// SPDX-License-Identifier: Apache-2.0

#include "core/observe/metrics_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/temp_folder.h"

namespace shard::metrics_file_test {
namespace {

using testing::NamesIn;
using testing::ReadText;
using testing::TempFolder;

TEST(MetricsFileTest, TheRankStandsBeforeTheExtension) {
  EXPECT_EQ(MetricsPath("shard.prom", 0), "shard.rank0.prom");
  EXPECT_EQ(MetricsPath("/run.d/shard.prom", 12), "/run.d/shard.rank12.prom");
  EXPECT_EQ(MetricsPath("/run.d/shard", 1), "/run.d/shard.rank1");
  EXPECT_EQ(MetricsPath(".prom", 1), ".prom.rank1");
  EXPECT_EQ(MetricsPath("a/.prom", 1), "a/.prom.rank1");
}

TEST(MetricsFileTest, APathIsSeenFromTheRoot) {
  const TempFolder folder;
  EXPECT_EQ(FromRoot("/run.d/m.prom"), "/run.d/m.prom");
  testing::InChild([&] {
    ASSERT_EQ(::chdir(folder.path().c_str()), 0);
    const std::string path = FromRoot("m.prom");
    ASSERT_EQ(::chdir("/"), 0);
    EXPECT_OK(ReplaceFile(path, "text\n"));
  });
  EXPECT_EQ(ReadText(folder / "m.prom"), "text\n");
}

TEST(MetricsFileTest, AFileIsReplacedWhole) {
  const TempFolder folder;
  const std::string path = folder / "m.prom";
  EXPECT_OK(ReplaceFile(path, "first, which is longer\n"));
  EXPECT_OK(ReplaceFile(path, "second\n"));
  EXPECT_EQ(ReadText(path), "second\n");
  EXPECT_EQ(NamesIn(folder.path()).size(), 1u);
}

// A process that was killed left a draft; somebody else put a link there.
TEST(MetricsFileTest, WhatStandsWhereTheTextIsWrittenFirstIsReplaced) {
  const TempFolder folder;
  const std::string path = folder / "m.prom";
  testing::WriteText(path + ".tmp", "a draft that is longer than the text\n");
  EXPECT_OK(ReplaceFile(path, "text\n"));
  EXPECT_EQ(ReadText(path), "text\n");
  testing::WriteText(folder / "other", "of somebody else\n");
  std::filesystem::create_symlink(folder / "other", path + ".tmp");
  EXPECT_OK(ReplaceFile(path, "second\n"));
  EXPECT_EQ(ReadText(path), "second\n");
  EXPECT_EQ(ReadText(folder / "other"), "of somebody else\n");
}

TEST(MetricsFileTest, AFolderThatDoesNotExistIsNamed) {
  ExpectError(ReplaceFile("/no/such/folder/m.prom", "x"), StatusCode::kNotFound,
              {"metrics '/no/such/folder/m.prom'"});
}

TEST(MetricsFileTest, AFullDiskLeavesTheOldText) {
  const TempFolder folder;
  const std::string path = folder / "m.prom";
  ASSERT_OK(ReplaceFile(path, "old\n"));
  testing::InChild([&] {
    testing::LowerLimit(RLIMIT_FSIZE, 100);
    EXPECT_FALSE(ReplaceFile(path, std::string(1000, 'x')).ok());
  });
  EXPECT_EQ(ReadText(path), "old\n");
  EXPECT_EQ(NamesIn(folder.path()).size(), 1u);
}

}  // namespace
}  // namespace shard::metrics_file_test
