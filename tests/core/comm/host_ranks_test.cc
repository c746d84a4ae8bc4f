// SPDX-License-Identifier: Apache-2.0

#include "core/comm/host_ranks.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/core/base/expect_status.h"
#include "tests/core/comm/backends.h"

namespace shard::host_ranks_test {
namespace {

using testing::Backend;
using testing::RunGroup;
using testing::Soon;

TEST(HostRanksTest, CountsTheHostsOfASet) {
  // Hosts of 3 ranks, of 1 and of 2.
  const HostRanks hosts(std::vector<int>{0, 0, 0, 3, 4, 4});
  EXPECT_EQ(hosts.CountOf(RankSet::All(6)), 3);
  EXPECT_EQ(hosts.MostOf(RankSet::All(6)), 3);
  // Pairs of neighbours: the second one is on two hosts.
  const int pairs[] = {1, 1, 2, 2, 1, 1};
  for (int rank = 0; rank < 6; ++rank) {
    const RankSet pair = RankSet::Of(rank, 1, 2);
    EXPECT_EQ(hosts.CountOf(pair), pairs[rank]) << rank;
    EXPECT_EQ(hosts.MostOf(pair), 2) << rank;
    EXPECT_EQ(hosts.CountOf(RankSet::Of(rank, 1, 1)), 1) << rank;
    // Three neighbours, and two that are three apart.
    EXPECT_EQ(hosts.MostOf(RankSet::Of(rank, 1, 3)), 2) << rank;
    EXPECT_EQ(hosts.CountOf(RankSet::Of(rank, 3, 2)), 2) << rank;
  }
}

TEST(HostRanksTest, RanksOfOneHostShareIt) {
  RunGroup(Backend::kThreads, 3, [](Communicator* comm) {
    const auto hosts = HostRanks::Gather(comm, "a test", Soon());
    ASSERT_OK(hosts);
    EXPECT_EQ(hosts->CountOf(RankSet::All(3)), 1);
  });
}

}  // namespace
}  // namespace shard::host_ranks_test
