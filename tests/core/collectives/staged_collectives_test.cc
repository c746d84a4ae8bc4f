// SPDX-License-Identifier: Apache-2.0
//
// Collectives through staging memory, on the guard device: the exchange is that
// of the host, so it would fault at a tensor. Results are compared with those
// of CpuCollectives.

#include "core/collectives/staged/staged_collectives.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "kernels/cpu/convert.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/collectives/blocking_collectives.h"
#include "tests/core/collectives/staged_rank.h"
#include "tests/core/comm/backends.h"
#include "tests/core/device/guard_device.h"
#include "tests/core/device/guard_memory.h"

namespace shard::testing::staged_collectives_test {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Returns elements of both signs and several magnitudes, so that sums in
// another order have other bits.
Bytes Elements(DType dtype, int salt, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t hash =
        (i * 131 + static_cast<uint64_t>(salt) + 1) * 0x9E3779B97F4A7C15u;
    const auto mantissa = static_cast<int32_t>(hash >> 40) - (1 << 23);
    values[i] = static_cast<float>(mantissa) /
                static_cast<float>(1 << (16 + ((hash >> 32) & 7)));
  }
  Bytes out(count * DTypeSize(dtype));
  Narrow(dtype, values.data(), out.data(), count, nullptr);
  return out;
}

// Both collectives of a rank.
struct Pair {
  Pair(Communicator* comm, const char* device)
      : cpu(comm), staged(comm, device) {}

  BlockingCollectives cpu;
  StagedRank staged;
};

struct ReduceCase {
  DType dtype = DType::kF32;
  DType recv_dtype = DType::kF32;
  bool add = false;
  int groups = 1;
  unsigned absent = 0;  // The bits of the ranks that have nothing to add.
  bool in_place = false;
};

void CheckReduceScatter(const Pair& ranks, BlockingCollectives* cpu,
                        const RankSet& set, size_t count,
                        const ReduceCase& reduce) {
  const StagedRank& staged = ranks.staged;
  const auto blocks = static_cast<size_t>(set.count);
  ReduceScatterArgs args;
  args.dtype = reduce.dtype;
  args.recv_dtype = reduce.recv_dtype;
  args.count = count;
  args.add = reduce.add;
  args.block_groups = reduce.groups;
  const bool sends = (reduce.absent >> staged.rank() & 1) == 0;
  const size_t own =
      static_cast<size_t>(args.BlockOf(set.IndexOf(staged.rank()), set.count)) *
      count * DTypeSize(args.dtype);
  const bool in_place = reduce.in_place && sends;

  Bytes send = Elements(args.dtype, staged.rank(), blocks * count);
  Bytes recv = Elements(args.recv_dtype, 100 + staged.rank(), count);
  const DeviceMemory staged_send = staged.Tensor(send);
  const DeviceMemory staged_recv = staged.Tensor(recv);

  args.send = sends ? send.data() : nullptr;
  args.recv = in_place ? send.data() + own : recv.data();
  SHARD_ASSERT_OK(cpu->ReduceScatter("sum", set, args));
  args.send = sends ? staged_send.data() : nullptr;
  args.recv = in_place ? staged_send.data() + own : staged_recv.data();
  staged.collectives()->ReduceScatter("sum", set, args, staged.stream());
  SHARD_ASSERT_OK(staged.Synchronize());
  const std::string text =
      StrCat(count, " ", DTypeName(args.dtype), " to ",
             DTypeName(args.recv_dtype), args.add ? ", added" : "", ", ",
             args.block_groups, " groups, absent ", reduce.absent, ", set ",
             set.stride, " ", set.count, in_place ? ", in place" : "");
  EXPECT_TRUE(StagedRank::ValuesOf(staged_send) == send) << text;
  EXPECT_TRUE(StagedRank::ValuesOf(staged_recv) == recv) << text;
}

// Returns the elements of a chunk, of which each takes so many bytes.
size_t ChunkOf(size_t unit_bytes) {
  return kUsedStaging / unit_bytes / 64 * 64;
}

// Returns the calls of the Exchange that a collective makes: none where the set
// is one rank, whose tensors stay on the device.
size_t CallsOf(const RankSet& set, size_t count, size_t most, size_t chunk) {
  if (set.count == 1) return 0;
  return count <= most ? 1 : (count + chunk - 1) / chunk;
}

class StagedTest
    : public ::testing::TestWithParam<std::tuple<const char*, int, bool>> {
 protected:
  void Run(const std::function<void(Pair*)>& body) {
    const auto& [device, world_size, direct] = GetParam();
    RunGroup(
        Backend::kThreads, world_size,
        [&, device = device](Communicator* comm) {
          Pair pair(comm, device);
          body(&pair);
        },
        /*shutdown=*/true, direct ? "" : "direct=0");
  }
};

