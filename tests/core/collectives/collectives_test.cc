// SPDX-License-Identifier: Apache-2.0
//
// Compares the tensor collectives with a plain loop, on every backend, whether
// ranks may see each other's memory or not.

#include "core/collectives/collectives.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/base/dtype.h"
#include "core/comm/communicator.h"
#include "kernels/cpu/convert.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/collectives/blocking_collectives.h"
#include "tests/core/comm/backends.h"

namespace shard::testing::collectives_test {
namespace {

// Instrumented ranks would share two cores for minutes.
constexpr auto kWorlds = [] {
  if constexpr (kSanitized) {
    return std::array{1, 4};
  } else {
    return std::array{1, 2, 3, 4, 5};
  }
}();

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// The tile of direct_exchange.h; sizes below are chosen around it.
constexpr size_t kTile = size_t{1} << 20;
// No more bytes than this of a block go with the round that compares the calls.
constexpr size_t kCell = 8192;

// Returns element `index` of rank `rank`. Elements have both signs and several
// magnitudes, so that sums in another order have other bits.
float Value(int rank, size_t index) {
  const uint64_t hash =
      (index * 131 + static_cast<uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15u;
  const auto mantissa = static_cast<int32_t>(hash >> 40) - (1 << 23);
  return static_cast<float>(mantissa) /
         static_cast<float>(1 << (16 + ((hash >> 32) & 7)));
}

using Bytes = std::vector<std::byte>;

Bytes Narrowed(DType dtype, const std::vector<float>& values) {
  Bytes out(values.size() * DTypeSize(dtype));
  Narrow(dtype, values.data(), out.data(), values.size(), nullptr);
  return out;
}

std::vector<float> Widened(DType dtype, const Bytes& values) {
  std::vector<float> out(values.size() / DTypeSize(dtype));
  Widen(dtype, values.data(), out.data(), out.size());
  return out;
}

// Returns the elements [begin, begin + count) of rank `rank`.
Bytes Tensor(DType dtype, int rank, size_t begin, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(rank, begin + i);
  return Narrowed(dtype, values);
}

Bytes ExpectedSum(const RankSet& set, int rank, DType dtype, size_t count,
                  const Bytes& old, DType recv_dtype, bool add) {
  const size_t begin = static_cast<size_t>(set.IndexOf(rank)) * count;
  std::vector<float> sum(count);
  for (int i = 0; i < set.count; ++i) {
    const auto part = Widened(dtype, Tensor(dtype, set.rank(i), begin, count));
    for (size_t j = 0; j < count; ++j) {
      sum[j] = i == 0 ? part[j] : sum[j] + part[j];
    }
  }
  if (add) {
    const auto before = Widened(recv_dtype, old);
    for (size_t j = 0; j < count; ++j) sum[j] = before[j] + sum[j];
  }
  return Narrowed(recv_dtype, sum);
}

void CheckReduceScatter(BlockingCollectives* comm, const RankSet& set,
                        DType dtype, size_t count, DType recv_dtype, bool add) {
  const size_t blocks = static_cast<size_t>(set.count);
  const Bytes send = Tensor(dtype, comm->rank(), 0, blocks * count);
  const Bytes old = Tensor(recv_dtype, comm->rank() + 1000, 0, count);
  Bytes recv = old;
  recv.push_back(std::byte{0xEE});
  const Bytes before = send;
  SHARD_ASSERT_OK(comm->ReduceScatter("gradients", set,
                                      {.send = send.data(),
                                       .dtype = dtype,
                                       .count = count,
                                       .recv = recv.data(),
                                       .recv_dtype = recv_dtype,
                                       .add = add}));
  Bytes expected =
      ExpectedSum(set, comm->rank(), dtype, count, old, recv_dtype, add);
  expected.push_back(std::byte{0xEE});
  EXPECT_TRUE(recv == expected)
      << count << " " << DTypeName(dtype) << " to " << DTypeName(recv_dtype)
      << (add ? ", added" : "") << ", set " << set.first << " " << set.stride
      << " " << set.count << ", rank " << comm->rank();
  EXPECT_TRUE(send == before);
}

// Calls f for every way to divide the world into sets, with this rank's set.
void ForEachSet(BlockingCollectives* comm,
                const std::function<void(const RankSet& set)>& f) {
  for (const RankSet& set : EverySet(*comm->comm())) f(set);
}

class CollectivesTest
    : public ::testing::TestWithParam<std::tuple<Backend, int, bool>> {
 protected:
  Backend backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
  bool direct() const { return std::get<2>(GetParam()); }
  void Run(const std::function<void(BlockingCollectives*)>& body) {
    RunGroup(
        backend(), world_size(),
        [&](Communicator* comm) {
          BlockingCollectives collectives(comm);
          body(&collectives);
        },
        /*shutdown=*/true, direct() ? "" : "direct=0");
  }
};

TEST_P(CollectivesTest, ReduceScattersEveryDType) {
  Run([](BlockingCollectives* comm) {
    ForEachSet(comm, [comm](const RankSet& set) {
      for (const DType dtype : kDTypes) {
        for (const DType recv_dtype : kDTypes) {
          for (const bool add : {false, true}) {
            for (const size_t count : {0, 1, 63, 1025}) {
              CheckReduceScatter(comm, set, dtype, count, recv_dtype, add);
            }
          }
        }
      }
    });
  });
}

// A tile has a part of each block, so more ranks make more tiles.
TEST_P(CollectivesTest, ReduceScattersManyTiles) {
  Run([](BlockingCollectives* comm) {
    const RankSet all = RankSet::All(comm->world_size());
    const size_t peers = static_cast<size_t>(comm->world_size()) - 1;
    const size_t tile = kTile / 4 / std::max<size_t>(peers, 1);
    for (const size_t count : {tile, 2 * tile + 7}) {
      if (kSanitized && count == tile) continue;
      CheckReduceScatter(comm, all, DType::kF32, count, DType::kF32, false);
    }
    CheckReduceScatter(comm, all, DType::kBF16, 2 * tile + 1, DType::kF32,
                       true);
    ForEachSet(comm, [comm](const RankSet& set) {
      if (set.count == 1 || set.count == comm->world_size()) return;
      const size_t rest = static_cast<size_t>(set.count) - 1;
      CheckReduceScatter(comm, set, DType::kF16, kTile / 2 / rest + 1,
                         DType::kBF16, false);
    });
  });
}

// The blocks lie as the ranges of a plan with shard groups do, and are summed
// in rank order all the same, in place too.
TEST_P(CollectivesTest, ReduceScattersBlocksByGroups) {
  Run([](BlockingCollectives* comm) {
    ForEachSet(comm, [comm](const RankSet& set) {
      for (int groups = 2; groups <= set.count; ++groups) {
        if (set.count % groups != 0) continue;
        for (const size_t count : {size_t{77}, kTile / 4 + 5}) {
          if (count > 77 && groups != set.count) continue;
          const auto ranks = static_cast<size_t>(set.count);
          const size_t bytes = count * sizeof(float);
          Bytes send(ranks * bytes);
          ReduceScatterArgs args = {
              .send = send.data(), .count = count, .block_groups = groups};
          // The block of the i-th rank is what rank order would have there.
          const Bytes blocks =
              Tensor(DType::kF32, comm->rank(), 0, ranks * count);
          std::vector<int> taken(ranks);
          for (int i = 0; i < set.count; ++i) {
            const int block = args.BlockOf(i, set.count);
            ++taken[static_cast<size_t>(block)];
            std::memcpy(send.data() + static_cast<size_t>(block) * bytes,
                        blocks.data() + static_cast<size_t>(i) * bytes, bytes);
          }
          EXPECT_EQ(taken, std::vector<int>(ranks, 1));
          const Bytes expected =
              ExpectedSum(set, comm->rank(), DType::kF32, count, Bytes(bytes),
                          DType::kF32, false);
          Bytes recv(bytes);
          args.recv = recv.data();
          SHARD_ASSERT_OK(comm->ReduceScatter("by groups", set, args));
          EXPECT_TRUE(recv == expected) << groups << " groups of " << ranks;
          const int index = set.IndexOf(comm->rank());
          args.recv =
              send.data() +
              static_cast<size_t>(args.BlockOf(index, set.count)) * bytes;
          SHARD_ASSERT_OK(comm->ReduceScatter("in place", set, args));
          EXPECT_EQ(std::memcmp(args.recv, expected.data(), bytes), 0)
              << groups << " groups of " << ranks << " in place";
        }
      }
    });
  });
}

TEST_P(CollectivesTest, ReduceScattersInPlace) {
  Run([](BlockingCollectives* comm) {
    const RankSet all = RankSet::All(comm->world_size());
    const auto rank = static_cast<size_t>(comm->rank());
    for (const DType dtype : kDTypes) {
      for (const bool add : {false, true}) {
        for (const size_t count : {77, 70001}) {
          if (add && count > 77) continue;
          const size_t bytes = count * DTypeSize(dtype);
          Bytes data = Tensor(dtype, comm->rank(), 0,
                              static_cast<size_t>(all.count) * count);
          Bytes expected = data;
          const Bytes old = Tensor(dtype, comm->rank(), rank * count, count);
          const Bytes sum =
              ExpectedSum(all, comm->rank(), dtype, count, old, dtype, add);
          std::copy(sum.begin(), sum.end(),
                    expected.begin() + static_cast<ptrdiff_t>(rank * bytes));
          SHARD_ASSERT_OK(
              comm->ReduceScatter("in place", all,
                                  {.send = data.data(),
                                   .dtype = dtype,
                                   .count = count,
                                   .recv = data.data() + rank * bytes,
                                   .recv_dtype = dtype,
                                   .add = add}));
          EXPECT_TRUE(data == expected) << DTypeName(dtype) << " " << count;
        }
      }
    }
  });
}

TEST_P(CollectivesTest, AllGathersBlocksOfEverySet) {
  Run([](BlockingCollectives* comm) {
    ForEachSet(comm, [comm](const RankSet& set) {
      for (const size_t bytes :
           {size_t{0}, size_t{1}, kCell, kCell + 1, kTile, kTile + 1}) {
        if (bytes >= kTile && set.count != comm->world_size()) continue;
        const Bytes send = Tensor(DType::kF32, comm->rank(), 0, bytes / 4 + 1);
        Bytes expected;
        for (int i = 0; i < set.count; ++i) {
          const Bytes part = Tensor(DType::kF32, set.rank(i), 0, bytes / 4 + 1);
          expected.insert(expected.end(), part.begin(),
                          part.begin() + static_cast<ptrdiff_t>(bytes));
        }
        expected.push_back(std::byte{0xEE});
        Bytes recv(expected.size(), std::byte{0xEE});
        SHARD_ASSERT_OK(comm->AllGatherBlocks("parameters", set, send.data(),
                                              bytes, recv.data()));
        EXPECT_TRUE(recv == expected) << bytes << " bytes";

        if (bytes == kTile) continue;
        Bytes place(expected.size(), std::byte{0xEE});
        std::byte* mine =
            place.data() +
            static_cast<size_t>(set.IndexOf(comm->rank())) * bytes;
        std::copy_n(send.begin(), bytes, mine);
        SHARD_ASSERT_OK(
            comm->AllGatherBlocks("in place", set, mine, bytes, place.data()));
        EXPECT_TRUE(place == expected) << bytes << " bytes in place";
      }
    });
  });
}

TEST_P(CollectivesTest, BroadcastsFromEveryRank) {
  Run([](BlockingCollectives* comm) {
    for (int root = 0; root < comm->world_size(); ++root) {
      for (const size_t count : {size_t{0}, size_t{1}, kTile / 4 + 3}) {
        Bytes data = Tensor(DType::kF32, comm->rank(), 0, count);
        SHARD_ASSERT_OK(
            comm->Broadcast("weights", root, data.data(), data.size()));
        EXPECT_TRUE(data == Tensor(DType::kF32, root, 0, count))
            << count << " of rank " << root;
      }
    }
  });
}

// Calls follow one another, with all numbers of tiles, and with other
// collectives and sets of one rank between them. A wrong order would write a
// half that is still read.
TEST_P(CollectivesTest, CallsMayFollowOneAnother) {
  Run([](BlockingCollectives* comm) {
    const RankSet all = RankSet::All(comm->world_size());
    const RankSet alone = RankSet::Of(comm->rank(), 1, 1);
    const size_t blocks = static_cast<size_t>(all.count);
    constexpr size_t kCount = 5000;
    constexpr int kCalls = kSanitized ? 21 : 60;
    for (int i = 0; i < kCalls; ++i) {
      const float mine = static_cast<float>(comm->rank() + 1 + i);
      const std::vector<float> send(blocks * kCount, mine);
      std::vector<float> recv(kCount);
      SHARD_ASSERT_OK(comm->ReduceScatter(
          "sum", all,
          {.send = send.data(), .count = kCount, .recv = recv.data()}));
      float expected = 0;
      for (int r = 0; r < all.count; ++r) {
        expected += static_cast<float>(r + 1 + i);
      }
      for (const float value : recv) ASSERT_EQ(value, expected) << i;

      const size_t bytes = i % 10 == 0 ? kTile + 4 : i % 3 == 0 ? 9000 : 4000;
      std::vector<int32_t> block(bytes / 4, i * 100 + comm->rank());
      std::vector<int32_t> gathered(blocks * block.size());
      SHARD_ASSERT_OK(comm->AllGatherBlocks("gather", all, block.data(), bytes,
                                            gathered.data()));
      for (size_t j = 0; j < gathered.size(); ++j) {
        ASSERT_EQ(gathered[j], i * 100 + static_cast<int>(j / block.size()));
      }
      if (i % 2 == 0) {
        SHARD_ASSERT_OK(comm->AllGatherBlocks("alone", alone, send.data(), 100,
                                              recv.data()));
        ASSERT_EQ(recv[24], mine);
      }
      if (i % 5 == 0) SHARD_ASSERT_OK(comm->comm()->Barrier("between", Soon()));
      int32_t word = i * 10 + comm->rank();
      const int root = i % comm->world_size();
      SHARD_ASSERT_OK(comm->Broadcast("word", root, &word, 4));
      ASSERT_EQ(word, i * 10 + root);
    }
  });
}

// A worker thread may make the calls, as long as only one thread does at a
// time.
TEST_P(CollectivesTest, AnyThreadMayCall) {
  Run([](BlockingCollectives* comm) {
    const RankSet all = RankSet::All(comm->world_size());
    for (int i = 0; i < 3; ++i) {
      std::thread([&] {
        CheckReduceScatter(comm, all, DType::kF32, 1000, DType::kBF16, true);
      }).join();
      CheckReduceScatter(comm, all, DType::kBF16, 1000, DType::kF32, false);
    }
  });
}

std::string TestName(
    const ::testing::TestParamInfo<std::tuple<Backend, int, bool>>& info) {
  return StrCat(BackendName(std::get<0>(info.param)), std::get<1>(info.param));
}

// The bytes are those that exchange.h calls "sent".
TEST_P(CollectivesTest, SentBytesAreCounted) {
  Run([](BlockingCollectives* comm) {
    const auto ranks = static_cast<size_t>(comm->world_size());
    const RankSet all = RankSet::All(comm->world_size());
    std::vector<float> tensors(ranks * 25);
    std::vector<float> tensor(25);
    SHARD_ASSERT_OK(comm->ReduceScatter(
        "gradients", all,
        {.send = tensors.data(), .count = 25, .recv = tensor.data()}));
    SHARD_ASSERT_OK(comm->AllGatherBlocks("parameters", all, tensor.data(), 100,
                                          tensors.data()));
    SHARD_ASSERT_OK(comm->Broadcast("model", 0, tensor.data(), 100));
    const auto expect = [&](const char* event, uint64_t bytes) {
      const auto counter = comm->comm()->observer()->counters().Find(event);
      EXPECT_EQ(counter->calls, 1u) << event;
      EXPECT_EQ(counter->bytes, bytes) << event;
    };
    expect("reduce_scatter", (ranks - 1) * 100);
    expect("all_gather_blocks", (ranks - 1) * 100);
    expect("broadcast", ranks > 1 ? 100 : 0);
  });
}

INSTANTIATE_TEST_SUITE_P(
    NotDirect, CollectivesTest,
    ::testing::Combine(::testing::Values(Backend::kThreads, Backend::kShm),
                       ::testing::ValuesIn(kWorlds), ::testing::Values(false)),
    TestName);

// The code is the same as above, so fewer worlds are enough.
INSTANTIATE_TEST_SUITE_P(
    Direct, CollectivesTest,
    ::testing::Combine(::testing::Values(Backend::kThreads, Backend::kShm),
                       ::testing::Values(1, 3), ::testing::Values(true)),
    TestName);

// These sets are neither neighbors nor as far apart as they can be.
TEST(SetsTest, DivideEightRanks) {
  RunGroup(Backend::kThreads, 8, [](Communicator* opened) {
    BlockingCollectives collectives(opened);
    BlockingCollectives* const comm = &collectives;
    ForEachSet(comm, [comm](const RankSet& set) {
      CheckReduceScatter(comm, set, DType::kBF16, 1001, DType::kF32, true);
      const int32_t mine = comm->rank();
      std::vector<int32_t> all(static_cast<size_t>(set.count));
      SHARD_ASSERT_OK(
          comm->AllGatherBlocks("ranks", set, &mine, sizeof(mine), all.data()));
      for (int i = 0; i < set.count; ++i) {
        EXPECT_EQ(all[static_cast<size_t>(i)], set.first + i * set.stride);
      }
    });
  });
}

// In fp32, (1e8 + 1) - 1e8 is 0; any other order gives 1.
TEST(OrderTest, RanksAreSummedInOrder) {
  RunGroup(Backend::kThreads, 3, [](Communicator* opened) {
    BlockingCollectives collectives(opened);
    BlockingCollectives* const comm = &collectives;
    const float values[] = {1e8f, 1, -1e8f};
    const std::vector<float> send(3, values[comm->rank()]);
    float recv = 5;
    SHARD_ASSERT_OK(
        comm->ReduceScatter("order", RankSet::All(3),
                            {.send = send.data(), .count = 1, .recv = &recv}));
    EXPECT_EQ(recv, 0);
  });
}

// The sum is made first, and the old value added to it: neighbors of 1e8 are 8
// apart, which 4 + 4 reaches only together.
TEST(OrderTest, OldValueIsAddedToTheSum) {
  RunGroup(Backend::kThreads, 2, [](Communicator* opened) {
    BlockingCollectives collectives(opened);
    BlockingCollectives* const comm = &collectives;
    const std::vector<float> send(2, 4);
    float recv = 1e8f;
    SHARD_ASSERT_OK(comm->ReduceScatter(
        "add", RankSet::All(2),
        {.send = send.data(), .count = 1, .recv = &recv, .add = true}));
    EXPECT_EQ(recv, 1e8f + 8);
  });
}

TEST(RankSetTest, KnowTheirRanks) {
  EXPECT_EQ(RankSet::Of(6, 1, 4).first, 4);
  EXPECT_EQ(RankSet::Of(6, 4, 2).first, 2);
  EXPECT_EQ(RankSet::Of(7, 2, 2).first, 5);
  EXPECT_EQ(RankSet::Of(6, 4, 2).rank(1), 6);
  EXPECT_EQ(RankSet::Of(6, 4, 2).IndexOf(6), 1);
  EXPECT_EQ(RankSet::All(3).IndexOf(3), -1);
  EXPECT_EQ((RankSet{1, 2, 2}).IndexOf(0), -1);
  EXPECT_EQ((RankSet{1, 2, 2}).IndexOf(2), -1);
  EXPECT_EQ((RankSet{1, 2, 2}).IndexOf(5), -1);

  EXPECT_TRUE(RankSet::All(5).Divides(5));
  EXPECT_TRUE((RankSet{4, 1, 4}).Divides(8));
  EXPECT_FALSE((RankSet{2, 1, 4}).Divides(8));
  EXPECT_FALSE((RankSet{0, 1, 4}).Divides(6));
  EXPECT_TRUE((RankSet{5, 2, 2}).Divides(8));
  EXPECT_FALSE((RankSet{2, 2, 2}).Divides(8));
  EXPECT_TRUE((RankSet{2, 7, 1}).Divides(3));
  EXPECT_FALSE((RankSet{3, 1, 1}).Divides(3));
  EXPECT_FALSE((RankSet{-1, 1, 1}).Divides(3));
  EXPECT_FALSE((RankSet{0, 0, 2}).Divides(2));
  EXPECT_FALSE((RankSet{0, 1, 0}).Divides(2));
  EXPECT_FALSE((RankSet{0, INT32_MAX, INT32_MAX}).Divides(2));
}

}  // namespace
}  // namespace shard::testing::collectives_test
