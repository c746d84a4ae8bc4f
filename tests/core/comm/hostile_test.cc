// SPDX-License-Identifier: Apache-2.0
//
// Machines and neighbours that do not help: no pidfds, another user at the
// meeting point.

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/fd.h"
#include "core/comm/communicator.h"
#include "core/comm/shm/meeting.h"
#include "tests/core/comm/backends.h"

namespace shard::testing {
namespace {

StatusOr<std::shared_ptr<Communicator>> Open(const std::string& name, int rank,
                                             int world_size,
                                             double timeout = 20) {
  CommOptions options;
  options.rank = rank;
  options.world_size = world_size;
  options.timeout = timeout;
  return OpenCommunicator(StrCat("shm:", name), options);
}

// As an old kernel would: pidfd_open is not there. False where the sandbox
// allows no filters.
bool ForbidPidfds() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(code)), code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// One rank without is enough for all to fall back on their connections.
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

// --- another user; needs root, and a user to become ---

constexpr uid_t kOtherUser = 65534;

bool BecomeOtherUser() {
  return ::setresuid(kOtherUser, kOtherUser, kOtherUser) == 0;
}

// Tried in a process of its own. Not possible in a sandbox's user namespace.
bool CanBecomeOtherUser() {
  return RunRanks(1,
                  [](const Rank& rank) {
                    if (BecomeOtherUser()) rank.Report("yes");
                  })[0]
             .report == "yes";
}

// Listens where this user's rank 0 would.
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
      EXPECT_LE(::recv(guest.get(), &byte, 1, 0), 0);  // It says nothing.
      return;
    }
    const auto comm = Open(name, 1, 2, 5);
    EXPECT_EQ(comm.status().code(), StatusCode::kPermissionDenied)
        << comm.status().ToString();
    EXPECT_TRUE(Contains(comm.status().message(), "is of user 65534"));
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
        EXPECT_LE(::recv(fd.get(), &byte, 1, 0), 0);  // Closed, not greeted.
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
}  // namespace shard::testing
