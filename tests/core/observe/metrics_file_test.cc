// SPDX-License-Identifier: Apache-2.0

#include "core/observe/metrics_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/temp_folder.h"

namespace shard::metrics_file_test {
namespace {

using testing::NamesIn;
using testing::ReadText;
using testing::TempFolder;

// Opens the metrics of rank 0 in `folder`, "m.rank0.prom".
std::unique_ptr<MetricsFile> OpenIn(const TempFolder& folder) {
  auto opened = MetricsFile::Open(folder / "m.prom", 0);
  EXPECT_OK(opened);
  return *std::move(opened);
}

TEST(MetricsFileTest, TheRankStandsBeforeTheExtension) {
  EXPECT_EQ(MetricsPath("shard.prom", 0), "shard.rank0.prom");
  EXPECT_EQ(MetricsPath("/run.d/shard.prom", 12), "/run.d/shard.rank12.prom");
  EXPECT_EQ(MetricsPath("/run.d/shard", 1), "/run.d/shard.rank1");
  EXPECT_EQ(MetricsPath(".prom", 1), ".prom.rank1");
  EXPECT_EQ(MetricsPath("a/.prom", 1), "a/.prom.rank1");
}

TEST(MetricsFileTest, AFileIsReplacedWhole) {
  const TempFolder folder;
  const auto file = OpenIn(folder);
  EXPECT_OK(file->Replace("first, which is longer\n"));
  EXPECT_OK(file->Replace("second\n"));
  EXPECT_EQ(ReadText(folder / "m.rank0.prom"), "second\n");
  EXPECT_EQ(NamesIn(folder.path()).size(), 1u);
}

// A file that is replaced stays claimed.
TEST(MetricsFileTest, TwoFilesOfOneRankDoNotReplaceEachOther) {
  const TempFolder folder;
  const auto first = OpenIn(folder);
  EXPECT_OK(first->Replace("of the first\n"));
  const auto second = OpenIn(folder);
  EXPECT_OK(second->Replace("of the second\n"));
  EXPECT_OK(first->Replace("of the first, again\n"));
  EXPECT_EQ(first->number(), 1);
  EXPECT_EQ(second->number(), 2);
  EXPECT_EQ(ReadText(folder / "m.rank0.prom"), "of the first, again\n");
  EXPECT_EQ(ReadText(folder / "m.rank0.2.prom"), "of the second\n");
}

TEST(MetricsFileTest, AFileThatIsClosedIsThatOfTheNextRun) {
  const TempFolder folder;
  EXPECT_OK(OpenIn(folder)->Replace("old\n"));
  EXPECT_OK(OpenIn(folder)->Replace("new\n"));
  EXPECT_EQ(ReadText(folder / "m.rank0.prom"), "new\n");
  EXPECT_EQ(NamesIn(folder.path()).size(), 1u);
}

// A process that was killed left a draft; somebody else put a link there.
TEST(MetricsFileTest, WhatStandsWhereTheTextIsWrittenFirstIsReplaced) {
  const TempFolder folder;
  const auto file = OpenIn(folder);
  const std::string path = folder / "m.rank0.prom";
  testing::WriteText(path + ".tmp", "a draft that is longer than the text\n");
  EXPECT_OK(file->Replace("text\n"));
  EXPECT_EQ(ReadText(path), "text\n");
  testing::WriteText(folder / "other", "of somebody else\n");
  std::filesystem::create_symlink(folder / "other", path + ".tmp");
  EXPECT_OK(file->Replace("second\n"));
  EXPECT_EQ(ReadText(path), "second\n");
  EXPECT_EQ(ReadText(folder / "other"), "of somebody else\n");
}

TEST(MetricsFileTest, PathsThatCannotBeFilesAreNamed) {
  const TempFolder folder;
  ExpectError(MetricsFile::Open("/no/such/folder/m.prom", 0),
              StatusCode::kNotFound,
              {"metrics '/no/such/folder/m.rank0.prom'"});
  for (const std::string& path : {folder.path(), folder / "new/"}) {
    ExpectError(MetricsFile::Open(path, 0), StatusCode::kFailedPrecondition,
                {path, "name a file in it"});
  }
  EXPECT_TRUE(NamesIn(folder.path()).empty());
}

TEST(MetricsFileTest, AFullDiskLeavesTheOldText) {
  const TempFolder folder;
  const auto file = OpenIn(folder);
  ASSERT_OK(file->Replace("old\n"));
  testing::InChild([&] {
    testing::LowerLimit(RLIMIT_FSIZE, 100);
    EXPECT_FALSE(file->Replace(std::string(1000, 'x')).ok());
  });
  EXPECT_EQ(ReadText(folder / "m.rank0.prom"), "old\n");
  EXPECT_EQ(NamesIn(folder.path()).size(), 1u);
}

}  // namespace
}  // namespace shard::metrics_file_test
