// SPDX-License-Identifier: Apache-2.0

#include "core/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/temp_folder.h"

namespace shard::file_test {
namespace {

using testing::Fault;
using testing::FaultEnv;
using testing::ForwardingEnv;
using testing::NamesIn;
using testing::ReadText;
using testing::TempFolder;
using testing::WriteText;

std::string Pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) {
    text[i] = static_cast<char>((i * 7 + i / 4096) % 251);
  }
  return text;
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

StatusOr<std::string> Read(const File& file, uint64_t offset, size_t bytes) {
  std::string text(bytes, '\0');
  SHARD_RETURN_IF_ERROR(
      file.ReadExactly(offset, std::as_writable_bytes(std::span(text))));
  return text;
}

// Frees memory at a multiple of File::kDirectAlignment.
struct Free {
  void operator()(std::byte* data) const { std::free(data); }
};
using Aligned = std::unique_ptr<std::byte[], Free>;

Aligned AlignedCopy(const std::string& text) {
  void* data = nullptr;
  EXPECT_EQ(posix_memalign(&data, File::kDirectAlignment, text.size()), 0);
  std::memcpy(data, text.data(), text.size());
  return Aligned(static_cast<std::byte*>(data));
}

TEST(File, ReadsWhatWasWritten) {
  const TempFolder folder;
  FileEnv* const env = FileEnv::Posix();
  const std::string text = Pattern(10000);
  const auto directory = Directory::Open(env, folder.path());
  ASSERT_OK(directory);
  {
    auto file = File::Open(*directory, "data", File::Mode::kCreate);
    ASSERT_OK(file);
    EXPECT_EQ(file->path(), folder / "data");
    EXPECT_FALSE(file->direct());
    EXPECT_OK(file->WriteExactly(4000, BytesOf(text).subspan(4000)));
    EXPECT_OK(file->WriteExactly(0, BytesOf(text).first(4000)));
    EXPECT_OK(file->WriteExactly(0, {}));
    EXPECT_OK(file->Sync());
    EXPECT_EQ(*file->Size(), 10000u);
    EXPECT_OK(file->Close());
  }
  EXPECT_EQ(ReadText(folder / "data"), text);
  auto file = File::Open(env, folder / "data", File::Mode::kRead);
  ASSERT_OK(file);
  EXPECT_EQ(*Read(*file, 0, 10000), text);
  EXPECT_EQ(*Read(*file, 9990, 10), text.substr(9990));
  ExpectError(file->WriteExactly(0, BytesOf(text)), StatusCode::kInternal,
              {folder / "data"});
}

TEST(File, WritesIntoAnExistingOne) {
  const TempFolder folder;
  WriteText(folder / "data", "0123456789");
  FileEnv* const env = FileEnv::Posix();
  const auto file = File::Open(env, folder / "data", File::Mode::kWrite);
  ASSERT_OK(file);
  EXPECT_OK(file->WriteExactly(3, BytesOf("abc")));
  EXPECT_EQ(ReadText(folder / "data"), "012abc6789");
  ExpectError(File::Open(env, folder / "other", File::Mode::kWrite),
              StatusCode::kNotFound, {folder / "other"});
}

TEST(File, AnEarlyEndIsCorrupt) {
  const TempFolder folder;
  WriteText(folder / "data", "0123456789");
  const auto file =
      File::Open(FileEnv::Posix(), folder / "data", File::Mode::kRead);
  ASSERT_OK(file);
  ExpectError(Read(*file, 4, 9), StatusCode::kCorrupt,
              {folder / "data", "3 bytes short", "offset 4"});
  ExpectError(Read(*file, 100, 2), StatusCode::kCorrupt, {"2 bytes short"});
  ExpectError(Read(*file, UINT64_MAX, 1), StatusCode::kOutOfRange,
              {"18446744073709551615"});
  ExpectError(Read(*file, INT64_MAX, 1), StatusCode::kOutOfRange, {});
}

TEST(File, OnlyRegularFilesAndNoLinks) {
  const TempFolder folder;
  FileEnv* const env = FileEnv::Posix();
  WriteText(folder / "data", "secret");
  ASSERT_EQ(::symlink((folder / "data").c_str(), (folder / "link").c_str()), 0);
  ASSERT_EQ(::symlink("nowhere", (folder / "dangling").c_str()), 0);
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  ASSERT_EQ(::mkdir((folder / "folder").c_str(), 0700), 0);
  for (const auto mode : {File::Mode::kRead, File::Mode::kWrite}) {
    ExpectError(File::Open(env, folder / "link", mode),
                StatusCode::kFailedPrecondition, {"link", "symbolic"});
    // Opening must not wait for the other end of the FIFO.
    ExpectError(File::Open(env, folder / "fifo", mode),
                StatusCode::kFailedPrecondition, {"not a regular file"});
    ExpectError(File::Open(env, folder / "folder", mode),
                StatusCode::kFailedPrecondition, {folder / "folder"});
  }
  for (const char* name : {"data", "link", "dangling", "fifo", "folder"}) {
    ExpectError(File::Open(env, folder / name, File::Mode::kCreate),
                StatusCode::kAlreadyExists, {name});
  }
  EXPECT_EQ(ReadText(folder / "data"), "secret");
  EXPECT_FALSE(NamesIn(folder.path()).contains("nowhere"));
}

TEST(File, ClosedOnExec) {
  const TempFolder folder;
  FileEnv* const env = FileEnv::Posix();
  const auto directory = Directory::Open(env, folder.path());
  ASSERT_OK(directory);
  EXPECT_TRUE(::fcntl(directory->fd(), F_GETFD) & FD_CLOEXEC);
  const auto file = File::Open(*directory, "data", File::Mode::kCreate);
  ASSERT_OK(file);
  EXPECT_TRUE(::fcntl(file->fd(), F_GETFD) & FD_CLOEXEC);
}

// A file system that reports a failed sync once, as the kernel does.
class SyncFailsOnce final : public ForwardingEnv {
 public:
  SyncFailsOnce() : ForwardingEnv(FileEnv::Posix()) {}
  int Sync(int fd) override { return ++syncs == 1 ? -EIO : base()->Sync(fd); }
  int syncs = 0;
};

TEST(File, ASyncErrorIsFinal) {
  const TempFolder folder;
  SyncFailsOnce env;
  auto file = File::Open(&env, folder / "data", File::Mode::kCreate);
  ASSERT_OK(file);
  EXPECT_OK(file->WriteExactly(0, BytesOf("x")));
  for (int i = 0; i < 2; ++i) {
    ExpectError(file->Sync(), StatusCode::kDataLoss,
                {folder / "data", "may be lost"});
  }
  EXPECT_EQ(env.syncs, 1);
  File moved = *std::move(file);
  ExpectError(moved.Sync(), StatusCode::kDataLoss, {"may be lost"});
}

TEST(File, AllocateTakesSpaceAndKeepsBytes) {
  const TempFolder folder;
  // The second env is a file system that cannot allocate.
  class NoAllocate final : public ForwardingEnv {
   public:
    NoAllocate() : ForwardingEnv(FileEnv::Posix()) {}
    int Allocate(int, uint64_t) override { return -EOPNOTSUPP; }
  } no_allocate;
  for (FileEnv* env : {FileEnv::Posix(), static_cast<FileEnv*>(&no_allocate)}) {
    const std::string path =
        folder / (env == &no_allocate ? "without" : "with");
    const auto file = File::Open(env, path, File::Mode::kCreate);
    ASSERT_OK(file);
    EXPECT_OK(file->WriteExactly(0, BytesOf("abc")));
    EXPECT_OK(file->Allocate(5000));
    EXPECT_EQ(*file->Size(), 5000u);
    EXPECT_OK(file->Allocate(10));
    EXPECT_OK(file->Allocate(0));
    EXPECT_EQ(*file->Size(), 5000u);
    EXPECT_EQ(*Read(*file, 0, 4), std::string("abc\0", 4));
    ExpectError(file->Allocate(UINT64_MAX), StatusCode::kOutOfRange, {});
  }
}

// --- Past the page cache ---------------------------------------------------

// Refuses O_DIRECT where a test says so, and counts the bytes that went past
// the cache.
class DirectEnv final : public ForwardingEnv {
 public:
  enum class Refuse { kNothing, kOpen, kTransfer };
  explicit DirectEnv(Refuse refuse)
      : ForwardingEnv(FileEnv::Posix()), refuse_(refuse) {}

