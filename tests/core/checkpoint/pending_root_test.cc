// SPDX-License-Identifier: Apache-2.0
//
// The root of pending checkpoints: who makes it, and who removes it.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/checkpoint/folder/directory.h"
#include "core/checkpoint/folder/pending.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/checkpoint/test_checkpoint.h"

namespace shard::pending_root_test {
namespace {

using testing::FaultEnv;
using testing::ForwardingEnv;
using testing::NamesIn;
using testing::PutCheckpoint;
using testing::TempFolder;
using testing::WriteFiles;
using testing::WriteText;

using Names = std::set<std::string>;

StatusOr<PendingCheckpoint> Begin(const std::string& root, int64_t step) {
  return PendingCheckpoint::Begin(FileEnv::Posix(), root, step, false);
}

TEST(PendingRoot, IsMadeButNoFolderAboveIt) {
  const TempFolder folder;
  ExpectError(Begin(folder / "a/b", 1), StatusCode::kNotFound,
              {folder / "a/b", "folder above"});
  WriteText(folder / "file", "");
  ExpectError(Begin(folder / "file", 1), StatusCode::kFailedPrecondition,
              {folder / "file"});
  ExpectInvalid(Begin("", 1), {"empty", "name one"});
  PutCheckpoint(folder / "step-000001", 1);
  ExpectInvalid(Begin(folder / "step-000001", 2),
                {"step-000001' is itself a checkpoint"});
  EXPECT_OK(Begin(folder / "root", 1));
}

TEST(PendingRoot, IsRemovedWithTheCheckpointThatHasMadeIt) {
  const TempFolder folder;
  const std::string root = folder / "root";
  {
    const auto pending = Begin(root + "/", 1);
    ASSERT_OK(pending);
    ASSERT_OK(WriteFiles(pending->directory(), 1));
  }
  EXPECT_EQ(NamesIn(folder.path()), Names{});
  {
    const auto pending = Begin(root, 1);
    ASSERT_OK(pending);
    WriteText(root + "/notes", "of the user");
  }
  EXPECT_EQ(NamesIn(root), Names{"notes"});
  // One that was there before stays.
  std::filesystem::remove(root + "/notes");
  EXPECT_OK(Begin(root, 1));
  EXPECT_EQ(NamesIn(folder.path()), Names{"root"});
}

TEST(PendingRoot, OfAnotherIsNeverRemoved) {
  const TempFolder folder;
  const std::string root = folder / "root";
  {
    const auto pending = Begin(root, 1);
    ASSERT_OK(pending);
    std::filesystem::rename(root, folder / "moved");
    std::filesystem::create_directory(root);
  }
  EXPECT_EQ(NamesIn(folder.path()), (Names{"moved", "root"}));
}

TEST(PendingRoot, IsRemovedWhicheverCallFails) {
  const TempFolder folder;
  for (int64_t call = 0;; ++call) {
    FaultEnv env;
    env.Set({.at = call});
    const bool began =
        PendingCheckpoint::Begin(&env, folder / "root", 1, false).ok();
    EXPECT_EQ(env.open_descriptors(), 0);
    if (began && env.calls() <= call) break;
    // The fault may be in the removal itself.
    if (!began) {
      EXPECT_EQ(NamesIn(folder.path()), Names{}) << call;
    }
    std::filesystem::remove_all(folder / "root");
  }
}

// The root that this save made was removed before it was opened, and the user
// has made another one.
TEST(PendingRoot, OfTheUserIsNotTakenForOneThatWasMadeBefore) {
  class Replaces final : public ForwardingEnv {
   public:
    explicit Replaces(std::string root)
        : ForwardingEnv(FileEnv::Posix()), root_(std::move(root)) {}
    int Open(int dir, const char* path, int flags, mode_t mode) override {
      if (root_ == path && ++opened == 2) std::filesystem::remove(root_);
      return base()->Open(dir, path, flags, mode);
    }
    int MakeDir(int dir, const char* path, mode_t mode) override {
      if (opened == 2) std::filesystem::create_directory(root_);
      return base()->MakeDir(dir, path, mode);
    }
    int opened = 0;

   private:
    const std::string root_;
  };
  const TempFolder folder;
  Replaces env(folder / "root");
  EXPECT_OK(PendingCheckpoint::Begin(&env, folder / "root", 1, false));
  EXPECT_EQ(env.opened, 3);
  EXPECT_EQ(NamesIn(folder.path()), Names{"root"});
}

// Another save makes the root just before this one would, fails, and removes
// the root before this one opens it, or before it makes a folder in it.
TEST(PendingRoot, IsMadeAgainWhenItsMakerHasRemovedIt) {
  class AnotherFails final : public ForwardingEnv {
   public:
    AnotherFails(std::string root, bool before_open)
        : ForwardingEnv(FileEnv::Posix()),
          root_(std::move(root)),
          before_open_(before_open) {}
    int Open(int dir, const char* path, int flags, mode_t mode) override {
      if (before_open_ && root_ == path) other_.reset();
      return base()->Open(dir, path, flags, mode);
    }
    int MakeDir(int dir, const char* path, mode_t mode) override {
      if (ParseTemporaryName(path)) {
        other_.reset();
      } else if (others++ == 0) {
        auto other = Begin(root_, 2);
        EXPECT_OK(other);
        if (other.ok()) other_.emplace(*std::move(other));
      }
      return base()->MakeDir(dir, path, mode);
    }
    int others = 0;

   private:
    const std::string root_;
    const bool before_open_;
    std::optional<PendingCheckpoint> other_;
  };
  for (const bool before_open : {false, true}) {
    const TempFolder folder;
    const std::string root = folder / "root";
    AnotherFails env(root, before_open);
    auto pending = PendingCheckpoint::Begin(&env, root, 1, false);
    ASSERT_OK(pending);
    EXPECT_EQ(env.others, 2);
    ASSERT_OK(WriteFiles(pending->directory(), 1));
    ASSERT_OK(pending->Commit());
    EXPECT_EQ(NamesIn(root), (Names{"LATEST", "step-000001"}));
  }
}

}  // namespace
}  // namespace shard::pending_root_test
