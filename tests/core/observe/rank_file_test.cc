// SPDX-License-Identifier: Apache-2.0

#include "core/observe/rank_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/temp_folder.h"

namespace shard::rank_file_test {
namespace {

using testing::NamesIn;
using testing::ReadText;
using testing::TempFolder;

class RankFileTest : public ::testing::Test {
 protected:
  // Opens the metrics of rank 0.
  std::unique_ptr<RankFile> Open() const {
    auto opened =
        RankFile::Open("the metrics", "m.prom", folder_ / "m.prom", 0);
    EXPECT_OK(opened);
    return *std::move(opened);
  }

  const TempFolder folder_;
  const std::string path_ = folder_ / "m.rank0.prom";
};

TEST_F(RankFileTest, TheRankStandsBeforeTheExtension) {
  EXPECT_EQ(RankPath("shard.prom", 0), "shard.rank0.prom");
  EXPECT_EQ(RankPath("/run.d/shard.prom", 12), "/run.d/shard.rank12.prom");
  EXPECT_EQ(RankPath("/run.d/shard", 1), "/run.d/shard.rank1");
  EXPECT_EQ(RankPath(".prom", 1), ".prom.rank1");
  EXPECT_EQ(RankPath("a/.prom", 1), "a/.prom.rank1");
}

TEST_F(RankFileTest, AFileIsReplacedWhole) {
  const auto file = Open();
  EXPECT_OK(file->Replace("first, which is longer\n"));
  EXPECT_OK(file->Replace("second\n"));
  EXPECT_EQ(ReadText(path_), "second\n");
  EXPECT_EQ(NamesIn(folder_.path()).size(), 1u);
}

// A file that is replaced stays claimed.
TEST_F(RankFileTest, TwoFilesOfOneRankDoNotReplaceEachOther) {
  const auto first = Open();
  EXPECT_OK(first->Replace("of the first\n"));
  const auto second = Open();
  EXPECT_OK(second->Replace("of the second\n"));
  EXPECT_OK(first->Replace("of the first, again\n"));
  EXPECT_EQ(first->number(), 1);
  EXPECT_EQ(second->number(), 2);
  EXPECT_EQ(ReadText(path_), "of the first, again\n");
  EXPECT_EQ(ReadText(folder_ / "m.rank0.2.prom"), "of the second\n");
}

TEST_F(RankFileTest, AFileThatIsClosedIsThatOfTheNextRun) {
  EXPECT_OK(Open()->Replace("old\n"));
  EXPECT_OK(Open()->Replace("new\n"));
  EXPECT_EQ(ReadText(path_), "new\n");
  EXPECT_EQ(NamesIn(folder_.path()).size(), 1u);
}

// A process that was killed left a draft; somebody else put a link there.
TEST_F(RankFileTest, WhatStandsWhereTheTextIsWrittenFirstIsReplaced) {
  const auto file = Open();
  testing::WriteText(path_ + ".tmp", "a draft that is longer than the text\n");
  EXPECT_OK(file->Replace("text\n"));
  EXPECT_EQ(ReadText(path_), "text\n");
  testing::WriteText(folder_ / "other", "of somebody else\n");
  std::filesystem::create_symlink(folder_ / "other", path_ + ".tmp");
  EXPECT_OK(file->Replace("second\n"));
  EXPECT_EQ(ReadText(path_), "second\n");
  EXPECT_EQ(ReadText(folder_ / "other"), "of somebody else\n");
}

TEST_F(RankFileTest, PathsThatCannotBeFilesAreNamed) {
  ExpectError(
      RankFile::Open("the metrics", "m.prom", "/no/such/folder/m.prom", 0),
      StatusCode::kNotFound, {"metrics '/no/such/folder/m.rank0.prom'"});
  for (const std::string& path : {folder_.path(), folder_ / "new/"}) {
    ExpectError(RankFile::Open("the metrics", "m.prom", path, 0),
                StatusCode::kFailedPrecondition, {path, "name a file in it"});
  }
  EXPECT_TRUE(NamesIn(folder_.path()).empty());
}

TEST_F(RankFileTest, AFullDiskLeavesTheOldText) {
  const auto file = Open();
  ASSERT_OK(file->Replace("old\n"));
  testing::InChild([&] {
    testing::LowerLimit(RLIMIT_FSIZE, 100);
    EXPECT_FALSE(file->Replace(std::string(1000, 'x')).ok());
  });
  EXPECT_EQ(ReadText(path_), "old\n");
  EXPECT_EQ(NamesIn(folder_.path()).size(), 1u);
}

}  // namespace
}  // namespace shard::rank_file_test
