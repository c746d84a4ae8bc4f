// SPDX-License-Identifier: Apache-2.0
//
// The rendezvous of the ranks of a "shm:" group, and the error that every rank
// gets when they cannot meet.

#include "core/comm/shm/rendezvous.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>

#include "core/base/fd.h"
#include "core/comm/communicator.h"
#include "core/comm/shm/packet.h"
#include "core/comm/shm/wire.h"
#include "tests/core/comm/backends.h"

namespace shard::testing::rendezvous_test {
namespace {

// The rank and world size that one process claims when it opens the group.
struct Claim {
  int rank;
  int world_size;
};

StatusOr<std::shared_ptr<Communicator>> Open(const std::string& name,
                                             Claim claim, double timeout) {
  return OpenCommunicator(
      StrCat("shm:", name),
      {.rank = claim.rank, .world_size = claim.world_size, .timeout = timeout});
}

// Opens the group in one process per claim. No process leaves a descriptor
// behind. The reports are "CODE rank message".
std::vector<RankResult> Connect(const std::vector<Claim>& claims,
                                double timeout = 20) {
  const std::string name = UniqueName();
  return RunRanks(static_cast<int>(claims.size()), [&](const Rank& rank) {
    const int before = CountOpenFiles();
    {
      auto comm = Open(name, claims[static_cast<size_t>(rank.rank())], timeout);
      rank.Report(comm.status().ToString());
      if (comm.ok()) SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
    }
    EXPECT_EQ(CountOpenFiles(), before);
  });
}

void ExpectAllTold(const std::vector<RankResult>& results,
                   const std::string& part) {
  ExpectAllPassed(results);
  for (const RankResult& result : results) {
    EXPECT_TRUE(Contains(result.report, part)) << "rank " << result.rank;
  }
}

TEST(RendezvousTest, ManyMeetAndLeaveNothing) {
  for (const int world_size : {1, 2, 7, 20}) {
    std::vector<Claim> claims;
    for (int r = 0; r < world_size; ++r) claims.push_back({r, world_size});
    ExpectAllTold(Connect(claims), "OK");
  }
}

TEST(RendezvousTest, SameNameAgainAtOnce) {
  const std::string name = UniqueName();
  ExpectAllPassed(RunRanks(3, [&](const Rank& rank) {
    for (int i = 0; i < 20; ++i) {
      auto comm = Open(name, {rank.rank(), 3}, 20);
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      SHARD_ASSERT_OK((*comm)->Shutdown(Soon()));
    }
  }));
}

TEST(RendezvousTest, MissingRanksAreNamedOnAll) {
  const auto results = Connect({{0, 4}, {2, 4}}, 0.3);
  ExpectAllTold(results, "DEADLINE_EXCEEDED");
  ExpectAllTold(results, "2 of 4 ranks did not come");
  ExpectAllTold(results, "within 0.3 s: missing [1, 3]");
}

// The shortest deadline of all ranks ends the rendezvous, with the same message
// for all.
TEST(RendezvousTest, TheShortestDeadlineCounts) {
  const std::string name = UniqueName();
  const auto results = RunRanks(2, [&](const Rank& rank) {
    const auto comm = Open(name, {rank.rank(), 3}, rank.rank() == 0 ? 40 : 0.3);
    EXPECT_EQ(comm.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Contains(comm.status().message(), "missing [2]"));
  });
  ExpectAllPassed(results);
  EXPECT_LT(results[0].seconds, 10);
}

TEST(RendezvousTest, AMissingHostIsNamed) {
  const auto results = Connect({{1, 3}, {2, 3}}, 0.3);
  ExpectAllTold(results, "DEADLINE_EXCEEDED");
  ExpectAllTold(results, "rank 0 did not come");
  ExpectAllTold(results, "missing [0]");
}

TEST(RendezvousTest, ADuplicateRankIsAnErrorOnAllRanks) {
  const auto results = Connect({{0, 3}, {1, 3}, {1, 3}});
  ExpectAllTold(results, "ALREADY_EXISTS");
  ExpectAllTold(results, "two processes say they are rank 1");
}

TEST(RendezvousTest, ASecondHostIsRefused) {
  const std::string name = UniqueName();
  ExpectAllPassed(RunRanks(1, [&](const Rank&) {
    // This socket holds the name without being a rank.
    const shm::Address where = shm::AddressOf(name);
    const Fd holder(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(
        ::bind(holder.get(), reinterpret_cast<const sockaddr*>(&where.address),
               where.size),
        0);
    const auto comm = Open(name, {0, 2}, 5);
    EXPECT_EQ(comm.status().code(), StatusCode::kAlreadyExists);
    EXPECT_TRUE(Contains(comm.status().message(), "name of its own"));
  }));
}

TEST(RendezvousTest, DifferentWorldSizesAreErrorsOnAllRanks) {
  const auto results = Connect({{0, 2}, {1, 3}});
  ExpectAllTold(results, "INVALID_ARGUMENT");
  ExpectAllTold(results, "rank 1 says world size 3, rank 0 says 2");
  // Ranks that come after the first two have disagreed are told as well.
  const auto more = Connect({{0, 2}, {1, 3}, {2, 3}});
  ExpectAllTold(more, "INVALID_ARGUMENT");
}

TEST(RendezvousTest, RanksMustBeBelowTheWorldSize) {
  ExpectAllTold(Connect({{5, 2}}, 1), "rank 5 is not in 0 to 1");
  ExpectAllTold(Connect({{-1, 2}}, 1), "rank -1 is not in 0 to 1");
}

TEST(RendezvousTest, NamesAreChecked) {
  for (const std::string& name :
       {std::string(), std::string(81, 'n'), std::string("a\nb")}) {
    const auto comm = Open(name, {0, 1}, 1);
    EXPECT_EQ(comm.status().code(), StatusCode::kInvalidArgument) << name;
  }
  EXPECT_TRUE(Open(std::string(80, 'n'), {0, 1}, 1).ok());
}

// --- strangers at the door ---

Fd Connect(const std::string& name) {
  const shm::Address where = shm::AddressOf(name);
  for (const Deadline deadline = Soon(); !deadline.Expired();
       ::poll(nullptr, 0, 1)) {
    Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&where.address),
                  where.size) == 0) {
      return fd;
    }
  }
  ADD_FAILURE() << "nobody listens at " << name;
  return Fd();
}

