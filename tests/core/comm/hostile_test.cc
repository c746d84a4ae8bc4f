// SPDX-License-Identifier: Apache-2.0
//
// Machines and neighbors that do not help: there are no pidfds, the kernel
// populates no memory or has none, or another user is at the rendezvous point.

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/fd.h"
#include "core/comm/communicator.h"
#include "core/comm/shm/rendezvous.h"
#include "tests/core/comm/backends.h"

namespace shard::testing::hostile_test {
namespace {

StatusOr<std::shared_ptr<Communicator>> Open(const std::string& name, int rank,
                                             int world_size,
                                             double timeout = 20) {
  return OpenCommunicator(
      StrCat("shm:", name),
      {.rank = rank, .world_size = world_size, .timeout = timeout});
}

// Makes a system call fail with `error`; with `argument`, only where its third
// argument is that. Returns false where the sandbox allows no filters.
bool Forbid(uint32_t call, uint32_t error,
            std::optional<uint32_t> argument = std::nullopt) {
  // A jump skips so many of the next instructions where the value is equal, and
  // so many where it is not.
  const uint8_t otherwise = argument ? 3 : 1;
  std::vector<sock_filter> code = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, otherwise),
  };
  if (argument) {
    code.push_back(
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])));
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, *argument, 0, 1));
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error));
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(code.size()),
                           code.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Makes pidfd_open fail as on an old kernel.
bool ForbidPidfds() { return Forbid(SYS_pidfd_open, ENOSYS); }

// Makes the kernel refuse to populate a mapping.
bool ForbidPopulating(uint32_t error) {
  return Forbid(SYS_madvise, error, MADV_POPULATE_WRITE);
}

// One rank without pidfds is enough for all to fall back on their connections.
TEST(WithoutPidfdsTest, ADeadRankIsStillNamed) {
  for (const int victim : {0, 1, 2}) {
    SCOPED_TRACE(victim);
    const std::string name = UniqueName();
    const auto results = RunRanks(3, [&](const Rank& rank) {
      ASSERT_TRUE(rank.rank() != 1 || ForbidPidfds());
      auto comm = Open(name, rank.rank(), 3);
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      auto buffer =
          (*comm)->Allocate("memory", 100, SymmetricKind::kPerRank, Soon());
      ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
      if (rank.rank() == victim) ::raise(SIGKILL);
      const Status status = (*comm)->Barrier("step", Soon());
      EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
      EXPECT_EQ(status.rank(), victim);
    });
    for (const RankResult& result : results) {
      if (result.rank == victim) continue;
      EXPECT_TRUE(result.passed()) << result.ToString();
      EXPECT_LT(result.seconds, 5);
    }
  }
}

// --- memory ---

// A rank on Linux before 5.14, which cannot populate a mapping.
TEST(WithoutPopulatingTest, MemoryIsSharedAllTheSame) {
  const std::string name = UniqueName();
  const auto results = RunRanks(2, [&](const Rank& rank) {
    ASSERT_TRUE(rank.rank() != 1 || ForbidPopulating(EINVAL));
    auto comm = Open(name, rank.rank(), 2);
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    auto buffer = (*comm)->Allocate("memory", size_t{1} << 20,
                                    SymmetricKind::kPerRank, Soon());
    ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
    (*buffer)->region(rank.rank())[12345] = std::byte{7};
    SHARD_ASSERT_OK((*comm)->Barrier("written", Soon()));
    EXPECT_EQ((*buffer)->region(1 - rank.rank())[12345], std::byte{7});
    SHARD_ASSERT_OK((*comm)->Barrier("read", Soon()));
  });
  ExpectAllPassed(results);
}

// The kernel has no memory for a rank's share. Populating reports that as
// EFAULT, where a write would be a signal.
TEST(MemoryTest, ARankWhoseShareCannotBeFilledIsAnErrorOfAll) {
  const std::string name = UniqueName();
  const auto results = RunRanks(3, [&](const Rank& rank) {
    auto comm = Open(name, rank.rank(), 3);
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    ASSERT_TRUE(rank.rank() != 1 ||
                (ForbidPopulating(EFAULT) && Forbid(SYS_fallocate, ENOSPC)));
    const Status status = (*comm)
                              ->Allocate("memory", size_t{1} << 20,
                                         SymmetricKind::kPerRank, Soon())
                              .status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted)
        << status.ToString();
    EXPECT_EQ(status.rank(), 1);
    EXPECT_TRUE(
        Contains(status.message(), "taking 1.0 MiB of shared memory failed"))
        << status.ToString();
  });
  ExpectAllPassed(results);
}