TEST_P(StagedTest, ReduceScattersHaveTheBitsOfTheCpu) {
  Run([](Pair* pair) {
    for (const RankSet& set : EverySet(*pair->cpu.comm())) {
      const auto ranks = static_cast<size_t>(set.count);
      for (const DType dtype : kDTypes) {
        for (const DType recv_dtype : kDTypes) {
          const size_t chunk =
              ChunkOf(ranks * DTypeSize(dtype) + DTypeSize(recv_dtype));
          for (const bool add : {false, true}) {
            for (const size_t count : {size_t{0}, size_t{1}, 3 * chunk + 5}) {
              CheckReduceScatter(
                  *pair, &pair->cpu, set, count,
                  {.dtype = dtype, .recv_dtype = recv_dtype, .add = add});
            }
          }
        }
        for (const bool add : {false, true}) {
          const size_t chunk = ChunkOf((ranks + 1) * DTypeSize(dtype));
          CheckReduceScatter(*pair, &pair->cpu, set, 2 * chunk + 1,
                             {.dtype = dtype,
                              .recv_dtype = dtype,
                              .add = add,
                              .in_place = true});
        }
      }
    }
  });
}

TEST_P(StagedTest, ReduceScattersSizesAroundAChunk) {
  Run([](Pair* pair) {
    for (const RankSet& set : EverySet(*pair->cpu.comm())) {
      const size_t unit = (static_cast<size_t>(set.count) + 1) * sizeof(float);
      const size_t most = kUsedStaging / unit;  // In one chunk.
      const size_t chunk = ChunkOf(unit);
      for (const size_t count : {chunk - 1, chunk, chunk + 1, most, most + 1,
                                 2 * chunk, 2 * chunk + 1}) {
        const uint64_t before = pair->staged.Calls("reduce_scatter");
        CheckReduceScatter(*pair, &pair->cpu, set, count, {});
        // One of them is that of the CPU.
        EXPECT_EQ(pair->staged.Calls("reduce_scatter") - before - 1,
                  CallsOf(set, count, most, chunk))
            << count;
      }
    }
  });
}

TEST_P(StagedTest, ReduceScattersBlocksByGroups) {
  Run([](Pair* pair) {
    int grouped = 0;
    for (const RankSet& set : EverySet(*pair->cpu.comm())) {
      for (int groups = 2; groups <= set.count; ++groups) {
        if (set.count % groups != 0) continue;
        ++grouped;
        for (const size_t count : {77, 1001}) {
          for (const bool in_place : {false, true}) {
            CheckReduceScatter(
                *pair, &pair->cpu, set, count,
                {.add = true, .groups = groups, .in_place = in_place});
          }
        }
      }
    }
    // A rank that is alone has one block. The set of all others has groups.
    EXPECT_EQ(grouped > 0, pair->cpu.world_size() > 1);
  });
}

TEST_P(StagedTest, RanksMayHaveNothingToAdd) {
  Run([](Pair* pair) {
    const RankSet all = RankSet::All(pair->cpu.world_size());
    for (unsigned absent = 0; absent < 1u << all.count; ++absent) {
      for (const bool add : {false, true}) {
        for (const size_t count : {63, 1001}) {
          CheckReduceScatter(*pair, &pair->cpu, all, count,
                             {.dtype = DType::kBF16,
                              .add = add,
                              .absent = absent,
                              .in_place = false});
        }
      }
    }
  });
}

TEST_P(StagedTest, AllGathersBlocks) {
  Run([](Pair* pair) {
    const StagedRank& staged = pair->staged;
    for (const RankSet& set : EverySet(*pair->cpu.comm())) {
      const auto ranks = static_cast<size_t>(set.count);
      const auto index = static_cast<size_t>(set.IndexOf(staged.rank()));
      const size_t most = kUsedStaging / ranks;
      const size_t chunk = ChunkOf(ranks);
      for (const size_t bytes :
           {size_t{0}, size_t{1}, chunk - 1, chunk, chunk + 1, most, most + 1,
            2 * chunk, 3 * chunk + 7}) {
        const Bytes own = Elements(DType::kF32, staged.rank(), bytes / 4 + 1);
        Bytes expected(ranks * bytes);
        SHARD_ASSERT_OK(pair->cpu.AllGatherBlocks("gather", set, own.data(),
                                                  bytes, expected.data()));
        const DeviceMemory send = staged.Tensor(own);
        const DeviceMemory recv = staged.Tensor(Bytes(ranks * bytes));
        const uint64_t before = staged.Calls("all_gather_blocks");
        staged->AllGatherBlocks("gather", set, send.data(), bytes, recv.data(),
                                staged.stream());
        SHARD_ASSERT_OK(staged.Synchronize());
        EXPECT_EQ(staged.Calls("all_gather_blocks") - before,
                  CallsOf(set, bytes, most, chunk))
            << bytes;
        EXPECT_TRUE(StagedRank::ValuesOf(recv) == expected) << bytes;
        EXPECT_TRUE(StagedRank::ValuesOf(send) == own) << bytes;

        Bytes place(ranks * bytes);
        std::copy_n(own.begin(), bytes, place.data() + index * bytes);
        const DeviceMemory both = staged.Tensor(place);
        staged->AllGatherBlocks("in place", set, both.data() + index * bytes,
                                bytes, both.data(), staged.stream());
        SHARD_ASSERT_OK(staged.Synchronize());
        EXPECT_TRUE(StagedRank::ValuesOf(both) == expected)
            << bytes << " in place";
      }
    }
  });
}