// Process 2 sends garbage to the rendezvous of ranks 0 and 1. It lets rank 1
// come only after the garbage was read.
TEST(RendezvousTest, GarbageDoesNotDisturb) {
  const std::string name = UniqueName();
  const std::string gate = UniqueName();
  ExpectAllPassed(RunRanks(3, [&](const Rank& rank) {
    if (rank.rank() == 2) {
      std::vector<Fd> connections;
      for (size_t size : {1, 16, 24, 40, 4000, 9000}) {
        connections.push_back(Connect(name));
        const std::string garbage(size, '\xA5');
        // The garbage comes with a descriptor, which the host must not keep.
        SHARD_EXPECT_OK(shm::Send(connections.back().get(), garbage.data(),
                                  garbage.size(), {0}, Soon()));
      }
      shm::Hello wrong{};  // The right size, the wrong kind.
      wrong.header = shm::Header::Of(shm::Kind::kPeers);
      connections.push_back(Connect(name));
      SHARD_EXPECT_OK(shm::Send(connections.back().get(), &wrong, sizeof(wrong),
                                {}, Soon()));
      // The host closes all of these.
      for (const Fd& fd : connections) {
        StatusOr<shm::Packet> packet = shm::Receive(fd.get(), Soon());
        while (packet.ok()) packet = shm::Receive(fd.get(), Soon());
        EXPECT_EQ(packet.status().code(), StatusCode::kUnavailable);
      }
      Connect(name);                       // Connects and goes away.
      const Fd silent = Connect(name);     // Connects and says nothing.
      auto open = Open(gate, {1, 2}, 20);  // Now rank 1 may come.
      ASSERT_TRUE(open.ok()) << open.status().ToString();
      SHARD_EXPECT_OK((*open)->Shutdown(Soon()));
      char byte;
      while (::recv(silent.get(), &byte, 1, 0) > 0) {
      }
      return;
    }
    if (rank.rank() == 1) {
      auto open = Open(gate, {0, 2}, 20);
      ASSERT_TRUE(open.ok()) << open.status().ToString();
      SHARD_EXPECT_OK((*open)->Shutdown(Soon()));
    }
    const int before = CountOpenFiles();
    {
      auto comm = Open(name, {rank.rank(), 2}, 20);
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
    }
    EXPECT_EQ(CountOpenFiles(), before);
  }));
}