// --- another user; needs root, and a user to become ---

constexpr uid_t kOtherUser = 65534;

bool BecomeOtherUser() {
  return ::setresuid(kOtherUser, kOtherUser, kOtherUser) == 0;
}

// Tries it in a process of its own. It is not possible in a sandbox's user
// namespace.
bool CanBecomeOtherUser() {
  return RunRanks(1,
                  [](const Rank& rank) {
                    if (BecomeOtherUser()) rank.Report("yes");
                  })[0]
             .report == "yes";
}

// A process of another user listens where this user's rank 0 would.
TEST(OtherUserTest, AHostOfAnotherUserIsNotBelieved) {
  if (!CanBecomeOtherUser()) GTEST_SKIP() << "cannot change the user";
  const std::string name = UniqueName();
  const shm::Address where = shm::AddressOf(name);
  const auto results = RunRanks(2, [&](const Rank& rank) {
    if (rank.rank() == 0) {
      ASSERT_TRUE(BecomeOtherUser());
      const Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      ASSERT_EQ(
          ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&where.address),
                 where.size),
          0);
      ASSERT_EQ(::listen(fd.get(), 4), 0);
      const Fd guest(::accept(fd.get(), nullptr, nullptr));
      char byte;
      // The guest sends nothing.
      EXPECT_LE(::recv(guest.get(), &byte, 1, 0), 0);
      return;
    }
    const auto comm = Open(name, 1, 2, 5);
    EXPECT_EQ(comm.status().code(), StatusCode::kPermissionDenied)
        << comm.status().ToString();
    EXPECT_TRUE(Contains(comm.status().message(), "is of user 65534"));
    EXPECT_TRUE(Contains(comm.status().message(), "give the job another name"));
  });
  ExpectAllPassed(results);
}

// Expects rank 0 to report a name that another process has bound: one of
// another user when `other_user` is set, one that listens when `listens` is.
void ExpectNameTaken(bool other_user, bool listens, const std::string& who) {
  const std::string name = UniqueName();
  const shm::Address where = shm::AddressOf(name);
  int ends[2];  // One end for each rank.
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const auto results = RunRanks(2, [&](const Rank& rank) {
    const Fd mine(ends[rank.rank()]);
    ::close(ends[1 - rank.rank()]);
    char byte = 0;
    if (rank.rank() == 1) {
      if (other_user) {
        ASSERT_TRUE(BecomeOtherUser());
      }
      const Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      ASSERT_EQ(
          ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&where.address),
                 where.size),
          0);
      if (listens) {
        ASSERT_EQ(::listen(fd.get(), 4), 0);
      }
      ASSERT_EQ(::send(mine.get(), &byte, 1, MSG_NOSIGNAL), 1);
      // Waits until rank 0 has gone.
      EXPECT_EQ(::recv(mine.get(), &byte, 1, 0), 0);
      return;
    }
    ASSERT_EQ(::recv(mine.get(), &byte, 1, 0), 1);
    const Status status = Open(name, 0, 2, 5).status();
    ::shutdown(mine.get(), SHUT_RDWR);
    EXPECT_EQ(status.code(), StatusCode::kAlreadyExists) << status.ToString();
    EXPECT_EQ(status.rank(), 0);
    EXPECT_TRUE(Contains(status.message(), who));
    EXPECT_TRUE(Contains(status.message(), "give each job a name of its own"));
  });
  ::close(ends[0]);
  ::close(ends[1]);
  ExpectAllPassed(results);
}

TEST(NameTakenTest, ByAProcessThatDoesNotListen) {
  ExpectNameTaken(false, false, "maybe one of another user");
}

TEST(NameTakenTest, ByAnotherJobOfThisUser) {
  ExpectNameTaken(false, true,
                  " of this user has bound it and waits for its ranks there");
}

TEST(OtherUserTest, ANameThatAnotherUserListensAt) {
  if (!CanBecomeOtherUser()) GTEST_SKIP() << "cannot change the user";
  ExpectNameTaken(true, true, " of user 65534 has bound it");
  ExpectNameTaken(true, false, "maybe one of another user");
}

