// SPDX-License-Identifier: Apache-2.0
//
// Reduce-scatters over hosts: both ways to sum have the bits of a plain loop in
// rank order, and send the bytes that docs/scaling.md says.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "core/base/dtype.h"
#include "core/comm/communicator.h"
#include "core/comm/direct/direct_exchange.h"
#include "core/comm/direct/host_chain.h"
#include "core/comm/exchange.h"
#include "core/observe/event.h"
#include "core/observe/observer.h"
#include "kernels/cpu/convert.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/comm/backends.h"

namespace shard::testing::host_sums_test {
namespace {

using direct::HostSums;
using direct::SumShape;
using Bytes = std::vector<std::byte>;

// The first rank of each host, and the number of ranks.
using Begins = std::vector<int>;

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

class HostSumsTest
    : public ::testing::TestWithParam<std::tuple<Backend, Begins, HostSums>> {
 protected:
  using Body = std::function<void(Communicator* comm, Exchange* exchange)>;

  Backend backend() const { return std::get<0>(GetParam()); }
  const Begins& begins() const { return std::get<1>(GetParam()); }
  HostSums sums() const { return std::get<2>(GetParam()); }
  int world_size() const { return begins().back(); }
  direct::Hosts hosts() const { return direct::Hosts(begins()); }

  void Run(const Body& body) {
    std::optional<TcpHosts> tcp;
    if (backend() == Backend::kTcp) {
      const std::string_view name = direct::HostSumsName(sums());
      tcp.emplace(begins(), name.empty() ? "" : StrCat("sums=", name));
    } else {
      mirrored_ = std::make_unique<MirroredHosts>(begins(), sums());
    }
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size(); ++rank) {
      threads.emplace_back([&, rank] {
        const CommOptions options = {.rank = rank, .world_size = world_size()};
        auto comm = tcp ? OpenCommunicator(tcp->Url(rank), options)
                        : StatusOr<std::shared_ptr<Communicator>>(
                              mirrored_->Open(options));
        ASSERT_TRUE(comm.ok()) << comm.status().ToString();
        {
          const auto exchange = (*comm)->OpenExchange("tensors", Soon());
          ASSERT_TRUE(exchange.ok()) << exchange.status().ToString();
          body(comm->get(), exchange->get());
        }
        SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Returns the bytes of tensors that left a host so far.
  size_t data_sent(int host) const { return mirrored_->data_sent(host); }

 private:
  std::unique_ptr<MirroredHosts> mirrored_;
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

// The tensors have up to eight tiles. A slot that is written too early, or read
// too late, would hold another tile.
TEST_P(HostSumsTest, HaveThemOverManyTiles) {
  Run([&](Communicator* comm, Exchange* exchange) {
    const int rank = comm->rank();
    const RankSet all = RankSet::All(comm->world_size());
    const size_t slot = direct::kStagingBytes / direct::kExchangeCells.count;
    const SumShape shape = direct::SumShapeOf(hosts(), 1, all.count);
    const auto tile_of = [&](size_t size) {
      return slot / (static_cast<size_t>(shape.left_blocks) * size +
                     static_cast<size_t>(shape.summed_blocks) * sizeof(float));
    };
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const size_t tile = tile_of(DTypeSize(dtype)) / 32 * 32;
      for (const size_t tiles : {1, 2, 3, 4, 7}) {
        if (kSanitized && tiles != 3) continue;
        for (const size_t more : {size_t{0}, size_t{33}}) {
          Check(exchange, rank,
                {.set = all,
                 .count = tiles * tile + more,
                 .dtype = dtype,
                 .add = more == 0,
                 .in_place = dtype == DType::kF32 && more > 0});
        }
      }
    }
  });
}

TEST_P(HostSumsTest, RanksWithNothingToAddAreZeros) {
  Run([&](Communicator* comm, Exchange* exchange) {
    const int rank = comm->rank();
    const RankSet all = RankSet::All(comm->world_size());
    const unsigned everyone = (1u << comm->world_size()) - 1;
    for (unsigned absent = 0; absent <= everyone; ++absent) {
      Check(exchange, rank,
            {.set = all,
             .count = 200,
             .dtype = absent % 3 == 0 ? DType::kBF16 : DType::kF32,
             .add = absent % 2 == 0,
             .absent = absent});
    }
    for (const unsigned absent : {0u, 1u, everyone - 1, everyone, 0u}) {
      Check(exchange, rank,
            {.set = all,
             .count = kSanitized ? 20'001 : 90'001,
             .absent = absent});
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
    for (size_t i = 0; i < (kSanitized ? 8u : 24u); ++i) {
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

class HostBytesTest : public HostSumsTest {};

// The formulas of docs/scaling.md, for one host and one reduce-scatter over all
// ranks: by the counters of ranks, and by what has left mirrored hosts.
TEST_P(HostBytesTest, AreThoseOfTheFormulas) {
  constexpr size_t kCount = 30'011;
  const bool is_mirrored = backend() == Backend::kHosts;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const int world = world_size();
    const SumShape shape = direct::SumShapeOf(hosts(), 1, world);
    const bool on_chain = shape.UsesChain(sums(), DTypeSize(dtype));
    std::vector<size_t> sent(begins().size() - 1);
    std::vector<size_t> shipped(static_cast<size_t>(world));  // By rank.
    Run([&](Communicator* comm, Exchange* exchange) {
      const auto count = [&](const std::function<void(size_t host)>& f) {
        // All that was sent before a barrier is counted after it.
        SHARD_ASSERT_OK(comm->Barrier("before", Soon()));
        if (comm->rank() == 0 && is_mirrored) {
          for (size_t h = 0; h < sent.size(); ++h) f(h);
        }
        SHARD_ASSERT_OK(comm->Barrier("counted", Soon()));
      };
      const auto now = [&](size_t h) { return data_sent(static_cast<int>(h)); };
      const auto counter = [&] {
        return comm->observer()->counters().Get(EventId::kShip).bytes;
      };
      size_t& mine = shipped[static_cast<size_t>(comm->rank())];
      mine = counter();
      count([&](size_t h) { sent[h] = now(h); });
      Check(exchange, comm->rank(),
            {.set = RankSet::All(world), .count = kCount, .dtype = dtype});
      count([&](size_t h) { sent[h] = now(h) - sent[h]; });
      mine = counter() - mine;
    });
    for (size_t h = 0; h < sent.size(); ++h) {
      SCOPED_TRACE(StrCat("host ", h, ", ", DTypeName(dtype),
                          on_chain ? ", on a chain" : ", direct"));
      const auto W = static_cast<size_t>(world);
      const auto k = static_cast<size_t>(begins()[h + 1] - begins()[h]);
      const bool is_last = h + 1 == sent.size();
      const size_t predicted =
          on_chain ? (is_last ? W - k : W) * kCount * sizeof(float)
                   : k * (W - k) * kCount * DTypeSize(dtype);
      EXPECT_EQ(std::accumulate(shipped.begin() + begins()[h],
                                shipped.begin() + begins()[h + 1], size_t{0}),
                predicted);
      if (is_mirrored) {
        EXPECT_EQ(sent[h], predicted);
      }
    }
  }
}

std::string NameOf(
    const ::testing::TestParamInfo<std::tuple<Backend, Begins, HostSums>>&
        info) {
  const auto& [backend, begins, sums] = info.param;
  std::string name = BackendName(backend);
  for (size_t h = 0; h + 1 < begins.size(); ++h) {
    StrAppend(&name, h == 0 ? "_" : "", begins[h + 1] - begins[h]);
  }
  const std::string_view form = direct::HostSumsName(sums);
  return StrCat(name, "_", form.empty() ? "fewest" : form);
}

INSTANTIATE_TEST_SUITE_P(
    Mirrored, HostSumsTest,
    ::testing::Combine(::testing::Values(Backend::kHosts),
                       ::testing::Values(Begins{0, 1, 2}, Begins{0, 3, 4},
                                         Begins{0, 2, 3, 5},
                                         Begins{0, 1, 2, 4, 6}),
                       ::testing::Values(HostSums::kDirect, HostSums::kChain)),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    All, HostBytesTest,
    ::testing::Combine(::testing::Values(Backend::kHosts, Backend::kTcp),
                       ::testing::Values(Begins{0, 1, 2}, Begins{0, 2, 3, 5},
                                         Begins{0, 3, 6},
                                         Begins{0, 1, 2, 4, 6}),
                       ::testing::Values(HostSums::kFewestBytes,
                                         HostSums::kDirect, HostSums::kChain)),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    ByBytes, HostSumsTest,
    ::testing::Combine(::testing::Values(Backend::kHosts),
                       ::testing::Values(Begins{0, 3, 6}),
                       ::testing::Values(HostSums::kFewestBytes)),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Tcp, HostSumsTest,
    ::testing::Combine(::testing::Values(Backend::kTcp),
                       ::testing::Values(Begins{0, 1, 3}, Begins{0, 2, 3, 5},
                                         Begins{0, 1, 3, 4, 6}),
                       ::testing::Values(HostSums::kDirect, HostSums::kChain)),
    NameOf);

}  // namespace
}  // namespace shard::testing::host_sums_test
