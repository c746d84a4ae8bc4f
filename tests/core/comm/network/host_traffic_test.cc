// SPDX-License-Identifier: Apache-2.0
//
// The counter "ship" of ranks on hosts of their own network, with real helpers:
// the interfaces of the hosts send those bytes, and less than a percent more in
// all, without the headers of packets.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/comm/exchange.h"
#include "core/observe/event.h"
#include "core/observe/observer.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/comm/network/namespace_hosts.h"
#include "tests/namespaces/namespaces.h"
#include "tests/ranks/ranks.h"
#include "tests/ranks/shared.h"

namespace shard::testing::host_traffic_test {
namespace {

// Hosts of 2, 1 and 2 ranks.
const std::vector<int> kBegins = {0, 2, 3, 5};
constexpr int kHosts = 3;
constexpr int kRanks = 5;
constexpr int kSums = 5;
constexpr size_t kElements = 200'000;  // Of each rank's block.

class HostTrafficTest : public NamespaceHostsTest {
 protected:
  // Counted while the ranks sum.
  struct Board {
    std::atomic<uint64_t> shipped[kHosts];  // By the counters of ranks.
    std::atomic<uint64_t> sent[kHosts];     // By the interface, as payload.
  };

  Deadline Soon() const { return Deadline::After(30); }

  // Sums on a rank, and adds what was sent meanwhile to the board.
  void Sum(Communicator* comm, Board* board) const {
    const int host = HostOf(kBegins, comm->rank());
    const bool is_first = comm->rank() == kBegins[static_cast<size_t>(host)];
    const auto exchange = comm->OpenExchange("tensors", Soon());
    ASSERT_OK(exchange);
    const std::vector<float> send(size_t{kRanks} * kElements, 1);
    std::vector<float> recv(kElements);
    // Reads the interface between two barriers, where no rank sends tensors.
    const auto read = [&]() -> uint64_t {
      EXPECT_OK(comm->Barrier("sent", Soon()));
      const auto traffic = hosts_->CountTraffic(host);
      EXPECT_OK(traffic);
      EXPECT_OK(comm->Barrier("read", Soon()));
      return traffic.ok() ? traffic->payload_sent() : 0;
    };
    const auto counter = [&] {
      return comm->observer()->counters().Get(EventId::kShip).bytes;
    };
    const uint64_t sent = read();
    const uint64_t shipped = counter();
    for (int i = 0; i < kSums; ++i) {
      ASSERT_OK((*exchange)->ReduceScatter(
          "sum", RankSet::All(kRanks),
          {.send = send.data(), .count = kElements, .recv = recv.data()},
          Soon()));
    }
    board->shipped[host] += counter() - shipped;
    const uint64_t sent_then = read();
    if (is_first) board->sent[host] = sent_then - sent;
  }
};

TEST_F(HostTrafficTest, IsThatOfTheCounter) {
  for (const char* const form : {"direct", "chain"}) {
    SCOPED_TRACE(form);
    MakeHosts(kHosts);
    const std::string url = StrCat("tcp://", Namespaces::Address(0),
                                   ":7077?trust=network&meet=30&sums=", form);
    const Shared<Board> board;
    ExpectAllPassed(RunRanks(kRanks, [&](const Rank& rank) {
      const int me = rank.rank();
      ASSERT_OK(hosts_->Enter(HostOf(kBegins, me)));
      const auto comm =
          OpenCommunicator(url, {.rank = me, .world_size = kRanks});
      ASSERT_OK(comm);
      Sum(comm->get(), &*board);
      EXPECT_OK((*comm)->Shutdown(Soon()));
    }));
    uint64_t predicted_in_all = 0;
    uint64_t sent_in_all = 0;
    for (int h = 0; h < kHosts; ++h) {
      const auto k = static_cast<uint64_t>(kBegins[static_cast<size_t>(h) + 1] -
                                           kBegins[static_cast<size_t>(h)]);
      // docs/scaling.md, in elements of f32.
      const uint64_t blocks = form[0] == 'd'    ? k * (kRanks - k)
                              : h + 1 == kHosts ? kRanks - k
                                                : kRanks;
      const uint64_t predicted = blocks * kSums * kElements * sizeof(float);
      std::printf("%s, host %d: %llu bytes predicted, %llu sent\n", form, h,
                  static_cast<unsigned long long>(predicted),
                  static_cast<unsigned long long>(board->sent[h].load()));
      EXPECT_EQ(board->shipped[h], predicted) << "host " << h;
      EXPECT_GE(board->sent[h], predicted) << "host " << h;
      // Ranks send as many messages of rounds, whatever the tensors that their
      // host sends.
      EXPECT_LE(board->sent[h], predicted + predicted / 50) << "host " << h;
      predicted_in_all += predicted;
      sent_in_all += board->sent[h];
    }
    EXPECT_LE(sent_in_all, predicted_in_all + predicted_in_all / 100);
    for (int h = 0; h < kHosts; ++h) ExpectNothingLeft(h);
  }
}

}  // namespace
}  // namespace shard::testing::host_traffic_test
