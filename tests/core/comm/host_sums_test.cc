// SPDX-License-Identifier: Apache-2.0
//
// Reduce-scatters over hosts: both ways to sum have the bits of a plain loop in
// rank order.
//
// The short form takes, with either way to sum, on queues three groups of hosts
// and on real helpers one, which has hosts of one and of two ranks, and sets of
// ranks that are on few of them. In each, every dtype, set and order of blocks
// is summed; tensors have 1 tile, and enough to use each slot twice; gradients
// are missing on each host as a whole, on one rank, on all but one, and on all.
// SHARD_TEST_LONG takes more groups of hosts, all numbers of tiles, gradients
// that are missing on any of the ranks, and more collectives in between.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/dtype.h"
#include "core/comm/communicator.h"
#include "core/comm/direct/direct_exchange.h"
#include "core/comm/direct/host_chain.h"
#include "core/comm/exchange.h"
#include "kernels/cpu/convert.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/comm/backends.h"
#include "tests/core/comm/host_group.h"

namespace shard::testing::host_sums_test {
namespace {

using direct::HostSums;
using direct::SumShape;
using Bytes = std::vector<std::byte>;

// Instrumented code is too slow for all of the long form.
const bool kIsLong = !kSanitized && std::getenv("SHARD_TEST_LONG") != nullptr;

// Returns element `index` of rank `rank`. Elements have both signs and several
// magnitudes, so that sums in another order have other bits; some are -0.
float Value(int rank, size_t index) {
  const uint64_t hash =
      (index * 131 + static_cast<uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15u;
  if (index % 17 == 0) return -0.0f;
  const auto mantissa = static_cast<int32_t>(hash >> 40) - (1 << 23);
  return static_cast<float>(mantissa) /
         static_cast<float>(1 << (12 + ((hash >> 32) & 15)));
}

// Returns the elements [begin, begin + count) of a rank.
Bytes Tensor(DType dtype, int rank, size_t begin, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(rank, begin + i);
  Bytes out(count * DTypeSize(dtype));
  Narrow(dtype, values.data(), out.data(), count, nullptr);
  return out;
}

std::vector<float> Widened(DType dtype, const Bytes& values) {
  std::vector<float> out(values.size() / DTypeSize(dtype));
  Widen(dtype, values.data(), out.data(), out.size());
  return out;
}

// A reduce-scatter of a rank.
struct Sum {
  RankSet set;
  size_t count = 1000;
  DType dtype = DType::kF32;
  DType recv_dtype = DType::kF32;
  bool add = false;
  int block_groups = 1;
  unsigned absent = 0;  // The bits of ranks that have nothing to add.
  bool in_place = false;

  bool Has(int rank) const { return (absent >> rank & 1) == 0; }
};

// Computes the sum of one rank in a plain loop.
Bytes Expect(const Sum& sum, int rank, const Bytes& old) {
  const size_t begin = static_cast<size_t>(sum.set.IndexOf(rank)) * sum.count;
  std::vector<float> total(sum.count);
  for (int i = 0; i < sum.set.count; ++i) {
    const int from = sum.set.rank(i);
    const auto part =
        sum.Has(from)
            ? Widened(sum.dtype, Tensor(sum.dtype, from, begin, sum.count))
            : std::vector<float>(sum.count);
    for (size_t j = 0; j < sum.count; ++j) {
      total[j] = i == 0 ? part[j] : total[j] + part[j];
    }
  }
  if (sum.add) {
    const auto before = Widened(sum.recv_dtype, old);
    for (size_t j = 0; j < sum.count; ++j) total[j] = before[j] + total[j];
  }
  Bytes out(sum.count * DTypeSize(sum.recv_dtype));
  Narrow(sum.recv_dtype, total.data(), out.data(), sum.count, nullptr);
  return out;
}

void Check(Exchange* exchange, int rank, const Sum& sum) {
  const auto ranks = static_cast<size_t>(sum.set.count);
  const int index = sum.set.IndexOf(rank);
  ReduceScatterArgs args = {.dtype = sum.dtype,
                            .count = sum.count,
                            .recv_dtype = sum.recv_dtype,
                            .add = sum.add,
                            .block_groups = sum.block_groups};
  const size_t block = sum.count * DTypeSize(sum.dtype);
  const Bytes in_order = Tensor(sum.dtype, rank, 0, ranks * sum.count);
  Bytes send(in_order.size());
  for (int i = 0; i < sum.set.count; ++i) {
    const auto number = static_cast<size_t>(args.BlockOf(i, sum.set.count));
    std::copy_n(in_order.data() + static_cast<size_t>(i) * block, block,
                send.data() + number * block);
  }
  const Bytes before = send;
  if (sum.Has(rank)) args.send = send.data();
  const size_t own =
      static_cast<size_t>(args.BlockOf(index, sum.set.count)) * block;
  Bytes old = Tensor(sum.recv_dtype, rank + 1000, 0, sum.count);
  Bytes recv = old;
  if (sum.in_place) {
    old.assign(send.begin() + static_cast<ptrdiff_t>(own),
               send.begin() + static_cast<ptrdiff_t>(own + block));
    args.recv = send.data() + own;
  } else {
    args.recv = recv.data();
  }
  SHARD_ASSERT_OK(exchange->ReduceScatter("sum", sum.set, args, Soon()));
  const Bytes expected = Expect(sum, rank, old);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                         static_cast<const std::byte*>(args.recv)))
      << sum.count << " " << DTypeName(sum.dtype) << " to "
      << DTypeName(sum.recv_dtype) << (sum.add ? ", added" : "") << ", set "
      << sum.set.first << " " << sum.set.stride << " " << sum.set.count
      << ", rank " << rank << ", groups " << sum.block_groups << ", absent "
      << sum.absent << (sum.in_place ? ", in place" : "");
  if (sum.in_place) {
    std::memcpy(send.data() + own, before.data() + own, block);
  }
  EXPECT_TRUE(send == before) << "rank " << rank << " lost what it sent";
}

// Returns this rank's set of every way to divide the world.
std::vector<RankSet> SetsOf(int rank, int world_size) {
  std::vector<RankSet> sets;
  for (int count = 2; count <= world_size; ++count) {
    for (int stride = 1; stride * count <= world_size; ++stride) {
      if (world_size % (stride * count) != 0) continue;
      sets.push_back(RankSet::Of(rank, stride, count));
    }
  }
  return sets;
}

class HostSumsTest : public ::testing::TestWithParam<HostForm> {
 protected:
  direct::Hosts hosts() const {
    return direct::Hosts(std::get<Begins>(GetParam()));
  }
  void Run(const std::function<void(Communicator*, Exchange*)>& body) const {
    HostGroup(GetParam()).Run(body);
  }
};

TEST_P(HostSumsTest, HaveTheBitsOfALoopInRankOrder) {
  Run([&](Communicator* comm, Exchange* exchange) {
    const int rank = comm->rank();
    for (const RankSet& set : SetsOf(rank, comm->world_size())) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (const bool add : {false, true}) {
          for (const size_t count : {size_t{0}, size_t{1}, size_t{63}}) {
            Check(exchange, rank,
                  {.set = set,
                   .count = count,
                   .dtype = dtype,
                   .recv_dtype = add ? DType::kF32 : dtype,
                   .add = add});
          }
        }
        Check(exchange, rank,
              {.set = set,
               .count = 1001,
               .dtype = dtype,
               .recv_dtype = dtype,
               .add = true,
               .in_place = true});
      }
      for (int groups = 2; groups <= set.count; ++groups) {
        if (set.count % groups != 0) continue;
        Check(exchange, rank,
              {.set = set, .block_groups = groups, .in_place = groups == 2});
      }
    }
  });
}

