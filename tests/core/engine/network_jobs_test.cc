// SPDX-License-Identifier: Apache-2.0
//
// Jobs over hosts that meet in each way that a URL can say: engines of real
// ranks train a step, to the bits of ranks that are threads.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/comm/network/namespace_hosts.h"
#include "tests/core/engine/rank_training.h"
#include "tests/namespaces/namespaces.h"
#include "tests/ranks/ranks.h"
#include "tests/ranks/shared.h"

namespace shard::testing::network_jobs_test {
namespace {

// Two hosts, of 2 ranks and of 1.
const std::vector<int> kBegins = {0, 2, 3};
constexpr int kHosts = 2;
constexpr int kRanks = 3;

// The address of IPv6 that a host gets.
std::string Ipv6Address(int host) { return StrCat("fd77::", host + 1); }

class NetworkJobsTest : public NamespaceHostsTest {
 protected:
  using UrlOf = std::function<std::string(int rank)>;

  // Trains a step on hosts that are there, and compares it. `on_hosts`: else
  // all ranks are in the network of this process.
  void ExpectTrains(const UrlOf& url, bool on_hosts = true) {
    Training training = SmallTraining(kRanks);
    training.steps = 1;
    struct Board {
      float params[kRanks][kSmallElements];
    };
    const Shared<Board> board;
    ExpectAllPassed(RunRanks(kRanks, [&](const Rank& rank) {
      const int me = rank.rank();
      ASSERT_OK(hosts_->Enter(on_hosts ? HostOf(kBegins, me) : 0));
      TrainRank(training, StrCat(url(me), "&meet=30"),
                {.rank = me, .world_size = kRanks}, board->params[me]);
    }));
    std::vector<float> expected;
    for (const std::vector<float>& values : Train(training)) {
      expected.insert(expected.end(), values.begin(), values.end());
    }
    for (const auto& params : board->params) {
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), params));
    }
    for (int host = 0; host < kHosts; ++host) ExpectNothingLeft(host);
  }

  // Gives the hosts addresses of IPv6; false where this machine has none.
  bool AddIpv6() {
    for (int host = 0; host < kHosts; ++host) {
      const Status added = hosts_->Configure(
          host,
          StrCat("address add ", Ipv6Address(host), "/64 dev eth0 nodad"));
      if (!added.ok()) return false;
    }
    return true;
  }
};

TEST_F(NetworkJobsTest, LoopbackOfIpv6) {
  MakeHosts(kHosts);
  if (!AddIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  ExpectTrains(
      [](int rank) {
        return StrCat("tcp://[::1]:7077?host=h", HostOf(kBegins, rank));
      },
      false);
}

TEST_F(NetworkJobsTest, AddressesOfIpv6) {
  MakeHosts(kHosts);
  if (!AddIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  ExpectTrains([](int) {
    return StrCat("tcp://[", Ipv6Address(0), "]:7077?trust=network");
  });
}

// The hosts have two interfaces and reach HOST by the first. Nothing passes
// between the second ones, so hosts that take their addresses there fail.
TEST_F(NetworkJobsTest, AnInterfaceIsChosen) {
  MakeHosts(kHosts);
  for (int host = 0; host < kHosts; ++host) {
    ASSERT_OK(
        hosts_->Configure(host, "link add other0 type veth peer name peer0"));
    ASSERT_OK(hosts_->Configure(
        host, StrCat("address add 10.99.0.", host + 1, "/24 dev other0")));
    ASSERT_OK(hosts_->Configure(host, "link set other0 up"));
    ASSERT_OK(hosts_->Configure(host, "link set peer0 up"));
  }
  const std::string url =
      StrCat("tcp://", Namespaces::Address(0), ":7077?trust=network");
  ExpectTrains([&](int) { return StrCat(url, "&interface=eth0"); });
  ExpectTrains([&](int rank) {
    return StrCat(url, "&address=", Namespaces::Address(HostOf(kBegins, rank)));
  });
  ExpectAllPassed(RunRanks(kRanks, [&](const Rank& rank) {
    const int me = rank.rank();
    ASSERT_OK(hosts_->Enter(HostOf(kBegins, me)));
    const auto comm = OpenCommunicator(StrCat(url, "&meet=3&interface=other0"),
                                       {.rank = me, .world_size = kRanks});
    EXPECT_FALSE(comm.ok()) << "met by an interface that leads nowhere";
  }));
}

TEST_F(NetworkJobsTest, AFolder) {
  MakeHosts(kHosts);
  const TempFolder folder;
  for (const char* const choice : {"interface=eth0", "address="}) {
    SCOPED_TRACE(choice);
    ExpectTrains([&](int rank) {
      const bool is_address = StrCat(choice).back() == '=';
      return StrCat(
          "file:", folder.path(), "?trust=network&", choice,
          is_address ? Namespaces::Address(HostOf(kBegins, rank)) : "");
    });
  }
}

}  // namespace
}  // namespace shard::testing::network_jobs_test
