// SPDX-License-Identifier: Apache-2.0
//
// ?isolate=0: the network helpers are threads of the ranks' process, with the
// same code and the same bits.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/comm/tcp_hosts.h"
#include "tests/core/engine/rank_training.h"

namespace shard::in_process_helper_test {
namespace {

using testing::TcpHosts;

constexpr int kRanksOfHost = 2;
constexpr int kRanks = 2 * kRanksOfHost;

// Both hosts are threads of this process: its exit waits for their helpers.
TEST(InProcessHelperTest, TwoHostsTrain) {
  const TcpHosts hosts({0, kRanksOfHost, kRanks}, "isolate=0");
  // No program could be started.
  ASSERT_EQ(::setenv("SHARD_NETWORK_HELPER", "/nowhere/shard-network", 1), 0);
  for (const int stage : {0, 1}) {
    SCOPED_TRACE(stage);
    const Training training = SmallTraining(kRanks, stage);
    float params[kRanks][kSmallElements] = {};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        ASSERT_OK(hosts.Enter(rank));
        TrainRank(training, hosts.Url(rank),
                  {.rank = rank, .world_size = kRanks}, params[rank]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<float> expected;
    for (const std::vector<float>& values : Train(training)) {
      expected.insert(expected.end(), values.begin(), values.end());
    }
    for (const auto& values : params) {
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), values));
    }
  }
}

TEST(InProcessHelperTest, OtherValuesAreErrors) {
  for (const char* const value : {"2", "-1", "no"}) {
    const auto comm =
        OpenCommunicator(StrCat("tcp://127.0.0.1:29500?isolate=", value),
                         {.rank = 0, .world_size = 1});
    ExpectError(comm.status(), StatusCode::kInvalidArgument,
                {"isolate", value});
  }
}

}  // namespace
}  // namespace shard::in_process_helper_test