// Counts the lines of the log.
struct Log {
  int lines = 0;
  std::string last;

  static void Take(int32_t, const char* message, void* log) {
    auto* const self = static_cast<Log*>(log);
    ++self->lines;
    self->last = message;
  }
};

int Connect(const shm::Address& where, bool await_answer = false) {
  const Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const int result = ::connect(
      fd.get(), reinterpret_cast<const sockaddr*>(&where.address), where.size);
  char byte;
  // Waits until rank 0 greets the stranger or turns it away; one that closes
  // before is not counted.
  if (result == 0 && await_answer) (void)::recv(fd.get(), &byte, 1, 0);
  return result;
}

// Expects few lines of log from thousands of strangers, after whom the awaited
// rank comes.
void ExpectFewLinesOfAFlood(uid_t strangers) {
  constexpr int kStrangers = 3000;
  const std::string name = UniqueName();
  const shm::Address where = shm::AddressOf(name);
  const auto results = RunRanks(2, [&](const Rank& rank) {
    Log log;
    if (rank.rank() == 1) {
      const uid_t user = ::geteuid();
      ASSERT_EQ(::seteuid(strangers), 0);
      for (const Deadline deadline = Soon(); Connect(where) != 0;) {
        ASSERT_FALSE(deadline.Expired()) << "nobody listens";
      }
      for (int i = 0; i < kStrangers; ++i) {
        EXPECT_EQ(Connect(where, true), 0);
      }
      ASSERT_EQ(::seteuid(user), 0);
    }
    const auto comm = OpenCommunicator(
        StrCat("shm:", name),
        {.rank = rank.rank(),
         .world_size = 2,
         .logger = Logger(&Log::Take, LogLevel::kWarning, &log)});
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
    if (rank.rank() != 0) return;
    EXPECT_GE(log.lines, 2);
    EXPECT_LE(log.lines, 12) << log.last;
    EXPECT_TRUE(Contains(log.last, " connections, the last: process "));
  });
  ExpectAllPassed(results);
}

TEST(StrangersTest, AFloodIsNoFloodOfTheLog) {
  ExpectFewLinesOfAFlood(::geteuid());
}

TEST(OtherUserTest, AFloodIsNoFloodOfTheLog) {
  if (!CanBecomeOtherUser()) GTEST_SKIP() << "cannot change the user";
  ExpectFewLinesOfAFlood(kOtherUser);
}

// A flood that does not end does not keep rank 0 from giving up.
TEST(StrangersTest, AFloodDoesNotOutlastTheDeadline) {
  const std::string name = UniqueName();
  const shm::Address where = shm::AddressOf(name);
  const auto results = RunRanks(3, [&](const Rank& rank) {
    if (rank.rank() > 0) {
      const Deadline deadline = Soon();
      while (Connect(where) != 0) ASSERT_FALSE(deadline.Expired());
      while (Connect(where) == 0) ASSERT_FALSE(deadline.Expired());
      return;
    }
    const Deadline deadline = Deadline::After(10);
    const auto comm = Open(name, 0, 2, 0.5);
    EXPECT_EQ(comm.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_FALSE(deadline.Expired());
  });
  ExpectAllPassed(results);
}

TEST(OtherUserTest, AGuestOfAnotherUserIsIgnored) {
  if (!CanBecomeOtherUser()) GTEST_SKIP() << "cannot change the user";
  const std::string name = UniqueName();
  const shm::Address where = shm::AddressOf(name);
  const auto results = RunRanks(2, [&](const Rank& rank) {
    if (rank.rank() == 1) {
      ASSERT_TRUE(BecomeOtherUser());
      for (const Deadline deadline = Soon(); !deadline.Expired();
           ::poll(nullptr, 0, 1)) {
        const Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        if (::connect(fd.get(),
                      reinterpret_cast<const sockaddr*>(&where.address),
                      where.size) != 0) {
          continue;
        }
        char byte;
        // The connection is closed, without a greeting.
        EXPECT_LE(::recv(fd.get(), &byte, 1, 0), 0);
        return;
      }
      ADD_FAILURE() << "nobody listens";
      return;
    }
    const auto comm = Open(name, 0, 2, 1);
    EXPECT_EQ(comm.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Contains(comm.status().message(), "missing [1]"));
  });
  ExpectAllPassed(results);
}

}  // namespace
}  // namespace shard::testing::hostile_test