TEST(RendezvousTest, AnotherProtocolVersionIsRefused) {
  const std::string name = UniqueName();
  ExpectAllPassed(RunRanks(2, [&](const Rank& rank) {
    if (rank.rank() == 0) {
      const auto comm = Open(name, {0, 2}, 20);
      EXPECT_EQ(comm.status().code(), StatusCode::kFailedPrecondition);
      EXPECT_TRUE(Contains(comm.status().message(), "speaks version 99"));
      return;
    }
    const Fd fd = Connect(name);
    shm::Hello hello{};
    hello.header = shm::Header::Of(shm::Kind::kHello);
    hello.header.version = 99;
    SHARD_EXPECT_OK(shm::Send(fd.get(), &hello, sizeof(hello), {}, Soon()));
    ASSERT_TRUE(shm::Receive(fd.get(), Soon()).ok());  // The greeting.
    const auto packet = shm::Receive(fd.get(), Soon());
    ASSERT_TRUE(packet.ok()) << packet.status().ToString();
    const auto verdict =
        shm::Parse<shm::Verdict>(packet->bytes, shm::Kind::kVerdict);
    ASSERT_TRUE(verdict.has_value());
    EXPECT_EQ(shm::StatusOf(*verdict).code(), StatusCode::kFailedPrecondition);
  }));
}

// The host dies after it has greeted: the guests name it at once.
TEST(RendezvousTest, ADeadHostIsNamedAtOnce) {
  const std::string name = UniqueName();
  const auto results = RunRanks(2, [&](const Rank& rank) {
    if (rank.rank() == 0) {
      const shm::Address where = shm::AddressOf(name);
      const Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      ASSERT_EQ(
          ::bind(listener.get(),
                 reinterpret_cast<const sockaddr*>(&where.address), where.size),
          0);
      ASSERT_EQ(::listen(listener.get(), 4), 0);
      const Fd guest(::accept(listener.get(), nullptr, nullptr));
      const shm::Greeting greeting{shm::Header::Of(shm::Kind::kGreeting)};
      SHARD_ASSERT_OK(
          shm::Send(guest.get(), &greeting, sizeof(greeting), {}, Soon()));
      ASSERT_TRUE(shm::Receive(guest.get(), Soon()).ok());  // The hello.
      ::raise(SIGKILL);
    }
    const auto comm = Open(name, {1, 2}, 20);
    EXPECT_EQ(comm.status().code(), StatusCode::kRankLost);
    EXPECT_EQ(comm.status().rank(), 0);
  });
  EXPECT_TRUE(results[1].passed()) << results[1].ToString();
  EXPECT_LT(results[1].seconds, 5);
}

// Waits until so many guests are in the queue of the socket that listens at
// `name`. The kernel lists each under the name of that socket.
void WaitForGuests(const std::string& name, int guests) {
  for (const Deadline deadline = Soon(); !deadline.Expired();
       ::poll(nullptr, 0, 1)) {
    std::ifstream sockets("/proc/net/unix");
    int found = 0;
    for (std::string line; std::getline(sockets, line);) {
      found += Contains(line, name);
    }
    if (found == 1 + guests) return;
  }
  ADD_FAILURE() << "fewer than " << guests << " guests came to " << name;
}

