// SPDX-License-Identifier: Apache-2.0
//
// Memory of the ranks of a host, in groups that have several hosts: it is one
// memory on each, and an all-gather on hosts writes each block once there.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/comm/direct/control_block.h"
#include "core/comm/direct/host_chain.h"
#include "core/comm/exchange.h"
#include "core/comm/rank_set.h"
#include "core/observe/event.h"
#include "core/observe/observer.h"
#include "tests/core/comm/backends.h"
#include "tests/core/comm/host_group.h"

namespace shard::testing::host_memory_test {
namespace {

using direct::HostSums;
using direct::kPayloadBytes;

class HostMemoryTest : public ::testing::TestWithParam<HostForm> {
 protected:
  const Begins& begins() const { return std::get<Begins>(GetParam()); }
  int world_size() const { return begins().back(); }
  int hosts() const { return static_cast<int>(begins().size()) - 1; }
  // Returns whether sets of `count` adjacent ranks have all ranks of each of
  // their hosts.
  bool HoldsHosts(int count) const {
    for (size_t h = 0; h + 1 < begins().size(); ++h) {
      if (begins()[h] / count != (begins()[h + 1] - 1) / count) return false;
    }
    return true;
  }
  // Returns whether two ranks are on one host.
  bool AreTogether(int a, int b) const {
    const auto after = [this](int rank) {
      return std::upper_bound(begins().begin(), begins().end(), rank);
    };
    return after(a) == after(b);
  }
};

TEST_P(HostMemoryTest, RanksOfAHostWriteTheSameMemory) {
  HostGroup group(GetParam());
  group.Run([&](Communicator* comm, Exchange*) {
    EXPECT_FALSE(comm->direct());
    ASSERT_TRUE(comm->shares_host());
    // Twice: the second one has no part of the first.
    for (int round = 0; round < 2; ++round) {
      const auto memory =
          comm->Allocate("words", 10'000, SymmetricKind::kPerHost, Soon());
      ASSERT_TRUE(memory.ok()) << memory.status().ToString();
      EXPECT_EQ((*memory)->size(), 10'000u);
      EXPECT_EQ((*memory)->resident_bytes(),
                comm->local_rank() == 0 ? 3 * kSymmetricAlignment : 0);
      EXPECT_EQ((*memory)->region(0), (*memory)->region(comm->rank()));
      auto* const words = reinterpret_cast<int32_t*>((*memory)->region(0));
      words[comm->rank()] = 100 + comm->rank();
      SHARD_ASSERT_OK(comm->Barrier("written", Soon()));
      for (int r = 0; r < comm->world_size(); ++r) {
        EXPECT_EQ(words[r], AreTogether(r, comm->rank()) ? 100 + r : 0)
            << "that of rank " << r << " on rank " << comm->rank();
      }
      SHARD_ASSERT_OK(comm->Barrier("read", Soon()));
    }
    EXPECT_EQ(comm->Allocate("own", 100, SymmetricKind::kPerRank, Soon())
                  .status()
                  .code(),
              StatusCode::kUnimplemented);
  });
}

// Blocks that go with control data, and those of one tile and more than there
// are slots. Each rank reads at once, so that it would miss a block which
// another rank of its host has yet to copy.
TEST_P(HostMemoryTest, AnAllGatherOnHostsWritesEachBlockOnce) {
  constexpr int kTimes = 5;
  const int W = world_size();
  HostGroup group(GetParam());
  group.Run([&](Communicator* comm, Exchange* exchange) {
    const int rank = comm->rank();
    for (const size_t bytes : {size_t{0}, size_t{4}, kPayloadBytes,
                               kPayloadBytes + 4, size_t{3'300'004}}) {
      const size_t words = bytes / sizeof(uint32_t);
      const auto memory =
          comm->Allocate("blocks", static_cast<size_t>(W) * bytes,
                         SymmetricKind::kPerHost, Soon());
      ASSERT_TRUE(memory.ok()) << memory.status().ToString();
      auto* const all = reinterpret_cast<uint32_t*>((*memory)->region(0));
      for (int time = 0; time < kTimes; ++time) {
        for (int groups = 1; groups <= W; ++groups) {
          if (W % groups != 0) continue;
          const ReduceScatterArgs order = {.block_groups = groups};
          const auto value = [&](int r, size_t i) {
            return static_cast<uint32_t>(i * 31) +
                   static_cast<uint32_t>(time * 1000 + groups * 100 + r);
          };
          const auto block = [&](int r) {
            return all + static_cast<size_t>(order.BlockOf(r, W)) * words;
          };
          for (size_t i = 0; i < words; ++i) block(rank)[i] = value(rank, i);
          const auto shipped = [&] {
            return comm->observer()->counters().Get(EventId::kShip).bytes;
          };
          const size_t before = shipped();
          SHARD_ASSERT_OK(exchange->GatherOnHosts("gather", RankSet::All(W),
                                                  block(rank), bytes, groups,
                                                  all, Soon()));
          int wrong = 0;
          for (int r = 0; r < W; ++r) {
            for (size_t i = 0; i < words; ++i) {
              if (block(r)[i] != value(r, i)) ++wrong;
            }
          }
          EXPECT_EQ(wrong, 0) << "of " << bytes << " bytes by " << groups;
          EXPECT_EQ(shipped() - before,
                    bytes > kPayloadBytes
                        ? bytes * static_cast<size_t>(hosts() - 1)
                        : 0);
          // A rank may write only once all have read.
          SHARD_ASSERT_OK(comm->Barrier("read", Soon()));
        }
      }
    }
  });
}

// Blocks that lie elsewhere, of each set that no host's ranks are only a part
// of. A rank reads what was gathered before up to its next call.
TEST_P(HostMemoryTest, AnAllGatherOnHostsWaitsForTheReadersOfAllItWrites) {
  const int W = world_size();
  HostGroup group(GetParam());
  group.Run([&](Communicator* comm, Exchange* exchange) {
    const int rank = comm->rank();
    for (int count = 1; count <= W; ++count) {
      if (W % count != 0 || !HoldsHosts(count)) continue;
      const RankSet set = {rank / count * count, 1, count};
      for (const size_t bytes :
           {size_t{4}, kPayloadBytes, kPayloadBytes + 4, size_t{3'300'004}}) {
        SCOPED_TRACE(StrCat(bytes, " bytes over ", count, " ranks"));
        const size_t words = bytes / sizeof(uint32_t);
        const auto memory =
            comm->Allocate("blocks", static_cast<size_t>(count) * bytes,
                           SymmetricKind::kPerHost, Soon());
        ASSERT_TRUE(memory.ok()) << memory.status().ToString();
        const auto* const all =
            reinterpret_cast<const uint32_t*>((*memory)->region(0));
        const auto value = [&](int r, size_t i, int time) {
          return time == 0 ? 0
                           : static_cast<uint32_t>(i * 31) +
                                 static_cast<uint32_t>(time * 1000 + r);
        };
        const auto num_wrong = [&](int time) {
          size_t wrong = 0;
          for (int i = 0; i < count; ++i) {
            for (size_t w = 0; w < words; ++w) {
              const uint32_t got = all[static_cast<size_t>(i) * words + w];
              if (got != value(set.rank(i), w, time)) ++wrong;
            }
          }
          return wrong;
        };
        std::vector<uint32_t> own(words);
        for (int time = 1; time <= 5; ++time) {
          for (size_t w = 0; w < words; ++w) own[w] = value(rank, w, time);
          EXPECT_EQ(num_wrong(time - 1), 0u) << "before call " << time;
          SHARD_ASSERT_OK(
              exchange->GatherOnHosts("gather", set, own.data(), bytes, 1,
                                      (*memory)->region(0), Soon()));
        }
        EXPECT_EQ(num_wrong(5), 0u);
      }
    }
  });
}

// Ranks that order their blocks differently, or in groups that do not divide
// them, have an error all.
TEST_P(HostMemoryTest, OrdersThatDifferAreErrorsOnAllRanks) {
  for (const size_t bytes : {size_t{8}, kPayloadBytes + 8}) {
    for (const int wrong : {0, -1, world_size() + 1}) {
      HostGroup group(GetParam());
      group.Run(
          [&](Communicator* comm, Exchange* exchange) {
            std::vector<std::byte> own(static_cast<size_t>(world_size()) *
                                       bytes);
            const int groups = comm->rank() == 1 ? wrong : 1;
            const Status status = exchange->GatherOnHosts(
                "gather", RankSet::All(world_size()), own.data(), bytes, groups,
                own.data(), Soon());
            EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
            EXPECT_EQ(status.rank(), 1) << status.ToString();
          },
          /*shutdown=*/false);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Mirrored, HostMemoryTest,
    ::testing::Combine(::testing::Values(Backend::kHosts),
                       ::testing::Values(Begins{0, 2, 3}, Begins{0, 1, 4, 6},
                                         Begins{0, 2, 4}, Begins{0, 3}),
                       ::testing::Values(HostSums::kFewestBytes)),
    NameOfForm);

INSTANTIATE_TEST_SUITE_P(
    Tcp, HostMemoryTest,
    ::testing::Combine(::testing::Values(Backend::kTcp),
                       ::testing::Values(Begins{0, 2, 3}),
                       ::testing::Values(HostSums::kFewestBytes)),
    NameOfForm);

// Where each host has one rank, nobody is there to share with.
TEST(HostsOfOneRankTest, HaveNoMemoryInCommon) {
  HostGroup group({Backend::kHosts, Begins{0, 1, 2}, HostSums::kFewestBytes});
  group.Run([](Communicator* comm, Exchange*) {
    EXPECT_FALSE(comm->shares_host());
    EXPECT_EQ(comm->Allocate("words", 100, SymmetricKind::kPerHost, Soon())
                  .status()
                  .code(),
              StatusCode::kUnimplemented);
  });
}

}  // namespace
}  // namespace shard::testing::host_memory_test
