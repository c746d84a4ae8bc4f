// SPDX-License-Identifier: Apache-2.0
//
// Files of a process that may have only few, or only small ones.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/parallel.h"
#include "core/base/pooled_file.h"
#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/forwarding_env.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/temp_folder.h"

namespace shard {
namespace {

using testing::ForwardingEnv;
using testing::TempFolder;
using testing::WriteText;

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// --- A host without standard descriptors -----------------------------------

TEST(StandardDescriptorsTest, AreNeverThoseOfAFile) {
  const TempFolder folder;
  const std::string path = StrCat(folder.path(), "/file");
  testing::InChild([&] {
    const int out = ::fcntl(STDOUT_FILENO, F_DUPFD, 100);
    for (const int fd : {0, 1, 2}) ::close(fd);
    const auto root = Directory::Open(FileEnv::Posix(), folder.path());
    const auto file = File::Open(FileEnv::Posix(), path, File::Mode::kCreate,
                                 File::Cache::kDirect);
    const auto pooled =
        PooledFile::Open(FileEnv::Posix(), path, File::Mode::kRead);
    // A folder is listed through a descriptor of its own, which is open while
    // the folder of open descriptors is listed.
    const auto descriptors = Directory::Open(FileEnv::Posix(), "/proc/self/fd");
    std::vector<std::string> open;
    const int listed = FileEnv::Posix()->List(descriptors->fd(), &open);
    int printed = 0;
    for (const int fd : {0, 1, 2}) {
      printed += ::write(fd, "x", 1) == 1 || errno != EBADF ? 1 : 0;
    }
    // The limit leaves room for the standard descriptors only: none of them is
    // taken.
    testing::LowerLimit(RLIMIT_NOFILE, 3);
    const auto more = File::Open(FileEnv::Posix(), path, File::Mode::kRead);
    const bool taken = ::fcntl(0, F_GETFD) >= 0;
    testing::LowerLimit(RLIMIT_NOFILE, 200);
    ::dup2(out, STDOUT_FILENO);
    EXPECT_OK(root);
    EXPECT_OK(file);
    EXPECT_OK(pooled);
    EXPECT_OK(descriptors);
    EXPECT_EQ(listed, 0);
    EXPECT_GE(open.size(), 5u);
    for (const std::string& fd : open) EXPECT_GT(std::stoi(fd), 2);
    EXPECT_EQ(printed, 0);
    EXPECT_EQ(more.status().code(), StatusCode::kResourceExhausted)
        << more.status().ToString();
    EXPECT_FALSE(taken);
  });
}

// --- The limit of file sizes -----------------------------------------------

constexpr rlim_t kSizeLimit = 8192;

// Makes a file too long in each way in which it can grow.
std::vector<Status> Outgrow(const std::string& path) {
  std::vector<Status> all;
  const auto file = File::Open(FileEnv::Posix(), path, File::Mode::kCreate);
  EXPECT_OK(file);
  all.push_back(
      file->WriteExactly(0, BytesOf(std::string(kSizeLimit + 1, 'x'))));
  all.push_back(file->WriteExactly(kSizeLimit, BytesOf("x")));
  all.push_back(file->Allocate(kSizeLimit + 1));
  const int truncated = FileEnv::Posix()->Truncate(file->fd(), kSizeLimit + 1);
  all.push_back(truncated == 0 ? Status() : ErrnoStatus(path, -truncated));
  return all;
}

void ExpectOutgrown(const std::vector<Status>& all, const std::string& path) {
  for (const Status& status : all) {
    ExpectError(status, StatusCode::kResourceExhausted, {path, "ulimit -f"});
  }
}

bool IsPending(int signal) {
  sigset_t pending;
  ::sigpending(&pending);
  return ::sigismember(&pending, signal) == 1;
}

// The default action of SIGXFSZ would kill the host.
TEST(SizeLimit, IsAnErrorAndNoSignal) {
  const TempFolder folder;
  testing::InChild([&] {
    testing::LowerLimit(RLIMIT_FSIZE, kSizeLimit);
    ExpectOutgrown(Outgrow(folder / "a"), folder / "a");
    sigset_t mask;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    EXPECT_EQ(::sigismember(&mask, SIGXFSZ), 0);
    EXPECT_FALSE(IsPending(SIGXFSZ));
    // Several threads write, as they do for checkpoints.
    std::vector<std::vector<Status>> all(3);
    EXPECT_OK(RunOnThreads(3, [&](int index) {
      all[static_cast<size_t>(index)] = Outgrow(folder / StrCat("t", index));
      return Status();
    }));
    for (const auto& statuses : all) ExpectOutgrown(statuses, folder.path());
    EXPECT_FALSE(IsPending(SIGXFSZ));
  });
}

TEST(SizeLimit, LeavesTheSignalsOfTheHostAlone) {
  const TempFolder folder;
  testing::InChild([&] {
    testing::LowerLimit(RLIMIT_FSIZE, kSizeLimit);
    sigset_t mask;
    ::sigemptyset(&mask);
    ::sigaddset(&mask, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &mask, nullptr);
    ::raise(SIGXFSZ);
    ExpectOutgrown(Outgrow(folder / "a"), folder / "a");
    EXPECT_TRUE(IsPending(SIGXFSZ));
    ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    EXPECT_EQ(::sigismember(&mask, SIGXFSZ), 1);
  });
  // A handler of the host does not see our signals.
  testing::InChild([&] {
    testing::LowerLimit(RLIMIT_FSIZE, kSizeLimit);
    static int heard = 0;
    ::signal(SIGXFSZ, [](int) { ++heard; });
    ExpectOutgrown(Outgrow(folder / "b"), folder / "b");
    EXPECT_EQ(heard, 0);
    ::raise(SIGXFSZ);
    EXPECT_EQ(heard, 1);
  });
}

// --- Pooled files ----------------------------------------------------------

int OpenDescriptors() {
  std::vector<std::string> names;
  const auto open = Directory::Open(FileEnv::Posix(), "/proc/self/fd");
  return static_cast<int>(open->List()->size());
}

TEST(PooledFile, KeepFewDescriptors) {
  testing::InChild([] {
    const TempFolder folder;
    testing::LowerLimit(RLIMIT_NOFILE, 64);
    const auto in = Directory::Open(FileEnv::Posix(), folder.path());
    ASSERT_OK(in);
    const int before = OpenDescriptors();
    std::vector<PooledFile> files;
    for (int i = 0; i < 100; ++i) {
      auto file = PooledFile::Open(*in, StrCat("f", i), File::Mode::kCreate);
      ASSERT_OK(file);
      EXPECT_OK(file->WriteExactly(0, BytesOf(StrCat("content ", i))));
      files.push_back(*std::move(file));
      EXPECT_LE(OpenDescriptors(), before + 16);
    }
    // Threads read while all other descriptors are the host's.
    std::vector<int> taken;
    while ((taken.emplace_back(::dup(0))) >= 0) {
    }
    EXPECT_OK(RunOnThreads(4, [&](int index) -> Status {
      for (int i = index; i < 100; i += 4) {
        const std::string text = StrCat("content ", i);
        std::string read(text.size(), '\0');
        SHARD_RETURN_IF_ERROR(files[static_cast<size_t>(i)].ReadExactly(
            0, std::as_writable_bytes(std::span(read))));
        if (read != text) return Internal(read);
      }
      return Status();
    }));
    // A file outside the pool is given a descriptor of the pool, too.
    EXPECT_OK(File::Open(*in, "f0", File::Mode::kRead));
    for (PooledFile& file : files) EXPECT_OK(file.Sync());
    for (PooledFile& file : files) EXPECT_OK(file.Close());
    for (const int fd : taken) ::close(fd);
    files.clear();
    EXPECT_EQ(OpenDescriptors(), before);
  });
}

TEST(PooledFile, IsOpenedAgainAsWhatItWas) {
  testing::InChild([] {
    const TempFolder folder;
    testing::LowerLimit(RLIMIT_NOFILE, 32);
    const auto in = Directory::Open(FileEnv::Posix(), folder.path());
    ASSERT_OK(in);
    for (const char* name : {"deleted", "replaced", "changed", "same"}) {
      WriteText(folder / name, "old");
    }
    std::vector<PooledFile> files;
    for (const char* name : {"deleted", "replaced", "changed", "same"}) {
      auto file = PooledFile::Open(*in, name, File::Mode::kRead);
      ASSERT_OK(file);
      files.push_back(*std::move(file));
    }
    while (ClosePooledFile()) {
    }
    EXPECT_OK(in->Unlink("deleted"));
    WriteText(folder / "other", "new");
    EXPECT_EQ(in->Rename("other", "replaced", 0), 0);
    WriteText(folder / "changed", "longer");
    std::string text(3, '\0');
    const auto read = [&](size_t file) {
      return files[file].ReadExactly(0,
                                     std::as_writable_bytes(std::span(text)));
    };
    ExpectError(read(0), StatusCode::kNotFound,
                {folder / "deleted", "deleted while", "ulimit -n"});
    ExpectError(read(1), StatusCode::kFailedPrecondition,
                {folder / "replaced", "replaced or changed"});
    ExpectError(read(2), StatusCode::kFailedPrecondition,
                {folder / "changed", "replaced or changed"});
    EXPECT_OK(read(3));
    EXPECT_EQ(text, "old");
  });
}

// A thread of the parent may have the lock of the pool when the process forks.
TEST(PooledFile, IsNotThereInAChildOfFork) {
  const TempFolder folder;
  WriteText(folder / "data", "old");
  std::optional<PooledFile> file;
  const auto open = [&] {
    auto opened =
        PooledFile::Open(FileEnv::Posix(), folder / "data", File::Mode::kRead);
    ASSERT_OK(opened);
    file.emplace(*std::move(opened));
  };
  open();
  const auto read = [&] {
    std::string text(3, '\0');
    return file->ReadExactly(0, std::as_writable_bytes(std::span(text)));
  };
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!stop) EXPECT_OK(read());
    });
  }
  for (int i = 0; i < 50; ++i) {
    testing::InChild([&] {
      ExpectError(read(), StatusCode::kFailedPrecondition,
                  {folder / "data", "after fork"});
      ExpectError(file->Close(), StatusCode::kFailedPrecondition,
                  {"after fork"});
      EXPECT_FALSE(ClosePooledFile());
      // A file that the child opens is its own, and the parent's can be closed.
      open();
      EXPECT_OK(read());
      EXPECT_TRUE(ClosePooledFile());
    });
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_OK(read());
}