// A slot that is written too early, or read too late, would hold another tile:
// one of four slots, in which tiles are up to two rounds ahead.
TEST_P(HostSumsTest, HaveThemOverManyTiles) {
  struct Size {
    DType dtype;
    size_t tiles;
    size_t more;  // Elements of a further tile.
  };
  std::vector<Size> sizes = {
      {DType::kF32, 1, 0}, {DType::kF32, 7, 33}, {DType::kBF16, 3, 33}};
  if (kSanitized) sizes = {{DType::kF32, 3, 33}, {DType::kBF16, 3, 0}};
  if (kIsLong) {
    sizes.clear();
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const size_t tiles : {1, 2, 3, 4, 7}) {
        for (const size_t more : {0, 33}) {
          sizes.push_back({dtype, tiles, more});
        }
      }
    }
  }
  Run([&](Communicator* comm, Exchange* exchange) {
    const RankSet all = RankSet::All(comm->world_size());
    const size_t slot = direct::kStagingBytes / direct::kExchangeCells.count;
    const SumShape shape = direct::SumShapeOf(hosts(), 1, all.count);
    const auto tile_of = [&](size_t size) {
      return slot / (static_cast<size_t>(shape.left_blocks) * size +
                     static_cast<size_t>(shape.summed_blocks) * sizeof(float));
    };
    for (const Size& size : sizes) {
      const size_t tile = tile_of(DTypeSize(size.dtype)) / 32 * 32;
      Check(exchange, comm->rank(),
            {.set = all,
             .count = size.tiles * tile + size.more,
             .dtype = size.dtype,
             .add = size.more == 0,
             .in_place = size.dtype == DType::kF32 && size.more > 0});
    }
  });
}