// The host dies with guests in its queue that it has not greeted. No rank has
// met it, and another host may still come, so the guests wait until the
// deadline.
TEST(RendezvousTest, GuestsOutwaitAHostThatDiesBeforeItGreets) {
  constexpr double kTimeout = 1;
  const std::string name = UniqueName();
  const auto results = RunRanks(3, [&](const Rank& rank) {
    const CommOptions options = {.rank = rank.rank(),
                                 .world_size = 3,
                                 .timeout = kTimeout,
                                 .phase_hook = [&](std::string_view what) {
                                   if (what != "rendezvous: listening") return;
                                   WaitForGuests(name, 2);
                                   ::raise(SIGKILL);
                                 }};
    const auto comm = OpenCommunicator(StrCat("shm:", name), options);
    EXPECT_EQ(comm.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(comm.status().rank(), 0);
    EXPECT_TRUE(Contains(comm.status().message(), "rank 0 did not come"));
  });
  EXPECT_EQ(results[0].signal, SIGKILL);
  for (const int guest : {1, 2}) {
    const RankResult& result = results[static_cast<size_t>(guest)];
    EXPECT_TRUE(result.passed()) << result.ToString();
    EXPECT_LT(result.seconds, kTimeout + 1);
  }
}

// The host hangs after it has heard a guest, which waits for a verdict.
TEST(RendezvousTest, AHostThatHangsIsGivenUpAtTheDeadline) {
  constexpr double kTimeout = 0.5;
  const std::string name = UniqueName();
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const Fd read(pipe[0]);
  const Fd write(pipe[1]);
  const auto results = RunRanks(2, [&](const Rank& rank) {
    // The third rank never comes.
    CommOptions options = {
        .rank = rank.rank(), .world_size = 3, .timeout = kTimeout};
    if (rank.rank() == 0) {
      const pid_t self = ::getpid();
      ASSERT_EQ(::write(write.get(), &self, sizeof(self)),
                static_cast<ssize_t>(sizeof(self)));
      OpenCommunicator(StrCat("shm:", name), options).status();
      return;
    }
    pid_t host = 0;
    ASSERT_EQ(::read(read.get(), &host, sizeof(host)),
              static_cast<ssize_t>(sizeof(host)));
    options.phase_hook = [host](std::string_view what) {
      if (what == "rendezvous: hello") ::kill(host, SIGSTOP);
    };
    const auto start = std::chrono::steady_clock::now();
    const auto comm = OpenCommunicator(StrCat("shm:", name), options);
    const std::chrono::duration<double> waited =
        std::chrono::steady_clock::now() - start;
    ::kill(host, SIGKILL);
    EXPECT_EQ(comm.status().code(), StatusCode::kDeadlineExceeded)
        << comm.status().ToString();
    EXPECT_TRUE(Contains(comm.status().message(), "did not answer within"));
    EXPECT_LT(waited.count(), kTimeout + 1);
  });
  EXPECT_EQ(results[0].signal, SIGKILL) << results[0].ToString();
  EXPECT_TRUE(results[1].passed()) << results[1].ToString();
}

// --- what is held afterwards ---

// A host may close all descriptors that it does not know, as daemons do.
// libshard then no longer sees the deaths of peers, but must not report any.
TEST(RendezvousTest, ClosedDescriptorsAreNoDeath) {
  for (const int closer : {0, 1}) {
    const std::string name = UniqueName();
    int pipe[2];
    ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
    const Fd read(pipe[0]);
    const Fd write(pipe[1]);
    ExpectAllPassed(RunRanks(2, [&](const Rank& rank) {
      std::vector<int> free;
      for (int fd = 3; fd < 200; ++fd) {
        if (::fcntl(fd, F_GETFD) < 0) free.push_back(fd);
      }
      auto comm = Open(name, {rank.rank(), 2}, 20);
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      char byte = 0;
      if (rank.rank() != closer) {
        SHARD_EXPECT_OK((*comm)->Barrier("both are there", Soon()));
        EXPECT_EQ(::read(read.get(), &byte, 1), 1);
        return;
      }
      int closed = 0;
      for (const int fd : free) closed += ::close(fd) == 0;
      EXPECT_GT(closed, 0);
      SHARD_EXPECT_OK((*comm)->Barrier("both are there", Soon()));
      // The other rank does not come. A wait checks for deaths every 50 ms.
      const Status late =
          (*comm)->Barrier("only one is there", Deadline::After(0.2));
      EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded) << late.ToString();
      EXPECT_EQ(::write(write.get(), &byte, 1), 1);
    }));
  }
}

TEST(RendezvousTest, DescriptorsAreClosedOnExecAndGoWithTheGroup) {
  const std::string name = UniqueName();
  // The caller of the test may have left some descriptors open.
  const auto inherited = [] {
    int count = 0;
    for (int fd = 3; fd < 200; ++fd) {
      const int flags = ::fcntl(fd, F_GETFD);
      if (flags >= 0 && (flags & FD_CLOEXEC) == 0) ++count;
    }
    return count;
  };
  ExpectAllPassed(RunRanks(3, [&](const Rank& rank) {
    const int before = CountOpenFiles();
    const int inherited_before = inherited();
    {
      auto comm = Open(name, {rank.rank(), 3}, 20);
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      std::shared_ptr<SymmetricBuffer> kept;
      for (int i = 0; i < 10; ++i) {
        const int open = CountOpenFiles();
        auto buffer =
            (*comm)->Allocate("buffer", 8192, SymmetricKind::kPerRank, Soon());
        ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
        kept = *buffer;
        // A mapping holds the memory, not a descriptor.
        EXPECT_EQ(CountOpenFiles(), open);
        const auto too_much = (*comm)->Allocate(
            "too much", size_t{1} << 46, SymmetricKind::kPerHost, Soon());
        EXPECT_FALSE(too_much.ok());
        EXPECT_EQ(CountOpenFiles(), open);
      }
      EXPECT_EQ(inherited(), inherited_before);
      SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
    }
    EXPECT_EQ(CountOpenFiles(), before);
  }));
}

// A child that a rank forks, and that frees its copy, does not act for the
// rank.
TEST(RendezvousTest, ForkedChildIsNotTheRank) {
  const std::string name = UniqueName();
  ExpectAllPassed(RunRanks(2, [&](const Rank& rank) {
    auto comm = Open(name, {rank.rank(), 2}, 20);
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    if (rank.rank() == 1) {
      const auto child = RunRanks(1, [&](const Rank&) { *comm = nullptr; });
      ExpectAllPassed(child);
    }
    SHARD_EXPECT_OK((*comm)->Barrier("still there", Soon()));
    SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
  }));
}

}  // namespace
}  // namespace shard::testing::rendezvous_test
