// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/folder/pending.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/folder/cleanup.h"
#include "core/checkpoint/folder/directory.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/forwarding_env.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/checkpoint/test_checkpoint.h"

namespace shard::pending_test {
namespace {

using testing::DataOf;
using testing::Exists;
using testing::ForwardingEnv;
using testing::GenerationIn;
using testing::NamesIn;
using testing::PutCheckpoint;
using testing::ReadText;
using testing::ResolvedGeneration;
using testing::SaveGeneration;
using testing::TempFolder;
using testing::WriteFiles;
using testing::WriteText;

using Names = std::set<std::string>;

StatusOr<PendingCheckpoint> Begin(const std::string& root, int64_t step,
                                  bool overwrite = false) {
  return PendingCheckpoint::Begin(FileEnv::Posix(), root, step, overwrite);
}

TEST(Pending, IsSeenOnlyWhenCommitted) {
  const TempFolder folder;
  const std::string root = folder / "ckpt";
  auto pending = Begin(root, 42);
  ASSERT_OK(pending);
  EXPECT_EQ(pending->step(), 42);
  EXPECT_EQ(ParseTemporaryName(pending->name()), "step-000042");
  EXPECT_EQ(pending->directory().path(), root + "/" + pending->name());
  ASSERT_OK(WriteFiles(pending->directory(), 1));
  EXPECT_EQ(ResolvedGeneration(root), -2);
  EXPECT_TRUE(pending->pending());
  ASSERT_OK(pending->Commit());
  EXPECT_FALSE(pending->pending());
  EXPECT_EQ(ResolvedGeneration(root), 1);
  EXPECT_EQ(ReadText(root + "/LATEST"), "step-000042\n");
  EXPECT_EQ(NamesIn(root), (Names{"LATEST", "step-000042"}));
}

TEST(Pending, LatestIsWhatWasCommittedLast) {
  const TempFolder folder;
  const std::string root = folder / "ckpt/";
  ASSERT_OK(SaveGeneration(FileEnv::Posix(), root, 20, 1));
  ASSERT_OK(SaveGeneration(FileEnv::Posix(), root, 10, 2));
  EXPECT_EQ(ResolvedGeneration(root), 2);
  EXPECT_EQ(NamesIn(root), (Names{"LATEST", "step-000010", "step-000020"}));
}

TEST(Pending, DeletesFilesThatAreNotCommitted) {
  const TempFolder root;
  {
    auto pending = Begin(root.path(), 1);
    ASSERT_OK(pending);
    ASSERT_OK(WriteFiles(pending->directory(), 1));
    const PendingCheckpoint moved = *std::move(pending);
    EXPECT_EQ(NamesIn(root.path()), Names{moved.name()});
  }
  EXPECT_EQ(NamesIn(root.path()), Names{});
  auto pending = Begin(root.path(), 1);
  ASSERT_OK(pending);
  ASSERT_OK(WriteFiles(pending->directory(), 1));
  EXPECT_OK(pending->Abandon());
  EXPECT_FALSE(pending->pending());
  EXPECT_EQ(NamesIn(root.path()), Names{});
}

TEST(Pending, NeedsAManifest) {
  const TempFolder root;
  auto pending = Begin(root.path(), 1);
  ASSERT_OK(pending);
  WriteText(pending->directory().path() + "/data-00000.bin", "x");
  ExpectError(pending->Commit(), StatusCode::kFailedPrecondition,
              {"no 'manifest.shard'"});
  EXPECT_TRUE(pending->pending());
  WriteText(pending->directory().path() + "/manifest.shard", "x");
  EXPECT_OK(pending->Commit());
}

TEST(Pending, AnExistingStepIsRefusedBeforeAnythingIsWritten) {
  const TempFolder root;
  ASSERT_OK(SaveGeneration(FileEnv::Posix(), root.path(), 1, 1));
  ExpectError(Begin(root.path(), 1), StatusCode::kAlreadyExists,
              {root / "step-000001", "overwrite"});
  EXPECT_EQ(NamesIn(root.path()), (Names{"LATEST", "step-000001"}));
}

TEST(Pending, OneOfTwoWritersOfAStepWins) {
  const TempFolder root;
  auto first = Begin(root.path(), 1);
  auto second = Begin(root.path(), 1);
  ASSERT_OK(first);
  ASSERT_OK(second);
  ASSERT_OK(WriteFiles(first->directory(), 1));
  ASSERT_OK(WriteFiles(second->directory(), 2));
  ASSERT_OK(second->Commit());
  ExpectError(first->Commit(), StatusCode::kAlreadyExists,
              {root / "step-000001"});
  EXPECT_TRUE(first->pending());
  EXPECT_OK(first->Abandon());
  EXPECT_EQ(NamesIn(root.path()), (Names{"LATEST", "step-000001"}));
  EXPECT_EQ(ResolvedGeneration(root.path()), 2);
}

TEST(Pending, ManyWritersMayCommitAtOnce) {
  constexpr int kWriters = 6;
  for (const bool overwrite : {false, true}) {
    const TempFolder root;
    std::barrier ready(kWriters);
    std::atomic<int> committed{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kWriters; ++i) {
      threads.emplace_back([&, i] {
        auto pending = Begin(root.path(), 1, overwrite);
        EXPECT_OK(pending);
        if (pending.ok()) EXPECT_OK(WriteFiles(pending->directory(), i));
        ready.arrive_and_wait();
        if (!pending.ok()) return;
        // A checkpoint that is being written must not be cleaned up by another
        // thread.
        if (i % 2 == 0)
          EXPECT_OK(
              CleanStale(*Directory::Open(FileEnv::Posix(), root.path())));
        const Status status = pending->Commit();
        if (status.ok()) {
          ++committed;
        } else {
          ExpectError(status, StatusCode::kAlreadyExists, {});
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(committed, overwrite ? kWriters : 1);
    EXPECT_GE(ResolvedGeneration(root.path()), 0);
    EXPECT_OK(CleanStale(*Directory::Open(FileEnv::Posix(), root.path())));
    EXPECT_EQ(NamesIn(root.path()), (Names{"LATEST", "step-000001"}));
  }
}

TEST(Pending, OverwritesWhileAReaderHasItOpen) {
  const TempFolder root;
  ASSERT_OK(SaveGeneration(FileEnv::Posix(), root.path(), 1, 1));
  const auto reader = ResolveCheckpoint(FileEnv::Posix(), root.path());
  ASSERT_OK(reader);
  const auto file =
      File::Open(reader->directory, "data-00000.bin", File::Mode::kRead);
  ASSERT_OK(file);
  ASSERT_OK(SaveGeneration(FileEnv::Posix(), root.path(), 1, 2, true));
  EXPECT_EQ(NamesIn(root.path()), (Names{"LATEST", "step-000001"}));
  EXPECT_EQ(ResolvedGeneration(root.path()), 2);
  // An open file keeps its contents. A file that is not open yet cannot be
  // mixed up with the new checkpoint's.
  std::string text(DataOf(1).size(), '\0');
  EXPECT_OK(file->ReadExactly(0, std::as_writable_bytes(std::span(text))));
  EXPECT_EQ(text, DataOf(1));
  ExpectError(
      File::Open(reader->directory, "manifest.shard", File::Mode::kRead),
      StatusCode::kNotFound, {});
}

TEST(Pending, OverwriteMayFindNothing) {
  const TempFolder root;
  ASSERT_OK(SaveGeneration(FileEnv::Posix(), root.path(), 1, 1, true));
  EXPECT_EQ(ResolvedGeneration(root.path()), 1);
}

TEST(Pending, OverwritesNothingButFolders) {
  const TempFolder root;
  PutCheckpoint(root / "elsewhere", 9);
  for (const bool link : {false, true}) {
    const std::string name = root / "step-000001";
    const auto put = [&] {
      if (link) {
        ASSERT_EQ(::symlink("elsewhere", name.c_str()), 0);
      } else {
        WriteText(name, "a file");
      }
    };
    put();
    ExpectError(Begin(root.path(), 1, true), StatusCode::kFailedPrecondition,
                {name, "not a folder"});
    // The same holds for a file or link that appears later.
    std::filesystem::remove(name);
    auto pending = Begin(root.path(), 1, true);
    ASSERT_OK(pending);
    ASSERT_OK(WriteFiles(pending->directory(), 1));
    put();
    ExpectError(pending->Commit(), StatusCode::kFailedPrecondition,
                {name, "not a folder"});
    EXPECT_TRUE(pending->pending());
    EXPECT_TRUE(Exists(name));
    std::filesystem::remove(name);
  }
  EXPECT_EQ(GenerationIn(root / "elsewhere"), 9);
}

// LATEST may be a link or a folder when a checkpoint is committed.
TEST(Pending, ALatestThatIsALinkIsReplacedAndNotFollowed) {
  const TempFolder folder;
  WriteText(folder / "precious", "precious");
  const std::string root = folder / "root";
  std::filesystem::create_directory(root);
  ASSERT_EQ(::symlink("../precious", (root + "/LATEST").c_str()), 0);
  ASSERT_OK(SaveGeneration(FileEnv::Posix(), root, 1, 1));
  EXPECT_EQ(ReadText(folder / "precious"), "precious");
  EXPECT_FALSE(std::filesystem::is_symlink(root + "/LATEST"));
  // A LATEST that cannot be replaced is an error, and the checkpoint is not
  // committed.
  std::filesystem::remove(root + "/LATEST");
  std::filesystem::create_directory(root + "/LATEST");
  auto pending = Begin(root, 2);
  ASSERT_OK(pending);
  ASSERT_OK(WriteFiles(pending->directory(), 2));
  ExpectError(pending->Commit(), StatusCode::kFailedPrecondition,
              {"replacing", "LATEST"});
  EXPECT_TRUE(pending->pending());
  EXPECT_EQ(ResolvedGeneration(root), 1);
  ASSERT_OK(pending->Abandon());
  EXPECT_EQ(NamesIn(root), (Names{"LATEST", "step-000001"}));
}

// A relative root stays the folder that it named when the checkpoint began.
TEST(Pending, DoesNotDependOnTheWorkingDirectory) {
  const TempFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  auto pending = Begin("ckpt", 1);
  std::filesystem::current_path(before);
  ASSERT_OK(pending);
  ASSERT_OK(WriteFiles(pending->directory(), 1));
  ASSERT_OK(pending->Commit());
  EXPECT_EQ(ResolvedGeneration(folder / "ckpt"), 1);
}

TEST(Pending, KeepsTheUmask) {
  const TempFolder folder;
  const mode_t before = ::umask(027);
  const Status status = SaveGeneration(FileEnv::Posix(), folder / "ckpt", 1, 1);
  EXPECT_EQ(::umask(before), mode_t{027});
  ASSERT_OK(status);
  const auto mode = [&](const char* name) {
    struct stat found;
    EXPECT_EQ(::stat((folder / name).c_str(), &found), 0) << name;
    return found.st_mode & 0777;
  };
  EXPECT_EQ(mode("ckpt"), mode_t{0750});
  EXPECT_EQ(mode("ckpt/step-000001"), mode_t{0750});
  EXPECT_EQ(mode("ckpt/step-000001/manifest.shard"), mode_t{0640});
  EXPECT_EQ(mode("ckpt/LATEST"), mode_t{0640});
}

// --- Other ranks, other processes ------------------------------------------

TEST(OpenPending, OtherRanksWriteIntoTheSameFolder) {
  const TempFolder root;
  auto pending = Begin(root.path(), 1);
  ASSERT_OK(pending);
  {
    const auto other =
        OpenPending(FileEnv::Posix(), root.path(), pending->name());
    ASSERT_OK(other);
    ASSERT_OK(WriteFiles(*other, 5));
  }
  ASSERT_OK(pending->Commit());
  EXPECT_EQ(ResolvedGeneration(root.path()), 5);
  ExpectError(OpenPending(FileEnv::Posix(), root.path(), pending->name()),
              StatusCode::kNotFound, {pending->name()});
}

TEST(OpenPending, TakesOnlyNamesOfPendingCheckpoints) {
  const TempFolder root;
  PutCheckpoint(root / "step-000001", 1);
  const std::string link = "step-000002.tmp-0123456789abcdef";
  ASSERT_EQ(::symlink("step-000001", (root / link).c_str()), 0);
  FileEnv* const env = FileEnv::Posix();
  for (const char* name :
       {"", ".", "..", "step-000001", "LATEST", "LATEST.tmp-0123456789abcdef",
        "../step-000002.tmp-0123456789abcdef"}) {
    ExpectInvalid(OpenPending(env, root.path(), name), {name});
  }
  ExpectError(OpenPending(env, root.path(), link),
              StatusCode::kFailedPrecondition, {link});
}

TEST(Pending, IsNotStaleWhileItsWriterLives) {
  const TempFolder folder;
  const auto root = Directory::Open(FileEnv::Posix(), folder.path());
  ASSERT_OK(root);
  auto pending = Begin(folder.path(), 1);
  ASSERT_OK(pending);
  ASSERT_OK(WriteFiles(pending->directory(), 1));
  EXPECT_TRUE(CleanStale(*root)->empty());
  ASSERT_OK(pending->Commit());
  EXPECT_EQ(ResolvedGeneration(folder.path()), 1);
}

// Another process cleans up at the worst moments: before the new folder is
// opened, and before it is locked. The folder looks stale then.
TEST(Pending, BeginsAgainWhenItWasCleanedBeforeItWasLocked) {
  class CleansBefore final : public ForwardingEnv {
   public:
    CleansBefore(std::string root, bool before_lock)
        : ForwardingEnv(FileEnv::Posix()),
          root_(std::move(root)),
          before_lock_(before_lock) {}
    int Open(int dir, const char* path, int flags, mode_t mode) override {
      if (!before_lock_ && ParseTemporaryName(path)) Clean();
      return base()->Open(dir, path, flags, mode);
    }
    int Lock(int fd) override {
      if (before_lock_) Clean();
      return base()->Lock(fd);
    }
    int cleaned = 0;

   private:
    void Clean() {
      if (cleaned >= 2) return;
      const auto root = Directory::Open(FileEnv::Posix(), root_);
      const auto removed = CleanStale(*root);
      EXPECT_OK(removed);
      EXPECT_EQ(removed->size(), 1u);
      ++cleaned;
    }
    const std::string root_;
    const bool before_lock_;
  };
  for (const bool before_lock : {false, true}) {
    const TempFolder root;
    CleansBefore env(root.path(), before_lock);
    auto pending = PendingCheckpoint::Begin(&env, root.path(), 1, false);
    ASSERT_OK(pending);
    EXPECT_EQ(env.cleaned, 2);
    ASSERT_OK(WriteFiles(pending->directory(), 1));
    ASSERT_OK(pending->Commit());
    EXPECT_EQ(NamesIn(root.path()), (Names{"LATEST", "step-000001"}));
  }
}

// Another process deletes the temporary file of LATEST before it is locked.
TEST(Pending, WritesLatestAgainWhenItWasCleanedBeforeItWasLocked) {
  class Cleans final : public ForwardingEnv {
   public:
    explicit Cleans(std::string root)
        : ForwardingEnv(FileEnv::Posix()), root_(std::move(root)) {}
    int Lock(int fd) override {
      struct stat found;
      if (::fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && cleaned < 2) {
        ++cleaned;
        EXPECT_OK(CleanStale(*Directory::Open(FileEnv::Posix(), root_)));
      }
      return base()->Lock(fd);
    }
    int cleaned = 0;

   private:
    const std::string root_;
  };
  const TempFolder root;
  Cleans env(root.path());
  ASSERT_OK(SaveGeneration(&env, root.path(), 1, 1));
  EXPECT_EQ(env.cleaned, 2);
  EXPECT_EQ(ReadText(root / "LATEST"), "step-000001\n");
}

// --- File systems with fewer features --------------------------------------

TEST(Pending, ReplacesNothingWithoutRenameFlags) {
  class PlainRename final : public ForwardingEnv {
   public:
    PlainRename() : ForwardingEnv(FileEnv::Posix()) {}
    int Rename(int from_dir, const char* from, int to_dir, const char* to,
               unsigned flags) override {
      if (flags != 0) return -EINVAL;
      return base()->Rename(from_dir, from, to_dir, to, flags);
    }
  } env;
  const TempFolder root;
  ASSERT_OK(SaveGeneration(&env, root.path(), 1, 1));
  auto pending = PendingCheckpoint::Begin(&env, root.path(), 2, false);
  ASSERT_OK(pending);
  ASSERT_OK(WriteFiles(pending->directory(), 2));
  PutCheckpoint(root / "step-000002", 3);
  ExpectError(pending->Commit(), StatusCode::kAlreadyExists, {"step-000002"});
  EXPECT_EQ(GenerationIn(root / "step-000002"), 3);

  auto again = PendingCheckpoint::Begin(&env, root.path(), 1, true);
  ASSERT_OK(again);
  ASSERT_OK(WriteFiles(again->directory(), 4));
  ExpectError(again->Commit(), StatusCode::kUnimplemented,
              {root / "step-000001", "delete it"});
  EXPECT_TRUE(again->pending());
  EXPECT_EQ(ResolvedGeneration(root.path()), 1);
}

TEST(Pending, WorksWithoutLocks) {
  class NoLocks final : public ForwardingEnv {
   public:
    NoLocks() : ForwardingEnv(FileEnv::Posix()) {}
    int Lock(int) override { return -ENOLCK; }
  } env;
  const TempFolder root;
  ASSERT_OK(SaveGeneration(&env, root.path(), 1, 1));
  ASSERT_OK(SaveGeneration(&env, root.path(), 1, 2, true));
  EXPECT_EQ(ResolvedGeneration(root.path()), 2);
  EXPECT_EQ(NamesIn(root.path()), (Names{"LATEST", "step-000001"}));
}

}  // namespace
}  // namespace shard::pending_test