  int Open(int dir, const char* path, int flags, mode_t mode) override {
    if ((flags & O_DIRECT) == 0) return base()->Open(dir, path, flags, mode);
    if (refuse_ == Refuse::kOpen) return -EINVAL;
    // The file is opened without O_DIRECT, which the file system under the test
    // may not support.
    direct_fd = base()->Open(dir, path, flags & ~O_DIRECT, mode);
    return direct_fd;
  }
  ssize_t Read(int fd, void* data, size_t bytes, uint64_t offset) override {
    if (!Takes(fd, data, bytes, offset)) return -EINVAL;
    return base()->Read(fd, data, bytes, offset);
  }
  ssize_t Write(int fd, const void* data, size_t bytes,
                uint64_t offset) override {
    if (!Takes(fd, data, bytes, offset)) return -EINVAL;
    return base()->Write(fd, data, bytes, offset);
  }

  int direct_fd = -1;
  size_t direct_bytes = 0;

 private:
  bool Takes(int fd, const void* data, size_t bytes, uint64_t offset) {
    if (fd != direct_fd) return true;
    EXPECT_EQ(offset % 4096, 0u);
    EXPECT_EQ(bytes % 4096, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 4096, 0u);
    if (refuse_ == Refuse::kTransfer) return false;
    direct_bytes += bytes;
    return true;
  }
  const Refuse refuse_;
};

TEST(DirectFile, OnlyAlignedPiecesGoPastTheCache) {
  const TempFolder folder;
  const std::string text = Pattern(5 * 4096 + 100);
  const Aligned copy = AlignedCopy(text);
  DirectEnv env(DirectEnv::Refuse::kNothing);
  auto file = File::Open(&env, folder / "data", File::Mode::kCreate,
                         File::Cache::kDirect);
  ASSERT_OK(file);
  EXPECT_TRUE(file->direct());
  EXPECT_OK(file->WriteExactly(0, {copy.get(), text.size()}));
  EXPECT_EQ(env.direct_bytes, 5u * 4096);
  EXPECT_EQ(ReadText(folder / "data"), text);
  // Neither unaligned memory nor an unaligned offset goes past the cache.
  EXPECT_OK(file->WriteExactly(4096, {copy.get() + 1, 4096}));
  EXPECT_OK(file->WriteExactly(1, {copy.get(), 4096}));
  EXPECT_EQ(env.direct_bytes, 5u * 4096);
  EXPECT_OK(file->ReadExactly(8192, {copy.get(), 8192 + 4}));
  EXPECT_EQ(env.direct_bytes, 7u * 4096);
  EXPECT_EQ(std::memcmp(copy.get(), text.data() + 8192, 8192 + 4), 0);
  EXPECT_OK(file->Close());
  EXPECT_FALSE(file->direct());
}

TEST(DirectFile, IsBufferedWhereItIsRefused) {
  for (const auto refuse :
       {DirectEnv::Refuse::kOpen, DirectEnv::Refuse::kTransfer}) {
    const TempFolder folder;
    const std::string text = Pattern(3 * 4096 + 5);
    const Aligned copy = AlignedCopy(text);
    DirectEnv env(refuse);
    for (const auto mode : {File::Mode::kCreate, File::Mode::kRead}) {
      const auto file =
          File::Open(&env, folder / "data", mode, File::Cache::kDirect);
      ASSERT_OK(file);
      EXPECT_EQ(file->direct(), refuse == DirectEnv::Refuse::kTransfer);
      if (mode == File::Mode::kCreate) {
        EXPECT_OK(file->WriteExactly(0, {copy.get(), text.size()}));
        EXPECT_EQ(ReadText(folder / "data"), text);
      } else {
        std::memset(copy.get(), 0, text.size());
        EXPECT_OK(file->ReadExactly(0, {copy.get(), text.size()}));
        EXPECT_EQ(std::memcmp(copy.get(), text.data(), text.size()), 0);
      }
      EXPECT_FALSE(file->direct());
    }
    EXPECT_EQ(env.direct_bytes, 0u);
  }
}

// Tests the file system of this machine, whether it supports O_DIRECT or not.
TEST(DirectFile, OnRealFiles) {
  const TempFolder folder;
  const std::string text = Pattern(64 * 4096 + 77);
  const Aligned copy = AlignedCopy(text);
  auto file = File::Open(FileEnv::Posix(), folder / "data", File::Mode::kCreate,
                         File::Cache::kDirect);
  ASSERT_OK(file);
  EXPECT_OK(file->Allocate(text.size()));
  // Two threads write disjoint halves.
  constexpr size_t kHalf = 32 * 4096;
  std::thread first([&] {
    EXPECT_OK(file->WriteExactly(0, {copy.get(), kHalf}));
  });
  EXPECT_OK(
      file->WriteExactly(kHalf, {copy.get() + kHalf, text.size() - kHalf}));
  first.join();
  EXPECT_OK(file->Sync());
  EXPECT_EQ(ReadText(folder / "data"), text);
  std::memset(copy.get(), 0, text.size());
  EXPECT_OK(file->ReadExactly(0, {copy.get(), text.size()}));
  EXPECT_EQ(std::memcmp(copy.get(), text.data(), text.size()), 0);
  ExpectError(file->ReadExactly(4096, {copy.get(), text.size()}),
              StatusCode::kCorrupt, {"4096 bytes short"});
}

// --- Faults ----------------------------------------------------------------

Status SaveAndRead(FileEnv* env, const std::string& folder,
                   const std::string& text, File::Cache cache) {
  SHARD_ASSIGN_OR_RETURN(const Directory directory,
                         Directory::Open(env, folder));
  SHARD_ASSIGN_OR_RETURN(
      File file, File::Open(directory, "data", File::Mode::kCreate, cache));
  SHARD_RETURN_IF_ERROR(file.WriteExactly(0, BytesOf(text)));
  SHARD_RETURN_IF_ERROR(file.Sync());
  SHARD_ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  SHARD_RETURN_IF_ERROR(file.Close());
  SHARD_RETURN_IF_ERROR(directory.Sync());
  SHARD_ASSIGN_OR_RETURN(
      const File again,
      File::Open(directory, "data", File::Mode::kRead, cache));
  SHARD_ASSIGN_OR_RETURN(const std::string read, Read(again, 0, size));
  return read == text ? Status() : Internal("read something else");
}

TEST(FileFaults, EveryCallThatFailsIsAnErrorAndLeaksNothing) {
  const std::string text = Pattern(100);
  for (const auto cache : {File::Cache::kBuffered, File::Cache::kDirect}) {
    for (const int error : {EIO, ENOSPC, EMFILE}) {
      for (int64_t k = 0;; ++k) {
        const TempFolder folder;
        FaultEnv env;
        env.Set({.at = k, .error = error});
        const Status status = SaveAndRead(&env, folder.path(), text, cache);
        EXPECT_EQ(env.open_descriptors(), 0) << k;
        EXPECT_EQ(env.wrong_closes(), 0) << k;
        if (env.calls() <= k) {
          EXPECT_OK(status);
          EXPECT_GT(k, 8);
          break;
        }
        // These calls open the directory, create the file and look at it; the
        // direct file adds two. A file that was not opened was not made.
        if (k < (cache == File::Cache::kDirect ? 5 : 3)) {
          EXPECT_EQ(NamesIn(folder.path()).size(), 0u) << k;
        }
        // A close after reading has nothing to lose, and neither has the close
        // of the directory.
        if (status.ok()) {
          EXPECT_GE(k, env.calls() - 3) << error;
        } else {
          ExpectError(status, ErrnoStatus("", error).code(), {folder.path()});
        }
      }
    }
  }
}

TEST(FileFaults, InterruptedAndShortCallsAreContinued) {
  const std::string text = Pattern(1000);
  for (const int64_t every : {2, 3, 5}) {
    const TempFolder folder;
    FaultEnv env;
    env.Set({.every = every, .error = EINTR});
    EXPECT_OK(SaveAndRead(&env, folder.path(), text, File::Cache::kDirect));
    EXPECT_GT(env.faults(), 1);
    EXPECT_EQ(env.open_descriptors(), 0);
    EXPECT_EQ(env.wrong_closes(), 0);
  }
  for (const int64_t every : {1, 2}) {
    const TempFolder folder;
    FaultEnv env;
    env.Set({.every = every, .kind = Fault::Kind::kShort});
    EXPECT_OK(SaveAndRead(&env, folder.path(), text, File::Cache::kBuffered));
    EXPECT_GT(env.faults(), 1);
  }
}

TEST(FileFaults, AWriteOfNothingEnds) {
  const TempFolder folder;
  FaultEnv env;
  const auto file = File::Open(&env, folder / "data", File::Mode::kCreate);
  ASSERT_OK(file);
  env.Set({.every = 1, .kind = Fault::Kind::kZero});
  ExpectError(file->WriteExactly(0, BytesOf("abc")), StatusCode::kInternal,
              {folder / "data", "0 of 3 bytes"});
  ExpectError(Read(*file, 0, 3), StatusCode::kCorrupt, {"3 bytes short"});
}

// --- Directories -----------------------------------------------------------

TEST(Directory, MakesListsRenamesAndDeletes) {
  const TempFolder folder;
  FileEnv* const env = FileEnv::Posix();
  const auto directory = Directory::Open(env, folder.path());
  ASSERT_OK(directory);
  EXPECT_OK(directory->MakeDirectory("a"));
  ExpectError(directory->MakeDirectory("a"), StatusCode::kAlreadyExists,
              {folder / "a"});
  WriteText(folder / "b", "b");
  std::vector<std::string> names = *directory->List();
  // Lists twice: the position in the directory is not shared.
  EXPECT_EQ(directory->List()->size(), 2u);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()),
            (std::set<std::string>{"a", "b"}));
  EXPECT_EQ(directory->Rename("b", "a", RENAME_NOREPLACE), -EEXIST);
  EXPECT_EQ(directory->Rename("b", "c", 0), 0);
  EXPECT_TRUE(S_ISREG((*directory->Stat("c"))->st_mode));
  EXPECT_FALSE(directory->Stat("b")->has_value());
  const auto inner = directory->OpenDirectory("a");
  ASSERT_OK(inner);
  EXPECT_EQ(inner->path(), folder / "a");
  WriteText(folder / "a/x", "x");
  ExpectError(directory->RemoveDirectory("a"), StatusCode::kFailedPrecondition,
              {folder / "a"});
  EXPECT_OK(inner->Unlink("x"));
  EXPECT_OK(directory->RemoveDirectory("a"));
  ExpectError(directory->RemoveDirectory("a"), StatusCode::kNotFound, {});
  ExpectError(directory->Unlink("a"), StatusCode::kNotFound, {folder / "a"});
  EXPECT_OK(directory->Sync());
}