TEST_P(StagedTest, BroadcastsFromEveryRank) {
  Run([](Pair* pair) {
    const StagedRank& staged = pair->staged;
    for (int root = 0; root < pair->cpu.world_size(); ++root) {
      for (const size_t count :
           {size_t{0}, size_t{1}, kUsedStaging / 4, kUsedStaging / 4 + 1,
            kUsedStaging, 3 * kUsedStaging / 4 + 3}) {
        const DeviceMemory data =
            staged.Tensor(Elements(DType::kF32, staged.rank(), count));
        const uint64_t before = staged.Calls("broadcast");
        staged->Broadcast("weights", root, data.data(), count * sizeof(float),
                          staged.stream());
        SHARD_ASSERT_OK(staged.Synchronize());
        EXPECT_EQ(
            staged.Calls("broadcast") - before,
            std::max<size_t>((count * 4 + kUsedStaging - 1) / kUsedStaging, 1));
        EXPECT_TRUE(StagedRank::ValuesOf(data) ==
                    Elements(DType::kF32, root, count))
            << count << " of rank " << root;
      }
    }
  });
}

// Staging memory is used again before the host has waited for anything.
TEST_P(StagedTest, CollectivesFollowOneAnother) {
  Run([](Pair* pair) {
    const StagedRank& staged = pair->staged;
    const RankSet all = RankSet::All(pair->cpu.world_size());
    const auto ranks = static_cast<size_t>(all.count);
    constexpr size_t kCount = 1501;
    constexpr size_t kBytes = kCount * sizeof(float);
    const Bytes values = Elements(DType::kF32, staged.rank(), ranks * kCount);
    Bytes sum(kBytes);
    Bytes gathered(ranks * kBytes);
    SHARD_ASSERT_OK(pair->cpu.ReduceScatter(
        "sum", all,
        {.send = values.data(), .count = kCount, .recv = sum.data()}));
    SHARD_ASSERT_OK(pair->cpu.AllGatherBlocks("gather", all, sum.data(), kBytes,
                                              gathered.data()));
    const DeviceMemory send = staged.Tensor(values);
    std::vector<DeviceMemory> results;
    for (int i = 0; i < 4; ++i) {
      results.push_back(staged.Tensor(Bytes(ranks * kBytes)));
      std::byte* const to = results.back().data();
      std::byte* const own = to + static_cast<size_t>(staged.rank()) * kBytes;
      staged->ReduceScatter("sum", all,
                            {.send = send.data(), .count = kCount, .recv = own},
                            staged.stream());
      staged->AllGatherBlocks("gather", all, own, kBytes, to, staged.stream());
      staged->Broadcast("weights", 0, to, kBytes, staged.stream());
    }
    SHARD_ASSERT_OK(staged.Synchronize());
    EXPECT_EQ(staged->order(DType::kF32), SumOrder::kRankOrder);
    for (const DeviceMemory& result : results) {
      EXPECT_TRUE(StagedRank::ValuesOf(result) == gathered);
    }
  });
}

std::string TestName(
    const ::testing::TestParamInfo<std::tuple<const char*, int, bool>>& info) {
  const auto& [device, world_size, direct] = info.param;
  return StrCat(device == kLateDevice ? "late" : "cpu", world_size,
                direct ? "Direct" : "");
}

INSTANTIATE_TEST_SUITE_P(
    All, StagedTest,
    ::testing::Combine(::testing::Values("cpu", kLateDevice),
                       ::testing::Values(1, 2, 3, 4), ::testing::Values(false)),
    TestName);
// Ranks that share memory take the same way.
INSTANTIATE_TEST_SUITE_P(Direct, StagedTest,
                         ::testing::Combine(::testing::Values("cpu"),
                                            ::testing::Values(2),
                                            ::testing::Values(true)),
                         TestName);

}  // namespace
}  // namespace shard::testing::staged_collectives_test
