// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/host_chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/direct/hosts.h"
#include "core/comm/rank_set.h"

namespace shard::direct::host_chain_test {
namespace {

const std::vector<std::vector<int>> kWorlds = {
    {0, 4},           {0, 1, 2},       {0, 1, 3},          {0, 2, 4, 6},
    {0, 1, 4, 6},     {0, 8, 9},       {0, 1, 9, 10, 12},  {0, 5, 12},
    {0, 3, 6, 9, 12}, {0, 1, 2, 3, 4}, {0, 2, 3, 4, 6, 8},
};

// Calls f(hosts, set) for every set of every way to divide each world.
template <typename Function>
void ForEachSet(const Function& f) {
  for (const std::vector<int>& begins : kWorlds) {
    const Hosts hosts(begins);
    const int ranks = hosts.world_size();
    for (int count = 1; count <= ranks; ++count) {
      for (int stride = 1; stride * count <= ranks; ++stride) {
        if (ranks % (stride * count) != 0) continue;
        for (int first = 0; first < ranks; ++first) {
          const RankSet set = RankSet::Of(first, stride, count);
          if (set.first == first) f(hosts, set);
        }
      }
    }
  }
}

std::string Describe(const Hosts& hosts, const RankSet& set) {
  return StrCat(hosts.world_size(), " ranks on ", hosts.count(), " hosts, set ",
                set.first, " ", set.stride, " ", set.count);
}

TEST(HostChainTest, PassesTheHostsOfASetInTheOrderOfRanks) {
  ForEachSet([](const Hosts& hosts, const RankSet& set) {
    SCOPED_TRACE(Describe(hosts, set));
    const HostChain chain(hosts, set);
    int next = 0;
    for (int place = 0; place < chain.count(); ++place) {
      const HostChain::Stop& stop = chain.at(place);
      EXPECT_EQ(stop.begin, next);
      EXPECT_GT(stop.end, stop.begin);
      if (place > 0) {
        EXPECT_GT(stop.host, chain.at(place - 1).host);
      }
      for (int i = stop.begin; i < stop.end; ++i) {
        EXPECT_EQ(hosts.HostOf(set.rank(i)), stop.host);
        EXPECT_EQ(chain.PlaceOf(i), place);
      }
      next = stop.end;
    }
    EXPECT_EQ(next, set.count);
  });
}

TEST(HostChainTest, EachBlockIsSummedByOneRankOfEachHost) {
  ForEachSet([](const Hosts& hosts, const RankSet& set) {
    SCOPED_TRACE(Describe(hosts, set));
    const HostChain chain(hosts, set);
    const SumShape shape = SumShapeOf(hosts, set.stride, set.count);
    EXPECT_LE(chain.count(), shape.hosts);
    for (int place = 0; place < chain.count(); ++place) {
      const HostChain::Stop& stop = chain.at(place);
      int next = 0;
      for (int i = stop.begin; i < stop.end; ++i) {
        const HostChain::Share share = chain.ShareOf(i);
        EXPECT_EQ(share.begin, next);
        EXPECT_GT(share.size(), 0);
        for (int b = share.begin; b < share.end; ++b) {
          EXPECT_EQ(chain.SummerOf(place, b), i);
          EXPECT_TRUE(share.Contains(b));
        }
        EXPECT_FALSE(share.Contains(share.end));
        EXPECT_FALSE(share.Contains(share.begin - 1));
        EXPECT_LE(share.size(), shape.summed_blocks);
        EXPECT_LE(set.count - share.size(), shape.left_blocks);
        next = share.end;
      }
      EXPECT_EQ(next, set.count);
    }
  });
}

// The table of docs/scaling.md: hosts of k ranks each, in which a chain sends
// less where k g (1 - 1/H) > 4.
TEST(SumShapeTest, EqualHostsChooseByTheFormula) {
  for (int hosts = 2; hosts <= 6; ++hosts) {
    for (int k = 1; k <= 8; ++k) {
      std::vector<int> begins;
      for (int h = 0; h <= hosts; ++h) begins.push_back(h * k);
      const SumShape shape = SumShapeOf(Hosts(begins), 1, hosts * k);
      EXPECT_EQ(shape.hosts, hosts);
      EXPECT_EQ(shape.direct_blocks, int64_t{k} * k * (hosts - 1));
      EXPECT_EQ(shape.chain_blocks, hosts * k);
      for (const int g : {2, 4}) {
        const bool less = k * g * (hosts - 1) > 4 * hosts;
        EXPECT_EQ(shape.ChainSendsLess(static_cast<size_t>(g)), less)
            << hosts << " hosts of " << k << ", " << g << " bytes";
      }
    }
  }
  const auto chain = [](int k, int hosts, size_t g) {
    std::vector<int> begins;
    for (int h = 0; h <= hosts; ++h) begins.push_back(h * k);
    return SumShapeOf(Hosts(begins), 1, hosts * k).ChainSendsLess(g);
  };
  EXPECT_FALSE(chain(1, 6, 4));
  EXPECT_FALSE(chain(2, 2, 4));
  EXPECT_TRUE(chain(2, 3, 4));
  EXPECT_TRUE(chain(3, 2, 4));
  EXPECT_FALSE(chain(2, 6, 2));
  EXPECT_FALSE(chain(3, 3, 2));
  EXPECT_TRUE(chain(3, 4, 2));
  EXPECT_FALSE(chain(4, 2, 2));
  EXPECT_TRUE(chain(4, 3, 2));
  EXPECT_TRUE(chain(5, 2, 2));
}

TEST(SumShapeTest, UnequalHostsCompareTheOneThatSendsMost) {
  // Hosts of 2, 1 and 2 ranks: the gradients of 2 ranks for 3, or 5 sums.
  const SumShape shape = SumShapeOf(Hosts({0, 2, 3, 5}), 1, 5);
  EXPECT_EQ(shape.hosts, 3);
  EXPECT_EQ(shape.direct_blocks, 6);
  EXPECT_EQ(shape.chain_blocks, 5);
  EXPECT_EQ(shape.left_blocks, 3);
  EXPECT_EQ(shape.summed_blocks, 5);
  EXPECT_TRUE(shape.ChainSendsLess(4));
  EXPECT_FALSE(shape.ChainSendsLess(2));
}

// Replicas have one rank on each host, and shard groups are on one.
TEST(SumShapeTest, SetsOfARankPerHostAreDirect) {
  const Hosts hosts({0, 4, 8, 12});
  const SumShape across = SumShapeOf(hosts, 4, 3);
  EXPECT_EQ(across.direct_blocks, 8);
  EXPECT_EQ(across.chain_blocks, 12);
  EXPECT_FALSE(across.ChainSendsLess(4));
  const SumShape within = SumShapeOf(hosts, 1, 4);
  EXPECT_EQ(within.hosts, 1);
  EXPECT_EQ(within.direct_blocks, 0);
  EXPECT_EQ(within.chain_blocks, 0);
  EXPECT_FALSE(within.UsesChain(HostSums::kChain, 4));
}

TEST(SumShapeTest, EitherFormCanBeAskedFor) {
  const SumShape direct = SumShapeOf(Hosts({0, 1, 2}), 1, 2);
  EXPECT_FALSE(direct.UsesChain(HostSums::kFewestBytes, 4));
  EXPECT_TRUE(direct.UsesChain(HostSums::kChain, 4));
  const SumShape chain = SumShapeOf(Hosts({0, 3, 6}), 1, 6);
  EXPECT_TRUE(chain.UsesChain(HostSums::kFewestBytes, 4));
  EXPECT_FALSE(chain.UsesChain(HostSums::kDirect, 4));
}

}  // namespace
}  // namespace shard::direct::host_chain_test