// Lets each of two threads have the first of its two descriptors, and leaves
// none for the second.
class MeetAfterTheFirst final : public ForwardingEnv {
 public:
  MeetAfterTheFirst() : ForwardingEnv(FileEnv::Posix()) {}
  int Open(int dir, const char* path, int flags, mode_t mode) override {
    const int fd = base()->Open(dir, path, flags, mode);
    if ((flags & O_DIRECT) != 0) seen_direct = true;
    if (fd >= 0 && (flags & O_DIRECT) == 0) ++met;
    // The other thread may be kept from coming, so the wait has an end.
    for (int i = 0; met < 2 && i < 3000; ++i) std::this_thread::yield();
    return fd;
  }
  std::atomic<int> met{0};
  std::atomic<bool> seen_direct{false};
};

TEST(PooledFile, TwoWithoutTheirSecondDescriptorOpenInTurns) {
  const TempFolder folder;
  WriteText(folder / "0", "0");
  WriteText(folder / "1", "1");
  testing::InChild([&] {
    testing::LowerLimit(RLIMIT_NOFILE, 64);
    MeetAfterTheFirst env;
    std::vector<int> taken;
    while ((taken.emplace_back(::dup(0))) >= 0) {
    }
    taken.pop_back();
    for (int i = 0; i < 2; ++i) {
      ::close(taken.back());
      taken.pop_back();
    }
    EXPECT_OK(RunOnThreads(2, [&](int index) -> Status {
      SHARD_ASSIGN_OR_RETURN(
          const PooledFile file,
          PooledFile::Open(&env, folder / StrCat(index), File::Mode::kRead,
                           File::Cache::kDirect));
      return file.Size().status();
    }));
    EXPECT_TRUE(env.seen_direct);
    for (const int fd : taken) ::close(fd);
  });
}

