// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/folder/cleanup.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/strings.h"
#include "core/checkpoint/folder/directory.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/base/unsynced_env.h"
#include "tests/core/checkpoint/test_checkpoint.h"

namespace shard::cleanup_test {
namespace {

using testing::Exists;
using testing::ExpectAllWhole;
using testing::FaultEnv;
using testing::ForwardingEnv;
using testing::kMemoryFolder;
using testing::NamesIn;
using testing::NoSyncEnv;
using testing::PowerCut;
using testing::PutCheckpoint;
using testing::ReadText;
using testing::ResolvedGeneration;
using testing::TempFolder;
using testing::UnsyncedEnv;
using testing::WriteText;

constexpr const char* kStale = "step-000042.tmp-0123456789abcdef";
constexpr const char* kLive = "step-000043.tmp-0123456789abcdef";
constexpr const char* kStaleLatest = "LATEST.tmp-0123456789abcdef";

Directory Open(const std::string& path, FileEnv* env = FileEnv::Posix()) {
  auto directory = Directory::Open(env, path);
  EXPECT_OK(directory);
  return directory.ok() ? *std::move(directory) : Directory();
}

TEST(CleanStale, DeletesEntriesThatNobodyLocks) {
  const TempFolder folder;
  const Directory root = Open(folder.path());
  PutCheckpoint(folder / kStale, 1);
  PutCheckpoint(folder / kLive, 1);
  WriteText(folder / kStaleLatest, "step-00");
  WriteText(folder / "LATEST.tmp-0000000000000001", "step-00");
  PutCheckpoint(folder / "step-000001", 1);
  // These are not temporary files of the library.
  PutCheckpoint(folder / "mine.tmp-0123456789abcdef", 1);
  WriteText(folder / "step-000002.tmp-0123456789abcdef", "a file");
  ASSERT_EQ(::symlink("step-000001",
                      (folder / "step-000003.tmp-0123456789abcdef").c_str()),
            0);
  std::filesystem::create_directory(folder / "LATEST.tmp-0000000000000002");
  const std::set<std::string> before = NamesIn(folder.path());

  const auto live = root.OpenDirectory(kLive);
  ASSERT_OK(live);
  EXPECT_EQ(*ClaimEntry(root, kLive, live->fd()), Claim::kOurs);
  const auto latest =
      File::Open(root, "LATEST.tmp-0000000000000001", File::Mode::kRead);
  ASSERT_OK(latest);
  EXPECT_EQ(*ClaimEntry(root, "LATEST.tmp-0000000000000001", latest->fd()),
            Claim::kOurs);

  auto removed = CleanStale(root);
  ASSERT_OK(removed);
  std::sort(removed->begin(), removed->end());
  EXPECT_EQ(*removed, (std::vector<std::string>{kStaleLatest, kStale}));
  std::set<std::string> expected = before;
  expected.erase(kStale);
  expected.erase(kStaleLatest);
  EXPECT_EQ(NamesIn(folder.path()), expected);
  EXPECT_EQ(ResolvedGeneration(folder.path()), 1);
  EXPECT_TRUE(CleanStale(root)->empty());
}

TEST(CleanStale, KeepsAllWhereThereAreNoLocks) {
  const TempFolder folder;
  PutCheckpoint(folder / kStale, 1);
  for (const int error : {ENOLCK, EOPNOTSUPP, ENOSYS, EBADF, EINVAL}) {
    class NoLocks final : public ForwardingEnv {
     public:
      explicit NoLocks(int error)
          : ForwardingEnv(FileEnv::Posix()), error_(error) {}
      int Lock(int) override { return -error_; }

     private:
      const int error_;
    } env(error);
    const Directory root = Open(folder.path(), &env);
    const auto stale = root.OpenDirectory(kStale);
    ASSERT_OK(stale);
    EXPECT_EQ(*ClaimEntry(root, kStale, stale->fd()), Claim::kUnknown);
    EXPECT_TRUE(CleanStale(root)->empty());
    EXPECT_TRUE(Exists(folder / kStale));
  }
}

// The writer commits its checkpoint after CleanStale has found it and before it
// is locked.
TEST(CleanStale, DeletesNothingThatWasRenamedMeanwhile) {
  const TempFolder folder;
  PutCheckpoint(folder / kStale, 1);
  class Renames final : public ForwardingEnv {
   public:
    Renames() : ForwardingEnv(FileEnv::Posix()) {}
    int Lock(int fd) override {
      std::filesystem::rename(root + "/" + kStale, root + "/step-000042");
      return base()->Lock(fd);
    }
    std::string root;
  } env;
  env.root = folder.path();
  EXPECT_TRUE(CleanStale(Open(folder.path(), &env))->empty());
  EXPECT_EQ(NamesIn(folder.path()), (std::set<std::string>{"step-000042"}));
  EXPECT_EQ(ResolvedGeneration(folder.path()), 1);
}

TEST(ClaimEntry, ClaimsTheEntryThatHasTheNameNow) {
  const TempFolder folder;
  const Directory root = Open(folder.path());
  std::filesystem::create_directory(folder / kStale);
  const auto opened = root.OpenDirectory(kStale);
  const auto again = root.OpenDirectory(kStale);
  ASSERT_OK(opened);
  ASSERT_OK(again);
  EXPECT_EQ(*ClaimEntry(root, kStale, opened->fd()), Claim::kOurs);
  EXPECT_EQ(*ClaimEntry(root, kStale, again->fd()), Claim::kBusy);
  std::filesystem::rename(folder / kStale, folder / "elsewhere");
  EXPECT_EQ(*ClaimEntry(root, kStale, opened->fd()), Claim::kGone);
  std::filesystem::create_directory(folder / kStale);
  EXPECT_EQ(*ClaimEntry(root, kStale, opened->fd()), Claim::kGone);
}

TEST(RemoveTree, RemovesEverythingTheManifestFirst) {
  const TempFolder folder;
  PutCheckpoint(folder / kStale, 1);
  PutCheckpoint(folder / "elsewhere", 2);
  std::filesystem::create_directories(folder / (std::string(kStale) + "/a/b"));
  WriteText(folder / (std::string(kStale) + "/a/b/notes"), "the host's");
  ASSERT_EQ(::symlink("../../elsewhere",
                      (folder / (std::string(kStale) + "/a/link")).c_str()),
            0);
  class Records final : public ForwardingEnv {
   public:
    Records() : ForwardingEnv(FileEnv::Posix()) {}
    int Unlink(int dir, const char* path, int flags) override {
      unlinked.push_back(path);
      return base()->Unlink(dir, path, flags);
    }
    std::vector<std::string> unlinked;
  } env;
  const Directory root = Open(folder.path(), &env);
  EXPECT_OK(RemoveTree(root, kStale));
  EXPECT_EQ(NamesIn(folder.path()), (std::set<std::string>{"elsewhere"}));
  EXPECT_EQ(NamesIn(folder / "elsewhere").size(), 2u);
  EXPECT_EQ(env.unlinked.front(), "manifest.shard");
  EXPECT_OK(RemoveTree(root, kStale));  // It is gone already.
}

// As when another rank makes its file before it learns that the save failed.
TEST(RemoveTree, RemovesWhatIsPutThereMeanwhile) {
  class Writes final : public ForwardingEnv {
   public:
    Writes(std::string file, int times)
        : ForwardingEnv(FileEnv::Posix()),
          times(times),
          file_(std::move(file)) {}
    int Unlink(int dir, const char* path, int flags) override {
      if (flags == AT_REMOVEDIR && times > 0) {
        --times;
        WriteText(file_, "late");
      }
      return base()->Unlink(dir, path, flags);
    }
    int times;

   private:
    const std::string file_;
  };
  const TempFolder folder;
  const std::string late = folder / (std::string(kStale) + "/data-00001.shard");
  PutCheckpoint(folder / kStale, 1);
  Writes once(late, 1);
  EXPECT_OK(RemoveTree(Open(folder.path(), &once), kStale));
  EXPECT_EQ(once.times, 0);
  EXPECT_TRUE(NamesIn(folder.path()).empty());

  // Who goes on writing is left alone.
  PutCheckpoint(folder / kStale, 1);
  Writes always(late, 1000);
  ExpectError(RemoveTree(Open(folder.path(), &always), kStale),
              StatusCode::kFailedPrecondition, {kStale});
  EXPECT_GT(always.times, 0);
}

TEST(RemoveTree, DoesNotFollowAndDoesNotDescendForever) {
  const TempFolder folder;
  const Directory root = Open(folder.path());
  PutCheckpoint(folder / "elsewhere", 2);
  ASSERT_EQ(::symlink("elsewhere", (folder / kStale).c_str()), 0);
  ExpectError(RemoveTree(root, kStale), StatusCode::kFailedPrecondition,
              {kStale});
  EXPECT_EQ(NamesIn(folder / "elsewhere").size(), 2u);
  std::string deep = folder / "deep";
  for (int i = 0; i < 20; ++i) deep += "/d";
  std::filesystem::create_directories(deep);
  ExpectError(RemoveTree(root, "deep"), StatusCode::kFailedPrecondition,
              {"16 folders deep"});
}

TEST(RenameToFree, ReplacesNothing) {
  const TempFolder folder;
  class OldKernel final : public ForwardingEnv {
   public:
    OldKernel() : ForwardingEnv(FileEnv::Posix()) {}
    int Rename(int from_dir, const char* from, int to_dir, const char* to,
               unsigned flags) override {
      if (flags != 0) return -EINVAL;
      return base()->Rename(from_dir, from, to_dir, to, flags);
    }
  } old_kernel;
  PutCheckpoint(folder / "a", 1);
  PutCheckpoint(folder / "b", 2);
  WriteText(folder / "file", "");
  for (FileEnv* env : {FileEnv::Posix(), static_cast<FileEnv*>(&old_kernel)}) {
    const Directory root = Open(folder.path(), env);
    EXPECT_EQ(RenameToFree(root, "a", "b"), -EEXIST);
    EXPECT_EQ(RenameToFree(root, "a", "file"), -EEXIST);
    EXPECT_EQ(RenameToFree(root, "none", "c"), -ENOENT);
    EXPECT_EQ(RenameToFree(root, "a", "c"), 0);
    EXPECT_EQ(RenameToFree(root, "c", "a"), 0);
  }
  std::filesystem::create_directory(folder / "empty");
  EXPECT_EQ(RenameToFree(Open(folder.path()), "a", "empty"), -EEXIST);
  std::filesystem::remove(folder / "empty");
  EXPECT_EQ(NamesIn(folder.path()), (std::set<std::string>{"a", "b", "file"}));
}

struct RetainCase {
  RetainOptions options;
  const char* latest;
  std::vector<int64_t> kept;  // The rest of 0, 5, 10, 15, 20, 25.
};

TEST(Retain, KeepsTheLastEveryNthAndLatest) {
  const RetainCase cases[] = {
      {{.keep_last = 1}, "", {25}},
      {{.keep_last = 2}, "", {20, 25}},
      {{.keep_last = 6}, "", {0, 5, 10, 15, 20, 25}},
      {{.keep_last = INT64_MAX}, "", {0, 5, 10, 15, 20, 25}},
      {{.keep_last = 1, .keep_every = 10}, "", {0, 10, 20, 25}},
      {{.keep_last = 2, .keep_every = 1000}, "", {0, 20, 25}},
      {{.keep_last = 1}, "step-000005\n", {5, 25}},
      {{.keep_last = 1}, "step-000025\n", {25}},
      {{.keep_last = 1}, "../evil\n", {25}},
  };
  for (const RetainCase& test : cases) {
    const TempFolder folder;
    std::vector<int64_t> removed;
    for (const int64_t step : {0, 5, 10, 15, 20, 25}) {
      PutCheckpoint(folder / CheckpointName(step), step);
      if (std::find(test.kept.begin(), test.kept.end(), step) ==
          test.kept.end()) {
        removed.push_back(step);
      }
    }
    if (*test.latest != '\0') WriteText(folder / "LATEST", test.latest);
    std::filesystem::create_directory(folder / "step-000001");  // Incomplete.
    const Directory root = Open(folder.path());
    const auto result = RetainCheckpoints(root, test.options);
    ASSERT_OK(result);
    EXPECT_EQ(*result, removed);
    EXPECT_EQ(*ListCheckpoints(root), test.kept);
    // The other checkpoints are gone, and nothing else is touched.
    EXPECT_EQ(NamesIn(folder.path()).size(),
              test.kept.size() + 1 + (*test.latest != '\0' ? 1 : 0));
  }
}

TEST(Retain, RefusesToKeepNothing) {
  const TempFolder folder;
  PutCheckpoint(folder / "step-000001", 1);
  const Directory root = Open(folder.path());
  ExpectInvalid(RetainCheckpoints(root, {.keep_last = 0}), {"keep_last is 0"});
  ExpectInvalid(RetainCheckpoints(root, {.keep_last = 1, .keep_every = -1}),
                {"keep_every -1"});
  EXPECT_EQ(ResolvedGeneration(folder.path()), 1);
}

// After any fault every complete checkpoint is whole, and the next calls clean
// up.
TEST(Retain, EveryCallMayFail) {
  for (const bool and_after : {false, true}) {
    for (int64_t k = 0;; ++k) {
      const TempFolder folder(kMemoryFolder);
      for (const int64_t step : {1, 2, 3, 4}) {
        PutCheckpoint(folder / CheckpointName(step), step);
      }
      WriteText(folder / "LATEST", "step-000002\n");
      WriteText(folder / kStaleLatest, "step");
      FaultEnv env(NoSyncEnv::Get());
      {
        const Directory root = Open(folder.path(), &env);
        env.Set({.at = k, .and_after = and_after});
        const auto stale = CleanStale(root);
        const auto retained = RetainCheckpoints(root, {.keep_last = 1});
        // Errors of closing a file that was only read are not reported.
        EXPECT_TRUE(!stale.ok() || !retained.ok() || !and_after ||
                    env.calls() <= k + 1)
            << k;
      }
      EXPECT_EQ(env.open_descriptors(), 0) << k;
      EXPECT_EQ(env.wrong_closes(), 0) << k;
      ExpectAllWhole(folder.path());
      EXPECT_EQ(ResolvedGeneration(folder.path()), 2);
      const bool done = env.calls() <= k;
      const Directory root = Open(folder.path(), NoSyncEnv::Get());
      EXPECT_OK(CleanStale(root));
      EXPECT_OK(RetainCheckpoints(root, {.keep_last = 1}));
      EXPECT_EQ(
          NamesIn(folder.path()),
          (std::set<std::string>{"LATEST", "step-000002", "step-000004"}));
      if (done) break;
      EXPECT_LT(k, 1000);
    }
  }
}

// Cuts the power at every call of `env`, in every way, and expects that the
// root in `folder` has only whole checkpoints and resolves to `generation`.
void ExpectWholeAfterEveryPowerCut(const TempFolder& folder, UnsyncedEnv* env,
                                   int64_t generation) {
  env->AtEachCall([&folder, env, generation] {
    for (const auto cut :
         {PowerCut::kLost, PowerCut::kKept, PowerCut::kNamesKept,
          PowerCut::kTruncated, PowerCut::kEntriesLost, PowerCut::kRandom}) {
      for (uint64_t seed = 0; seed < (cut == PowerCut::kRandom ? 8 : 1);
           ++seed) {
        const std::string copy = folder / "copy";
        std::filesystem::remove_all(copy);
        env->AfterPowerCut(cut, seed, copy);
        ExpectAllWhole(copy);
        EXPECT_EQ(ResolvedGeneration(copy), generation);
      }
    }
  });
}

TEST(Retain, LeavesWholeCheckpointsAfterAPowerCut) {
  const TempFolder folder(kMemoryFolder);
  const std::string root = folder / "root";
  for (const int64_t step : {1, 2, 3, 4}) {
    PutCheckpoint(root + "/" + CheckpointName(step), step);
  }
  UnsyncedEnv env(root, NoSyncEnv::Get());
  ExpectWholeAfterEveryPowerCut(folder, &env, 4);
  EXPECT_EQ(RetainCheckpoints(Open(root, &env), {.keep_last = 1})->size(), 3u);
}

// A process that deletes a checkpoint dies after the rename, and another
// process cleans up. A power cut may undo the rename, but must not leave half
// of the checkpoint.
TEST(CleanStale, LeavesWholeCheckpointsAfterAPowerCut) {
  const TempFolder folder(kMemoryFolder);
  const std::string root = folder / "root";
  for (const int64_t step : {1, 42}) {
    PutCheckpoint(root + "/" + CheckpointName(step), step);
  }
  WriteText(root + "/LATEST", "step-000001\n");
  UnsyncedEnv env(root, NoSyncEnv::Get());
  const Directory directory = Open(root, &env);
  ASSERT_EQ(RenameToFree(directory, "step-000042", kStale), 0);
  ExpectWholeAfterEveryPowerCut(folder, &env, 1);
  EXPECT_EQ(CleanStale(directory)->size(), 1u);
}

}  // namespace
}  // namespace shard::cleanup_test
