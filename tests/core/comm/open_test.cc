// SPDX-License-Identifier: Apache-2.0
//
// The meaning of URLs and options, and the meeting of threads.

#include <stdlib.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "core/comm/communicator.h"
#include "tests/core/comm/backends.h"

namespace {

// Whether the program is as one that is setuid.
std::atomic<bool> has_rights_of_another_user = false;

}  // namespace

// Takes the place of libc's.
extern "C" char* secure_getenv(const char* name) noexcept {
  return has_rights_of_another_user ? nullptr : ::getenv(name);
}

namespace shard::testing::open_test {
namespace {

struct BadUrl {
  const char* url;
  int rank;
  int world_size;
  const char* part;
};

TEST(OpenTest, WrongUrlsAreRefused) {
  const BadUrl cases[] = {
      {"", 0, 1, "has no name"},
      {"udp://host:1", 0, 1,
       "known: local:, threads:N, shm:NAME, tcp://HOST:PORT, "
       "file:/FOLDER, env:"},
      {"tcp:host:1", 0, 1, "the form is tcp://host:port"},
      {"tcp://", 0, 1, "the form is tcp://host:port"},
      {"file:", 0, 1, "the form is file:/path"},
      {"file:folder", 0, 1, "the form is file:/path"},
      {"file:/folder?jop=x", 0, 1, "unknown key 'jop'"},
      {"tcp://host:1?restart=-1", 0, 1, "restart=-1 is out of range"},
      {"tcp://host:1?meet=0", 0, 1, "meet=0 is out of range"},
      {"tcp://host:1?direct=0", 0, 1, "share no memory as it is"},
      {"tcp://host:1?jop=x", 0, 1, "unknown key 'jop'"},
      {"tcp://host:1", 2, 2, "rank 2 is not in 0 to 1"},
      {"local:x", 0, 1, "followed by nothing"},
      {"local:", 1, 2, "the options say rank 1 of 2"},
      {"local:?tmeout=1", 0, 1, "unknown key 'tmeout'"},
      {"local:?name=x", 0, 1, "unknown key 'name'"},
      {"local:?timeout=0", 0, 1, "must be positive"},
      {"local:?timeout=soon", 0, 1, "timeout='soon'"},
      {"threads:", 0, 1, "how many threads"},
      {"threads:0", 0, 0, "how many threads"},
      {"threads:two", 0, 2, "how many threads"},
      {"threads:2", -1, 2, "none was given"},
      {"threads:2", 2, 2, "rank 2 is not in 0 to 1"},
      {"threads:2", 0, 3, "world_size is 2 in 'threads:2' and 3"},
      {"threads:4000", 0, 0, "world_size 4000 is not in 1 to 512"},
      {"shm:", 0, 1, "needs the name"},
      {"shm:x?rank=1", 0, 2, "rank is 1 in 'shm:x?rank=1' and 0"},
      {"shm:x", -1, 0, "neither the options"},
      {"shm:x", 0, 0, "world_size 0"},
      {"local:?direct=2", 0, 1, "direct='2'"},
      {"local:?direct=0&delay=-1", 0, 1, "a delay of -1 seconds"},
      {"local:?direct=0&delay=inf", 0, 1, "delay='inf'"},
      {"local:?direct=0&bandwidth=-2", 0, 1, "a bandwidth of -2 bytes"},
      {"local:?direct=0&bandwidth=nan", 0, 1, "bandwidth='nan'"},
      {"local:?delay=1", 0, 1, "delay is of a simulated link"},
      {"threads:1?direct=1&bandwidth=1e9", 0, 1, "add direct=0"},
      {"shm:x?bandwidth=1", 0, 1, "bandwidth is of a simulated link"},
      {"env:?delay=1", -1, 0, "'env:?delay=1': delay is of"},
      {"env:x", -1, 0, "followed by nothing"},
      {"env:?rank=1", -1, 0, "unknown key 'rank'"},
  };
  for (const BadUrl& bad : cases) {
    SCOPED_TRACE(bad.url);
    const auto comm = OpenCommunicator(
        bad.url,
        {.rank = bad.rank, .world_size = bad.world_size, .timeout = 0.2});
    ASSERT_FALSE(comm.ok());
    EXPECT_EQ(comm.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Contains(comm.status().message(), bad.part));
  }
}

TEST(OpenTest, TheTimeoutOfTheUrlCounts) {
  const auto comm = OpenCommunicator("local:?timeout=2.5", CommOptions());
  ASSERT_TRUE(comm.ok()) << comm.status().ToString();
  EXPECT_EQ((*comm)->timeout(), 2.5);
  const auto endless = OpenCommunicator("local:", {.timeout = INFINITY});
  EXPECT_TRUE(Contains(endless.status().message(), "positive and finite"));
}

TEST(OpenTest, TheUrlMayNameTheRank) {
  const auto comm = OpenCommunicator(
      "shm:" + UniqueName() + "?rank=0&world_size=1", CommOptions());
  ASSERT_TRUE(comm.ok()) << comm.status().ToString();
  EXPECT_EQ((*comm)->world_size(), 1);
}

TEST(OpenTest, TheEnvironmentNamesTheGroup) {
  ::setenv("SHARD_RENDEZVOUS", UniqueName().c_str(), 1);
  ::setenv("SHARD_WORLD_SIZE", "2", 1);
  for (const char* url : {"env:", "env:?timeout=20"}) {
    ExpectAllPassed(RunRanks(2, [&](const Rank& rank) {
      ::setenv("SHARD_RANK", std::to_string(rank.rank()).c_str(), 1);
      const auto comm = OpenCommunicator(url, CommOptions());
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      EXPECT_EQ((*comm)->rank(), rank.rank());
      EXPECT_TRUE(
          Contains((*comm)->Describe(), "of 2 (from SHARD_* variables)"));
      SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
    }));
  }
  const std::string named = "shm:" + UniqueName();
  ExpectAllPassed(RunRanks(2, [&](const Rank& rank) {
    ::setenv("SHARD_RANK", std::to_string(rank.rank()).c_str(), 1);
    const auto comm = OpenCommunicator(named, CommOptions());
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    EXPECT_EQ((*comm)->rank(), rank.rank());
    SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
  }));
  ::unsetenv("SHARD_RENDEZVOUS");
  ::unsetenv("SHARD_WORLD_SIZE");
}

// Its user must not make it write files.
TEST(OpenTest, AProgramWithTheRightsOfAnotherUserIgnoresTheVariablesOfFiles) {
  for (const char* name : {"SHARD_LOG_FILE", "SHARD_TRACE", "SHARD_METRICS"}) {
    ExpectAllPassed(RunRanks(1, [&](const Rank&) {
      ::setenv(name, "/no/such/folder/file", 1);
      has_rights_of_another_user = true;
      SHARD_EXPECT_OK(OpenCommunicator("local:", CommOptions()).status());
      has_rights_of_another_user = false;
      EXPECT_EQ(OpenCommunicator("local:", CommOptions()).status().code(),
                StatusCode::kNotFound)
          << name;
    }));
  }
}

TEST(OpenTest, NotDirectThroughTheEnvironment) {
  for (const char* url : {"local:?direct=0", "env:?direct=0"}) {
    const auto comm = OpenCommunicator(url, CommOptions());
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    EXPECT_FALSE((*comm)->direct());
  }
  // The launcher's URL has some parameters, and the host's own URL adds one.
  const std::string where = "shm:" + UniqueName() + "?direct=0&delay=0.25";
  ::setenv("SHARD_RENDEZVOUS", where.c_str(), 1);
  ::setenv("SHARD_WORLD_SIZE", "2", 1);
  ExpectAllPassed(RunRanks(2, [&](const Rank& rank) {
    ::setenv("SHARD_RANK", std::to_string(rank.rank()).c_str(), 1);
    const auto comm =
        OpenCommunicator("env:?direct=0&bandwidth=500", CommOptions());
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    EXPECT_FALSE((*comm)->direct());
    EXPECT_TRUE(Contains((*comm)->Describe(),
                         "of 2, without shared memory, delay 0.25 s, bandwidth "
                         "500 bytes/s (from SHARD_* variables)"));
    SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
  }));
  ::unsetenv("SHARD_RENDEZVOUS");
  ::unsetenv("SHARD_WORLD_SIZE");
}

TEST(ThreadsTest, MissingRanksAreNamedOnAll) {
  const std::string url = UrlFor(Backend::kThreads, UniqueName(), 5);
  std::vector<Status> statuses(2);
  RunEach(Backend::kThreads, 2, [&](int i) {
    // The shortest deadline ends the meeting.
    const CommOptions options = {.rank = i == 0 ? 1 : 3,
                                 .timeout = i == 0 ? 0.2 : 20};
    statuses[static_cast<size_t>(i)] = OpenCommunicator(url, options).status();
  });
  for (const Status& status : statuses) {
    // The second rank may come only when the first has given up.
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Contains(status.message(), "missing [0, "));
  }
}

TEST(ThreadsTest, DuplicateRankDoesNotBreakTheOthers) {
  const std::string url = UrlFor(Backend::kThreads, UniqueName(), 2);
  std::atomic<bool> refused{false};
  RunEach(Backend::kThreads, 3, [&](int i) {
    const CommOptions options = {.rank = i == 2 ? 1 : 0};
    if (i == 2) {
      while (!refused) std::this_thread::yield();
    }
    const auto comm = OpenCommunicator(url, options);
    if (comm.ok()) {
      SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
      return;
    }
    // Two threads say that they are rank 0; the later one gets the error.
    EXPECT_EQ(comm.status().code(), StatusCode::kAlreadyExists);
    EXPECT_FALSE(refused.exchange(true));
  });
  EXPECT_TRUE(refused);
}

// One name is one group. Ranks that come in any order are told both sizes, long
// before their deadlines. Rank 2 is of the larger group.
TEST(ThreadsTest, DifferentWorldSizesUnderOneNameAreErrors) {
  const std::string name = UniqueName();
  for (const int last : {0, 1, 2}) {
    std::vector<Status> statuses(3);
    std::atomic<int> come{0};
    RunEach(Backend::kThreads, 3, [&](int rank) {
      const CommOptions options = {.rank = rank, .timeout = 10};
      // Two ranks of the larger group wait for rank 0. Other pairs quarrel, and
      // the last rank comes after that.
      if (rank != last && last == 0) ++come;
      while (rank == last && come < 2) std::this_thread::yield();
      const auto url =
          UrlFor(Backend::kThreads, StrCat(name, "-", last), rank == 0 ? 2 : 3);
      statuses[static_cast<size_t>(rank)] =
          OpenCommunicator(url, options).status();
      if (last != 0) ++come;
    });
    for (const Status& status : statuses) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_TRUE(
          Contains(status.message(), " says world size 3, rank 0 says 2"))
          << last;
    }
  }
}