// A limit of few descriptors leaves a quarter of them.
TEST(PooledFile, TakeAQuarterOfATinyLimit) {
  testing::InChild([] {
    const TempFolder folder;
    testing::LowerLimit(RLIMIT_NOFILE, 16);
    const int before = OpenDescriptors();
    std::vector<PooledFile> files;
    for (int i = 0; i < 10; ++i) {
      auto file = PooledFile::Open(FileEnv::Posix(), folder / StrCat("f", i),
                                   File::Mode::kCreate);
      ASSERT_OK(file);
      files.push_back(*std::move(file));
      EXPECT_LE(OpenDescriptors(), before + 4);
    }
  });
}

// A device whose first sync fails.
class SyncFailsOnce final : public ForwardingEnv {
 public:
  SyncFailsOnce() : ForwardingEnv(FileEnv::Posix()) {}
  int Sync(int fd) override { return ++syncs == 1 ? -EIO : base()->Sync(fd); }
  int syncs = 0;
};

// Sync returns the error that the device had when the pool closed a file.
TEST(PooledFile, KeepsTheErrorOfTheDevice) {
  const TempFolder folder;
  SyncFailsOnce env;
  auto file = PooledFile::Open(&env, folder / "data", File::Mode::kCreate);
  ASSERT_OK(file);
  EXPECT_OK(file->WriteExactly(0, BytesOf("x")));
  EXPECT_TRUE(ClosePooledFile());
  EXPECT_FALSE(ClosePooledFile());
  EXPECT_EQ(env.syncs, 1);
  EXPECT_OK(file->WriteExactly(1, BytesOf("y")));
  ExpectError(file->Sync(), StatusCode::kDataLoss,
              {folder / "data", "may be lost"});
  ExpectError(file->Close(), StatusCode::kDataLoss, {"may be lost"});
}

}  // namespace
}  // namespace shard
