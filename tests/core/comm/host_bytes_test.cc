// SPDX-License-Identifier: Apache-2.0
//
// The counter "ship" of each rank has the bytes of tensors that the rank sends
// to other hosts: those of the formulas of docs/scaling.md, and, where hosts'
// links are queues, those that the queues carry.
//
// The short form takes all hosts below on queues, and one group of hosts, with
// either form of sums, on real helpers. SHARD_TEST_LONG takes one more group on
// helpers.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/comm/direct/shipments.h"
#include "core/comm/exchange.h"
#include "core/observe/event.h"
#include "core/observe/observer.h"
#include "tests/core/comm/backends.h"
#include "tests/core/comm/host_group.h"

namespace shard::testing::host_bytes_test {
namespace {

using direct::HostSums;
using direct::Shipments;

TEST(ShipmentsTest, CountOncePerHostThatTheyGoTo) {
  Shipments shipments;
  EXPECT_EQ(shipments.BytesFrom(0), 0u);
  // To hosts 1 and 2, to host 3, and to hosts 0 to 4.
  ASSERT_TRUE(shipments.Add({0, 1000, 1, 3}));
  ASSERT_TRUE(shipments.Add({0, 100, 3, 4}));
  ASSERT_TRUE(shipments.Add({0, 1, 0, 5}));
  EXPECT_EQ(shipments.BytesFrom(0), 2104u);
  // Nothing is sent to the rank's own host.
  EXPECT_EQ(shipments.BytesFrom(1), 1104u);
  EXPECT_EQ(shipments.BytesFrom(3), 2004u);
  EXPECT_EQ(shipments.BytesFrom(5), 2105u);
  shipments.Clear();
  EXPECT_EQ(shipments.BytesFrom(0), 0u);
}

class HostBytesTest : public ::testing::TestWithParam<HostForm> {
 protected:
  using Collective = std::function<Status(int rank, Exchange* exchange)>;

  const Begins& begins() const { return std::get<Begins>(GetParam()); }
  size_t hosts() const { return begins().size() - 1; }
  size_t world_size() const { return static_cast<size_t>(begins().back()); }
  size_t ranks_of(size_t host) const {
    return static_cast<size_t>(begins()[host + 1] - begins()[host]);
  }
  size_t HostOf(int rank) const {
    size_t host = 0;
    while (rank >= begins()[host + 1]) ++host;
    return host;
  }
  // Returns the number of hosts, without that of `rank`, that have ranks of its
  // set.
  size_t OtherHosts(int rank, const RankSet& set) const {
    std::vector<bool> has(hosts());
    for (int i = 0; i < set.count; ++i) has[HostOf(set.rank(i))] = true;
    has[HostOf(rank)] = false;
    return static_cast<size_t>(std::count(has.begin(), has.end(), true));
  }

  // Runs collectives one after the other. Returns the bytes that each rank has
  // counted for each, and expects that links which are queues carried as many.
  std::vector<std::vector<size_t>> Count(
      const std::vector<Collective>& collectives) const {
    HostGroup group(GetParam());
    const bool has_queues = std::get<Backend>(GetParam()) == Backend::kHosts;
    const std::vector<size_t> none(world_size());
    std::vector<std::vector<size_t>> counted(collectives.size(), none);
    std::vector<std::vector<size_t>> carried(  // By host.
        collectives.size(), std::vector<size_t>(hosts()));
    group.Run([&](Communicator* comm, Exchange* exchange) {
      const int rank = comm->rank();
      const auto counter = [&] {
        return comm->observer()->counters().Get(EventId::kShip).bytes;
      };
      // Rank 0 calls f(host, bytes that its queue has carried) for each host,
      // while nobody sends. Queues have carried all that was sent before a
      // barrier.
      const auto look = [&](const auto& f) -> Status {
        SHARD_RETURN_IF_ERROR(comm->Barrier("sent", Soon()));
        for (size_t h = 0; has_queues && rank == 0 && h < hosts(); ++h) {
          f(h, group.data_sent(static_cast<int>(h)));
        }
        return comm->Barrier("seen", Soon());
      };
      for (size_t c = 0; c < collectives.size(); ++c) {
        SHARD_ASSERT_OK(look([&](size_t h, size_t n) { carried[c][h] = n; }));
        const size_t before = counter();
        SHARD_ASSERT_OK(collectives[c](rank, exchange));
        counted[c][static_cast<size_t>(rank)] = counter() - before;
        SHARD_ASSERT_OK(look(
            [&](size_t h, size_t n) { carried[c][h] = n - carried[c][h]; }));
      }
    });
    for (size_t c = 0; has_queues && c < collectives.size(); ++c) {
      for (size_t h = 0; h < hosts(); ++h) {
        EXPECT_EQ(carried[c][h], OfHost(counted[c], h))
            << "collective " << c << ", host " << h;
      }
    }
    return counted;
  }