// Ranks that were told of different sizes can use the name again at once.
TEST(ThreadsTest, ANameCanBeUsedAgainAfterAQuarrel) {
  const std::string name = UniqueName();
  RunEach(Backend::kThreads, 2, [&](int rank) {
    const CommOptions options = {.rank = rank};
    auto comm =
        OpenCommunicator(UrlFor(Backend::kThreads, name, 2 + rank), options);
    EXPECT_EQ(comm.status().code(), StatusCode::kInvalidArgument);
    comm = OpenCommunicator(UrlFor(Backend::kThreads, name, 2), options);
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    SHARD_ASSERT_OK((*comm)->Shutdown(Soon()));
  });
}

// Groups without a name are distinguished by their size.
TEST(ThreadsTest, WithoutANameSizesAreDifferentGroups) {
  RunEach(Backend::kThreads, 5, [&](int i) {
    const auto comm = OpenCommunicator(i < 2 ? "threads:2" : "threads:3",
                                       {.rank = i < 2 ? i : i - 2});
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
  });
}

TEST(ThreadsTest, ANameCanBeUsedAgainAtOnce) {
  const std::string url = UrlFor(Backend::kThreads, UniqueName(), 3);
  RunEach(Backend::kThreads, 3, [&](int rank) {
    const CommOptions options = {.rank = rank};
    for (int i = 0; i < 50; ++i) {
      const auto comm = OpenCommunicator(url, options);
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      SHARD_ASSERT_OK((*comm)->Shutdown(Soon()));
    }
  });
}

}  // namespace
}  // namespace shard::testing::open_test
