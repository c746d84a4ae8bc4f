// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/folder/directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file_env.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/checkpoint/test_checkpoint.h"

namespace shard::directory_test {
namespace {

using testing::FaultEnv;
using testing::GenerationIn;
using testing::PutCheckpoint;
using testing::TempFolder;
using testing::WriteText;

StatusOr<OpenCheckpoint> Resolve(const std::string& path) {
  return ResolveCheckpoint(FileEnv::Posix(), path);
}

// Returns the name of the resolved folder, or "" on an error.
std::string ResolvedName(const std::string& path) {
  const auto opened = Resolve(path);
  EXPECT_OK(opened);
  return opened.ok() ? opened->name : "";
}

TEST(CheckpointName, HasOneFormPerStep) {
  EXPECT_EQ(CheckpointName(0), "step-000000");
  EXPECT_EQ(CheckpointName(42), "step-000042");
  EXPECT_EQ(CheckpointName(1234567), "step-1234567");
  for (const int64_t step : {int64_t{0}, int64_t{42}, int64_t{999999},
                             int64_t{1000000}, INT64_MAX}) {
    EXPECT_EQ(ParseCheckpointName(CheckpointName(step)), step);
  }
  for (const char* wrong :
       {"", "step-", "step-42", "step-0000042", "step-00004x", "step--00042",
        "step-+00042", "step-000042 ", " step-000042", "Step-000042",
        "step-000042/", "../step-000042", "step-99999999999999999999",
        "step-000042.tmp-0123456789abcdef"}) {
    EXPECT_FALSE(ParseCheckpointName(wrong)) << wrong;
  }
  EXPECT_FALSE(ParseCheckpointName(std::string_view("step-000042\0", 12)));
}

TEST(TemporaryName, IsRandomAndParsed) {
  const auto name = TemporaryName("step-000042");
  ASSERT_OK(name);
  EXPECT_EQ(name->size(), 11u + 5 + 16);
  EXPECT_EQ(ParseTemporaryName(*name), "step-000042");
  EXPECT_NE(*TemporaryName("step-000042"), *name);
  EXPECT_EQ(ParseTemporaryName("LATEST.tmp-0123456789abcdef"), "LATEST");
  for (const char* wrong :
       {"", "step-000042", ".tmp-0123456789abcdef",
        "step-000042.tmp-0123456789abcde", "step-000042.tmp-0123456789ABCDEF",
        "step-000042.tmp-0123456789abcdef0", "step-000042-tmp.0123456789abcdef",
        "mine.tmp-0123456789abcdef", "step-42.tmp-0123456789abcdef",
        "../step-000042.tmp-0123456789abcdef"}) {
    EXPECT_FALSE(ParseTemporaryName(wrong)) << wrong;
  }
}

TEST(Resolve, TakesACheckpointItself) {
  const TempFolder folder;
  PutCheckpoint(folder / "mine", 7);
  ASSERT_EQ(::symlink("mine", (folder / "link").c_str()), 0);
  for (const char* path : {"mine", "mine/", "mine//", "link"}) {
    const auto opened = Resolve(folder / path);
    ASSERT_OK(opened);
    EXPECT_EQ(opened->name, path[0] == 'm' ? "mine" : "link");
    EXPECT_EQ(opened->note, "");
    EXPECT_EQ(GenerationIn(opened->directory.path()), 7);
  }
}

TEST(Resolve, TakesTheCheckpointThatLatestNames) {
  const TempFolder root;
  for (const int64_t step : {1, 2, 3}) {
    PutCheckpoint(root / CheckpointName(step), step);
  }
  for (const char* text : {"step-000002\n", "step-000002"}) {
    WriteText(root / "LATEST", text);
    const auto opened = Resolve(root.path());
    ASSERT_OK(opened);
    EXPECT_EQ(opened->name, "step-000002");
    EXPECT_EQ(opened->directory.path(), root / "step-000002");
    EXPECT_EQ(opened->note, "");
  }
}

TEST(Resolve, TakesTheHighestStepWithoutLatest) {
  const TempFolder root;
  // Steps are compared as numbers, not as text.
  for (const int64_t step : {999999, 1000000, 3}) {
    PutCheckpoint(root / CheckpointName(step), step);
  }
  std::filesystem::create_directory(root / "step-2000000");  // No manifest.
  PutCheckpoint(root / "step-3000000.tmp-0123456789abcdef", 1);
  PutCheckpoint(root / "step-04000000", 1);
  const auto opened = Resolve(root.path());
  ASSERT_OK(opened);
  EXPECT_EQ(opened->name, "step-1000000");
  EXPECT_NE(opened->note.find("LATEST' is missing"), std::string::npos)
      << opened->note;
  EXPECT_NE(opened->note.find("taking 'step-1000000'"), std::string::npos);
}

TEST(Resolve, LatestIsNotTrusted) {
  const TempFolder folder;
  const std::string root = folder / "root";
  for (const int64_t step : {1, 2}) {
    PutCheckpoint(root + "/" + CheckpointName(step), step);
  }
  PutCheckpoint(folder / "step-000009", 9);
  PutCheckpoint(root + "/other", 9);
  std::filesystem::create_directory(root + "/step-000005");
  ASSERT_EQ(::symlink("../step-000009", (root + "/step-000007").c_str()), 0);
  // The manifest itself may be a link.
  std::filesystem::create_directory(root + "/step-000008");
  ASSERT_EQ(::symlink("../step-000001/manifest.shard",
                      (root + "/step-000008/manifest.shard").c_str()),
            0);
  const std::string texts[] = {
      "",
      "\n",
      "../step-000009\n",
      folder / "step-000009",
      "other\n",
      "step-000001/../../step-000009",
      "./step-000001",
      "step-000001\n\n",
      "step-000001\nstep-000001\n",
      "step-000001\r\n",
      "step-1",
      std::string("step-000001\0", 12),
      "step-000003\n",  // Does not exist.
      "step-000005\n",  // Has no manifest.
      "step-000007\n",  // Is a link.
      "step-000008\n",
      std::string(1 << 20, 'x'),
      "step-" + std::string(100, '1'),
  };
  for (const std::string& text : texts) {
    WriteText(root + "/LATEST", text);
    EXPECT_EQ(ResolvedName(root), "step-000002") << text.substr(0, 100);
    EXPECT_NE(Resolve(root)->note, "");
  }
}

TEST(Resolve, LatestMustBeARegularFile) {
  const TempFolder folder;
  const std::string latest = folder / "LATEST";
  for (const int64_t step : {1, 2}) {
    PutCheckpoint(folder / CheckpointName(step), step);
  }
  WriteText(folder / "text", "step-000001\n");
  ASSERT_EQ(::symlink("text", latest.c_str()), 0);
  EXPECT_EQ(ResolvedName(folder.path()), "step-000002");
  std::filesystem::remove(latest);
  ASSERT_EQ(::mkfifo(latest.c_str(), 0600), 0);
  EXPECT_EQ(ResolvedName(folder.path()), "step-000002");
  std::filesystem::remove(latest);
  std::filesystem::create_directory(latest);
  EXPECT_EQ(ResolvedName(folder.path()), "step-000002");
}

TEST(Resolve, SaysWhatItLookedFor) {
  const TempFolder folder;
  ExpectError(Resolve(folder / "none"), StatusCode::kNotFound,
              {folder / "none"});
  ExpectError(
      Resolve(folder.path()), StatusCode::kNotFound,
      {folder.path(), "manifest.shard", "LATEST' is missing", "step-000000"});
  WriteText(folder / "LATEST", "step-000003\n");
  ExpectError(Resolve(folder.path()), StatusCode::kNotFound,
              {"names 'step-000003'"});
  ExpectError(Resolve(folder / "LATEST"), StatusCode::kFailedPrecondition,
              {folder / "LATEST"});
  PutCheckpoint(folder / "step-000004.tmp-0123456789abcdef", 4);
  ExpectError(Resolve(folder / "step-000004.tmp-0123456789abcdef"),
              StatusCode::kFailedPrecondition, {"not completed"});
}

// A device that fails must not make a run continue from another checkpoint.
TEST(Resolve, AFailingCallIsAnErrorAndNotAnotherCheckpoint) {
  const TempFolder root;
  for (const int64_t step : {1, 2}) {
    PutCheckpoint(root / CheckpointName(step), step);
  }
  WriteText(root / "LATEST", "step-000001\n");
  for (const int error : {EIO, EACCES, EMFILE}) {
    for (int64_t k = 0;; ++k) {
      FaultEnv env;
      env.Set({.at = k, .error = error});
      {
        const auto opened = ResolveCheckpoint(&env, root.path());
        if (opened.ok()) {
          EXPECT_EQ(opened->name, "step-000001") << k;
        } else {
          ExpectError(opened, ErrnoStatus("", error).code(), {root.path()});
        }
      }
      EXPECT_EQ(env.open_descriptors(), 0) << k;
      if (env.calls() <= k) break;
      EXPECT_LT(k, 100);
    }
  }
  FaultEnv interrupted;
  interrupted.Set({.every = 2, .error = EINTR});
  const auto opened = ResolveCheckpoint(&interrupted, root.path());
  ASSERT_OK(opened);
  EXPECT_EQ(opened->name, "step-000001");
}

TEST(ListCheckpoints, ListsCompleteCheckpointsByStep) {
  const TempFolder folder;
  for (const int64_t step : {30, 1000000, 7, 999999}) {
    PutCheckpoint(folder / CheckpointName(step), step);
  }
  std::filesystem::create_directory(folder / "step-000001");
  PutCheckpoint(folder / "step-000002.tmp-0123456789abcdef", 2);
  PutCheckpoint(folder / "step-3", 3);
  WriteText(folder / "step-000004", "a file");
  ASSERT_EQ(::symlink("step-000030", (folder / "step-000005").c_str()), 0);
  const auto root = Directory::Open(FileEnv::Posix(), folder.path());
  ASSERT_OK(root);
  EXPECT_EQ(*ListCheckpoints(*root),
            (std::vector<int64_t>{7, 30, 999999, 1000000}));
}

}  // namespace
}  // namespace shard::directory_test
