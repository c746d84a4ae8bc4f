// SPDX-License-Identifier: Apache-2.0
//
// Ranks whose network helper is killed: they name the rank that the other hosts
// name.

#include <unistd.h>

#include <atomic>
#include <string>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/comm/network/local_helper.h"
#include "tests/core/comm/tcp_hosts.h"
#include "tests/ranks/shared.h"

namespace shard::testing::lost_helper_test {
namespace {

// Returns the key of the helper that the ranks of a URL of TcpHosts share.
std::string KeyOf(const std::string& url) {
  const auto option = [&](const std::string& name) {
    const size_t begin = url.find(StrCat(name, "=")) + name.size() + 1;
    return url.substr(begin, url.find('&', begin) - begin);
  };
  return StrCat(url.substr(0, url.find('?')), "\n", option("job"), "\n0\n",
                option("host"));
}

// Rank 0 is on one host, ranks 1 and 2 are on the other one, whose helper dies.
TEST(LostHelperTest, AllHostsNameTheFirstRankOfItsHost) {
  constexpr int kRanks = 3;
  const TcpHosts hosts(kRanks);
  const Shared<std::atomic<int>> met;
  const auto results = RunRanks(kRanks, [&](const Rank& rank) {
    const std::string url = hosts.Url(rank.rank());
    pid_t helper = 0;
    if (rank.rank() == 2) {  // It tells its process until all have met.
      const std::string key = KeyOf(url);
      ASSERT_TRUE(ComesTrue([&] { return (helper = HelperOf(key)) != 0; }));
    }
    const auto comm = OpenCommunicator(
        url, {.rank = rank.rank(), .world_size = kRanks, .timeout = 30});
    ASSERT_OK(comm);
    ASSERT_OK((*comm)->Barrier("all are here", Soon()));
    ++*met;
    if (rank.rank() == 2) {
      // A rank of the other host may still be in the barrier.
      ASSERT_TRUE(ComesTrue([&] { return met->load() == kRanks; }));
      ASSERT_EQ(::kill(helper, SIGKILL), 0);
      ASSERT_TRUE(EndsSoon(helper));
    }
    Status status;
    while (status.ok()) status = (*comm)->Barrier("after it died", Soon());
    ExpectError(status, StatusCode::kRankLost,
                {"rank 1 (host ", "cannot be reached", "'after it died'"});
    EXPECT_EQ(status.rank(), 1) << status.ToString();
    rank.Report(status.ToString());
  });
  ExpectAllPassed(results);
}

}  // namespace
}  // namespace shard::testing::lost_helper_test