TEST(Directory, FollowsOnlyTheHostsPath) {
  const TempFolder folder;
  FileEnv* const env = FileEnv::Posix();
  ASSERT_EQ(::mkdir((folder / "real").c_str(), 0700), 0);
  ASSERT_EQ(::symlink("real", (folder / "link").c_str()), 0);
  WriteText(folder / "file", "");
  EXPECT_OK(Directory::Open(env, folder / "link"));
  const auto directory = Directory::Open(env, folder.path());
  ASSERT_OK(directory);
  EXPECT_OK(directory->OpenDirectory("real"));
  ExpectError(directory->OpenDirectory("link"), StatusCode::kFailedPrecondition,
              {folder / "link"});
  ExpectError(directory->OpenDirectory("file"), StatusCode::kFailedPrecondition,
              {folder / "file"});
  EXPECT_TRUE(S_ISLNK((*directory->Stat("link"))->st_mode));
  ExpectError(Directory::Open(env, folder / "none"), StatusCode::kNotFound,
              {folder / "none"});
}

TEST(Directory, NotBeingSyncedIsNoErrorWhereNoneIs) {
  const TempFolder folder;
  FaultEnv env;
  const auto directory = Directory::Open(&env, folder.path());
  ASSERT_OK(directory);
  env.Set({.at = 0, .error = EINVAL});
  EXPECT_OK(directory->Sync());
  EXPECT_EQ(env.faults(), 1);
  env.Set({.at = 0, .error = EIO});
  ExpectError(directory->Sync(), StatusCode::kDataLoss,
              {folder.path(), "may be lost"});
}

}  // namespace
}  // namespace shard::file_test
