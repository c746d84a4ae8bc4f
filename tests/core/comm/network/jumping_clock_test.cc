// SPDX-License-Identifier: Apache-2.0
//
// Somebody sets the clocks of all hosts while ranks meet, work and wait: no
// deadline passes early, none late, and no host counts as silent.

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/comm/tcp_hosts.h"
#include "tests/ranks/ranks.h"

namespace shard::testing::jumping_clock_test {
namespace {

TEST(JumpingClockTest, DeadlinesAndHeartbeatsDoNotFollowIt) {
  constexpr int kRanks = 3;
  constexpr double kSeconds = 1;
  const TcpHosts hosts(kRanks);
  const std::string library =
      std::filesystem::canonical("tests/core/comm/network/libjumping_clock.so");
  const auto results = RunRanks(kRanks, [&](const Rank& rank) {
    ::setenv("SHARD_TEST_CLOCK_JUMPS", "1", 1);
    // The helper has it from the rank that starts it.
    ::setenv("LD_PRELOAD", library.c_str(), 1);
    std::set<std::chrono::hours> hours;
    const auto look = [&] {
      hours.insert(std::chrono::duration_cast<std::chrono::hours>(
          std::chrono::system_clock::now().time_since_epoch()));
    };
    // A quarter of the time to meet is borne as silence.
    auto comm =
        OpenCommunicator(StrCat(hosts.Url(rank.rank()), "&timeout=", kSeconds),
                         {.rank = rank.rank(), .world_size = kRanks});
    ASSERT_OK(comm);
    const Deadline idle = Deadline::After(2);
    while (!idle.Expired()) {
      look();
      ASSERT_OK((*comm)->Barrier("barrier", Deadline::After(20)));
      ::poll(nullptr, 0, 50);
    }
    EXPECT_GE(hours.size(), 3u);
    const auto begin = Deadline::Clock::now();
    if (rank.rank() != 1) {
      const Status late = (*comm)->Barrier("late", Deadline::After(kSeconds));
      EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded) << late.ToString();
      EXPECT_EQ(late.rank(), 1) << late.ToString();
      const std::chrono::duration<double> took = Deadline::Clock::now() - begin;
      EXPECT_GE(took.count(), kSeconds);
      EXPECT_LT(took.count(), kSeconds + 4);
    } else {
      ::poll(nullptr, 0, 6000);
    }
  });
  ExpectAllPassed(results);
}

}  // namespace
}  // namespace shard::testing::jumping_clock_test