// Returns the ranks without gradients, as bits, of the reduce-scatters of a
// test.
std::vector<unsigned> AbsentRanks(const direct::Hosts& hosts) {
  const unsigned everyone = (1u << hosts.world_size()) - 1;
  std::vector<unsigned> absent;
  if (kIsLong) {
    absent.resize(everyone + 1);
    std::iota(absent.begin(), absent.end(), 0u);
    return absent;
  }
  absent = {0u, 1u, everyone - 1, everyone};
  for (int h = 0; h < hosts.count(); ++h) {
    const unsigned of_host = (1u << hosts.end(h)) - (1u << hosts.begin(h));
    absent.push_back(of_host);
    absent.push_back(everyone - of_host);
  }
  return absent;
}

TEST_P(HostSumsTest, RanksWithNothingToAddAreZeros) {
  const std::vector<unsigned> all_absent = AbsentRanks(hosts());
  Run([&](Communicator* comm, Exchange* exchange) {
    const int rank = comm->rank();
    const RankSet all = RankSet::All(comm->world_size());
    const unsigned everyone = (1u << comm->world_size()) - 1;
    for (size_t i = 0; i < all_absent.size(); ++i) {
      Check(exchange, rank,
            {.set = all,
             .count = 200,
             .dtype = i % 3 == 0 ? DType::kBF16 : DType::kF32,
             .add = i % 2 == 0,
             .absent = all_absent[i]});
    }
    // Slots held the gradients of other ranks before.
    const size_t count = kIsLong ? 90'001 : 20'001;
    for (const unsigned absent : {0u, 1u, everyone - 1, everyone, 0u}) {
      Check(exchange, rank, {.set = all, .count = count, .absent = absent});
    }
  });
}

// Other collectives come between, which use slots and rounds of their own.
TEST_P(HostSumsTest, MayFollowOtherCollectives) {
  Run([&](Communicator* comm, Exchange* exchange) {
    const int rank = comm->rank();
    const auto ranks = static_cast<size_t>(comm->world_size());
    const RankSet all = RankSet::All(comm->world_size());
    const auto sets = SetsOf(rank, comm->world_size());
    for (size_t i = 0; i < (kIsLong ? 24u : 8u); ++i) {
      Check(exchange, rank,
            {.set = sets[i % sets.size()], .count = 500 + 20'000 * (i % 3)});
      const size_t bytes = i % 2 == 0 ? 700'000 : 4000;
      const Bytes block(bytes, static_cast<std::byte>(rank + 1));
      Bytes gathered(ranks * bytes);
      SHARD_ASSERT_OK(exchange->AllGatherBlocks(
          "gather", all, block.data(), bytes, gathered.data(), Soon()));
      for (size_t r = 0; r < ranks; ++r) {
        ASSERT_EQ(gathered[r * bytes], static_cast<std::byte>(r + 1));
        ASSERT_EQ(gathered[r * bytes + bytes - 1],
                  static_cast<std::byte>(r + 1));
      }
      auto word = static_cast<int32_t>(i) * 10 + rank;
      const int root = static_cast<int>(i % ranks);
      SHARD_ASSERT_OK(
          exchange->Broadcast("word", root, &word, sizeof(word), Soon()));
      ASSERT_EQ(word, static_cast<int32_t>(i) * 10 + root);
    }
  });
}

// Hosts of one rank each; hosts of several ranks, of unequal number; and sets
// of few ranks, on some of the hosts.
INSTANTIATE_TEST_SUITE_P(
    Mirrored, HostSumsTest,
    ::testing::Combine(::testing::Values(Backend::kHosts),
                       ::testing::ValuesIn(ShortOrLong({Begins{0, 1, 2},
                                                        Begins{0, 2, 3, 5},
                                                        Begins{0, 1, 2, 4, 6}},
                                                       {Begins{0, 3, 4}})),
                       ::testing::Values(HostSums::kDirect, HostSums::kChain)),
    NameOfForm);

// A chain for f32, and direct sums for 16 bits.
INSTANTIATE_TEST_SUITE_P(
    ByBytes, HostSumsTest,
    ::testing::Combine(::testing::Values(Backend::kHosts),
                       ::testing::Values(Begins{0, 3, 6}),
                       ::testing::Values(HostSums::kFewestBytes)),
    NameOfForm);

INSTANTIATE_TEST_SUITE_P(
    Tcp, HostSumsTest,
    ::testing::Combine(::testing::Values(Backend::kTcp),
                       ::testing::ValuesIn(ShortOrLong({Begins{0, 1, 3, 4, 6}},
                                                       {Begins{0, 1, 3},
                                                        Begins{0, 2, 3, 5}})),
                       ::testing::Values(HostSums::kDirect, HostSums::kChain)),
    NameOfForm);

}  // namespace
}  // namespace shard::testing::host_sums_test