  // Returns the sum over the ranks of a host.
  size_t OfHost(const std::vector<size_t>& by_rank, size_t host) const {
    return std::accumulate(by_rank.begin() + begins()[host],
                           by_rank.begin() + begins()[host + 1], size_t{0});
  }

  // Returns whether sums pass from host to host: where the host that sends most
  // sends less so, for W elements.
  bool IsOnChain(size_t element_bytes) const {
    const HostSums sums = std::get<HostSums>(GetParam());
    if (sums != HostSums::kFewestBytes) return sums == HostSums::kChain;
    size_t direct = 0;
    for (size_t h = 0; h < hosts(); ++h) {
      const size_t k = ranks_of(h);
      direct = std::max(direct, k * (world_size() - k) * element_bytes);
    }
    return 4 * world_size() < direct;
  }
};

TEST_P(HostBytesTest, OfSumsAreThoseOfTheFormulas) {
  constexpr size_t kCount = 30'011;
  const size_t W = world_size();
  const std::vector<DType> dtypes = {DType::kF32, DType::kBF16};
  std::vector<Collective> sums;
  for (const DType dtype : dtypes) {
    sums.push_back([this, dtype](int, Exchange* exchange) {
      const size_t block = kCount * DTypeSize(dtype);
      const std::vector<std::byte> send(world_size() * block);
      std::vector<std::byte> recv(block);
      return exchange->ReduceScatter("sum", RankSet::All(begins().back()),
                                     {.send = send.data(),
                                      .dtype = dtype,
                                      .count = kCount,
                                      .recv = recv.data(),
                                      .recv_dtype = dtype},
                                     Soon());
    });
  }
  const auto counted = Count(sums);
  for (size_t i = 0; i < dtypes.size(); ++i) {
    const size_t bytes = DTypeSize(dtypes[i]);
    const bool on_chain = IsOnChain(bytes);
    for (size_t h = 0; h < hosts(); ++h) {
      const size_t k = ranks_of(h);
      const size_t elements = !on_chain          ? k * (W - k)
                              : h + 1 == hosts() ? W - k
                                                 : W;
      EXPECT_EQ(OfHost(counted[i], h),
                elements * kCount * (on_chain ? sizeof(float) : bytes))
          << "host " << h << ", " << DTypeName(dtypes[i])
          << (on_chain ? ", on a chain" : ", direct");
    }
  }
}

// A rank without gradients sends none of its own.
TEST_P(HostBytesTest, OfNothingAreNone) {
  const auto counted = Count({[this](int, Exchange* exchange) {
    std::vector<float> recv(1000);
    return exchange->ReduceScatter("sum", RankSet::All(begins().back()),
                                   {.count = recv.size(), .recv = recv.data()},
                                   Soon());
  }});
  EXPECT_EQ(counted[0], std::vector<size_t>(world_size()));
}

// The form of sums makes no difference to these.
class HostBlockBytesTest : public HostBytesTest {};

// Blocks of at most kPayloadBytes go with a round's control data.
TEST_P(HostBlockBytesTest, OfGathersCrossOncePerHost) {
  const int world = begins().back();
  struct Case {
    RankSet set;  // Of rank 0.
    size_t bytes;
  };
  std::vector<Case> cases;
  for (const size_t bytes : {size_t{4}, direct::kPayloadBytes,
                             direct::kPayloadBytes + 1, size_t{1'200'001}}) {
    cases.push_back({RankSet::All(world), bytes});
  }
  for (int count = 2; count < world; ++count) {
    if (world % count != 0) continue;
    // Neighbors, and ranks that are far from each other.
    cases.push_back({{0, 1, count}, 10'000});
    cases.push_back({{0, world / count, count}, 10'000});
  }
  std::vector<Collective> gathers;
  for (const Case& test : cases) {
    gathers.push_back([test](int rank, Exchange* exchange) {
      const RankSet set = RankSet::Of(rank, test.set.stride, test.set.count);
      const std::vector<std::byte> send(test.bytes);
      std::vector<std::byte> recv(static_cast<size_t>(set.count) * test.bytes);
      return exchange->AllGatherBlocks("gather", set, send.data(), test.bytes,
                                       recv.data(), Soon());
    });
  }
  const auto counted = Count(gathers);
  for (size_t i = 0; i < cases.size(); ++i) {
    const size_t bytes = cases[i].bytes;
    for (int rank = 0; rank < world; ++rank) {
      const RankSet set =
          RankSet::Of(rank, cases[i].set.stride, cases[i].set.count);
      EXPECT_EQ(
          counted[i][static_cast<size_t>(rank)],
          bytes <= direct::kPayloadBytes ? 0 : bytes * OtherHosts(rank, set))
          << "rank " << rank << ", " << bytes << " bytes, sets of " << set.count
          << " by " << set.stride;
    }
  }
}

// A broadcast ships data of any size.
TEST_P(HostBlockBytesTest, OfABroadcastAreThoseOfItsRoot) {
  const int world = begins().back();
  std::vector<Collective> broadcasts;
  const auto bytes_of = [](int root) {
    return root % 2 == 0 ? size_t{1'200'001} : size_t{4};
  };
  for (int root = 0; root < world; ++root) {
    broadcasts.push_back([root, bytes_of](int, Exchange* exchange) {
      std::vector<std::byte> data(bytes_of(root));
      return exchange->Broadcast("tensor", root, data.data(), data.size(),
                                 Soon());
    });
  }
  const auto counted = Count(broadcasts);
  for (int root = 0; root < world; ++root) {
    std::vector<size_t> expected(world_size());
    expected[static_cast<size_t>(root)] = bytes_of(root) * (hosts() - 1);
    EXPECT_EQ(counted[static_cast<size_t>(root)], expected) << "root " << root;
  }
}

const auto kOnQueues =
    ::testing::Values(Begins{0, 1, 2}, Begins{0, 2, 3, 5}, Begins{0, 3, 6},
                      Begins{0, 1, 2, 4, 6});

std::vector<Begins> OnHelpers() {
  return ShortOrLong({Begins{0, 1, 2, 4, 6}}, {Begins{0, 2, 3, 5}});
}

INSTANTIATE_TEST_SUITE_P(
    Mirrored, HostBytesTest,
    ::testing::Combine(::testing::Values(Backend::kHosts), kOnQueues,
                       ::testing::Values(HostSums::kFewestBytes,
                                         HostSums::kDirect, HostSums::kChain)),
    NameOfForm);

INSTANTIATE_TEST_SUITE_P(
    Mirrored, HostBlockBytesTest,
    ::testing::Combine(::testing::Values(Backend::kHosts), kOnQueues,
                       ::testing::Values(HostSums::kFewestBytes)),
    NameOfForm);

INSTANTIATE_TEST_SUITE_P(
    Tcp, HostBytesTest,
    ::testing::Combine(::testing::Values(Backend::kTcp),
                       ::testing::ValuesIn(OnHelpers()),
                       ::testing::Values(HostSums::kDirect, HostSums::kChain)),
    NameOfForm);

INSTANTIATE_TEST_SUITE_P(
    Tcp, HostBlockBytesTest,
    ::testing::Combine(::testing::Values(Backend::kTcp),
                       ::testing::ValuesIn(OnHelpers()),
                       ::testing::Values(HostSums::kFewestBytes)),
    NameOfForm);

}  // namespace
}  // namespace shard::testing::host_bytes_test
