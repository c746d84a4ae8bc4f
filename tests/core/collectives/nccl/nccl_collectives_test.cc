// SPDX-License-Identifier: Apache-2.0
//
// Collectives by NCCL have the bits of those on the CPU, but for sums in NCCL's
// own order, and make the calls of NCCL that they are said to.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "kernels/cpu/convert.h"
#include "tests/core/collectives/blocking_collectives.h"
#include "tests/core/collectives/nccl/nccl_rank.h"

namespace shard::testing::nccl_collectives_test {
namespace {

using Bytes = std::vector<unsigned char>;

// Values whose sum depends on the order of addition.
Bytes Values(DType dtype, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  Bytes bytes(count * DTypeSize(dtype));
  Narrow(dtype, values.data(), bytes.data(), count, nullptr);
  return bytes;
}

class NcclCollectivesTest : public ::testing::TestWithParam<int> {
 protected:
  int world_size() const { return GetParam(); }
  void Run(const std::function<void(Communicator*)>& body, bool shutdown = true,
           const fake_nccl::Options& options = {}) {
    const FakeNccl fake(OneGpuEach(world_size()), options);
    RunGroup(Backend::kThreads, world_size(), body, shutdown);
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, NcclCollectivesTest,
                         ::testing::Values(2, 3, 4));

struct Form {
  DType dtype;
  DType recv_dtype;
  bool add;
  bool in_place;
  int missing;  // The rank that has nothing to add; -1: none.
  size_t count;
  bool all_send = false;
};

void CheckReduceScatter(BlockingCollectives* cpu, NcclRank* rank,
                        const RankSet& set, int block_groups,
                        const Form& form) {
  SCOPED_TRACE(StrCat("rank ", rank->comm->rank(), ", ", set.count, " by ",
                      set.stride, ", groups ", block_groups, ", ", form.count,
                      " ", DTypeName(form.dtype), " to ",
                      DTypeName(form.recv_dtype), form.add ? ", added" : "",
                      form.in_place ? ", in place" : "", ", missing ",
                      form.missing, form.all_send ? ", all send" : ""));
  const auto seed = static_cast<uint32_t>(rank->comm->rank());
  const auto ranks = static_cast<size_t>(set.count);
  Bytes send = Values(form.dtype, ranks * form.count, seed);
  Bytes recv = Values(form.recv_dtype, form.count, seed + 100);
  const DeviceTensor gpu_send(rank, send);
  const DeviceTensor gpu_recv(rank, recv);
  ReduceScatterArgs args;
  args.dtype = form.dtype;
  args.recv_dtype = form.recv_dtype;
  args.count = form.count;
  args.add = form.add;
  args.block_groups = block_groups;
  args.all_send = form.all_send;
  const bool has_send = rank->comm->rank() != form.missing;
  const auto own = static_cast<size_t>(args.BlockOf(
                       set.IndexOf(rank->comm->rank()), set.count)) *
                   form.count * DTypeSize(form.dtype);
  const bool in_place = form.in_place && has_send;
  ReduceScatterArgs on_gpu = args;
  args.send = has_send ? send.data() : nullptr;
  args.recv = in_place ? send.data() + own : recv.data();
  auto* const gpu = static_cast<unsigned char*>(gpu_send.data());
  on_gpu.send = has_send ? gpu : nullptr;
  on_gpu.recv = in_place ? gpu + own : gpu_recv.data();
  ASSERT_OK(cpu->ReduceScatter("sum", set, args));
  rank->collectives->ReduceScatter("sum", set, on_gpu, rank->stream.get());
  ASSERT_OK(rank->Synchronize());
  EXPECT_TRUE(gpu_recv.Read() == recv);
  Bytes sent = gpu_send.Read();
  const bool is_overwritten =
      form.add && form.all_send && block_groups == 1 &&
      rank->collectives->order(form.dtype) == SumOrder::kLibrary;
  if (is_overwritten) {
    const size_t bytes = form.count * DTypeSize(form.dtype);
    std::copy_n(send.begin() + static_cast<ptrdiff_t>(own), bytes,
                sent.begin() + static_cast<ptrdiff_t>(own));
  }
  EXPECT_TRUE(sent == send);
}

TEST_P(NcclCollectivesTest, ReduceScatterHasTheBitsOfTheCpu) {
  Run([](Communicator* comm) {
    BlockingCollectives cpu(comm);
    NcclRank rank(comm, EverySet(*comm));
    for (const RankSet& set : EverySet(*comm)) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (int block_groups = 1; block_groups <= set.count; ++block_groups) {
          if (set.count % block_groups != 0) continue;
          for (const size_t count : {1, 7, 300}) {
            CheckReduceScatter(&cpu, &rank, set, block_groups,
                               {dtype, DType::kF32, true, false, -1, count});
            CheckReduceScatter(&cpu, &rank, set, block_groups,
                               {dtype, dtype, false, true, 1, count});
            if (HasFailure()) return;
          }
        }
      }
    }
  });
}

// In place, beside a sum that is there, over all ranks and some; where a rank
// has nothing to add, and for 16 bits, NCCL makes no sum.
TEST_P(NcclCollectivesTest, SumsOfNcclAreThoseOfTheCpuInItsOrder) {
  Run(
      [](Communicator* comm) {
        BlockingCollectives cpu(comm);
        NcclRank rank(comm, EverySet(*comm), {.order = SumOrder::kLibrary});
        EXPECT_EQ(rank.collectives->order(DType::kF32), SumOrder::kLibrary);
        EXPECT_EQ(rank.collectives->order(DType::kBF16), SumOrder::kRankOrder);
        const fake_nccl::Target me = {.rank = comm->rank()};
        for (const RankSet& set : EverySet(*comm)) {
          const auto sums = [&](const Form& form) {
            const auto before = fake_nccl::Count(me);
            CheckReduceScatter(&cpu, &rank, set, 1, form);
            return fake_nccl::Count(me).Calls("ncclReduceScatter") -
                   before.Calls("ncclReduceScatter");
          };
          constexpr DType kF32 = DType::kF32;
          constexpr DType kBF16 = DType::kBF16;
          const uint64_t by_nccl = set.count > 1 ? 1 : 0;
          for (const size_t count : {1, 7, 1500}) {
            for (const bool add : {false, true}) {
              EXPECT_EQ(sums({kF32, kF32, add, false, -1, count, true}),
                        by_nccl);
            }
            EXPECT_EQ(sums({kF32, kF32, false, true, -1, count, true}),
                      by_nccl);
            EXPECT_EQ(sums({kF32, kF32, true, false, 1, count}), 0u);
            EXPECT_EQ(sums({kBF16, kF32, true, false, -1, count, true}), 0u);
            EXPECT_EQ(sums({kBF16, kBF16, false, true, -1, count, true}), 0u);
            if (HasFailure()) return;
          }
        }
      },
      /*shutdown=*/true, {.sums_in_rank_order = true});
}

// Were the order not NCCL's, the test above would show nothing.
TEST_P(NcclCollectivesTest, SumsOfNcclHaveAnOrderOfTheirOwn) {
  Run([](Communicator* comm) {
    constexpr size_t kCount = 2000;
    const auto ranks = static_cast<size_t>(comm->world_size());
    const Bytes values = Values(DType::kF32, ranks * kCount,
                                static_cast<uint32_t>(comm->rank()));
    std::vector<Bytes> sums;
    for (const SumOrder order : {SumOrder::kRankOrder, SumOrder::kLibrary}) {
      NcclRank rank(comm, {RankSet::All(comm->world_size())}, {.order = order});
      const DeviceTensor send(&rank, values);
      const DeviceTensor recv(&rank, Bytes(kCount * sizeof(float)));
      rank.collectives->ReduceScatter("sum", rank.all,
                                      {.send = send.data(),
                                       .all_send = true,
                                       .count = kCount,
                                       .recv = recv.data()},
                                      rank.stream.get());
      ASSERT_OK(rank.Synchronize());
      sums.push_back(recv.Read());
    }
    // The sum of two is the same in either order.
    EXPECT_EQ(sums[0] == sums[1], comm->world_size() == 2);
    const auto* const in_order = reinterpret_cast<const float*>(sums[0].data());
    const auto* const own = reinterpret_cast<const float*>(sums[1].data());
    float most = 0;
    for (size_t i = 0; i < kCount; ++i) {
      most = std::max(most, std::abs(in_order[i] - own[i]));
    }
    EXPECT_LT(most, 1e-5f);
  });
}

// A group is one launch for each set of ranks: its calls come first, and each
// collective has the result that it has alone.
TEST_P(NcclCollectivesTest, AGroupIsOneLaunch) {
  for (const SumOrder order : {SumOrder::kRankOrder, SumOrder::kLibrary}) {
    SCOPED_TRACE(order == SumOrder::kLibrary ? "NCCL's order" : "rank order");
    Run([order](Communicator* comm) {
      BlockingCollectives cpu(comm);
      constexpr size_t kCount = 300;
      const auto ranks = static_cast<size_t>(comm->world_size());
      NcclRank rank(
          comm, {RankSet::All(comm->world_size())},
          {.order = order,
           // For the blocks of two reductions.
           .reduce = {.blocks = (ranks - 1) * 2 * 2 * 320, .zeros = 4096}});
      constexpr size_t kSums = 5;
      std::vector<Bytes> sent;
      std::vector<std::unique_ptr<DeviceTensor>> tensors;
      const fake_nccl::Target me = {.rank = comm->rank()};
      const fake_nccl::Counts before = fake_nccl::Count(me);
      CollectiveGroup group(rank.collectives.get(), rank.stream.get());
      const DType dtype =
          order == SumOrder::kLibrary ? DType::kF32 : DType::kBF16;
      const auto sum_of = [&](void* send) {
        const auto own = static_cast<size_t>(comm->rank()) * kCount;
        return ReduceScatterArgs{
            .send = send,
            .all_send = true,
            .dtype = dtype,
            .count = kCount,
            .recv = static_cast<unsigned char*>(send) + own * DTypeSize(dtype),
            .recv_dtype = dtype};
      };
      for (size_t i = 0; i < kSums; ++i) {
        sent.push_back(Values(dtype, ranks * kCount,
                              static_cast<uint32_t>(i * 10 + ranks) +
                                  static_cast<uint32_t>(comm->rank())));
        tensors.push_back(std::make_unique<DeviceTensor>(&rank, sent.back()));
      }
      for (const auto& tensor : tensors) {
        rank.collectives->ReduceScatter("sum", rank.all, sum_of(tensor->data()),
                                        rank.stream.get());
      }
      group.End();
      ASSERT_OK(rank.Synchronize());
      const fake_nccl::Counts after = fake_nccl::Count(me);
      // Two by two, where the blocks come to this rank.
      EXPECT_EQ(after.launches - before.launches,
                order == SumOrder::kLibrary ? 1u : 3u);
      for (size_t i = 0; i < kSums; ++i) {
        ASSERT_OK(cpu.ReduceScatter("sum", rank.all, sum_of(sent[i].data())));
        if (order == SumOrder::kRankOrder || ranks == 2) {
          EXPECT_TRUE(tensors[i]->Read() == sent[i]) << i;
        }
      }
    });
  }
}

// A group that is dropped forgets the calls that were not enqueued.
TEST_P(NcclCollectivesTest, AGroupThatIsNotEndedEnqueuesNothing) {
  Run([](Communicator* comm) {
    NcclRank rank(comm, {RankSet::All(comm->world_size())});
    const DeviceTensor data(&rank, Bytes(4, 1));
    const fake_nccl::Counts before = fake_nccl::Count({.rank = comm->rank()});
    {
      const CollectiveGroup group(rank.collectives.get(), rank.stream.get());
      rank.collectives->Broadcast("word", 0, data.data(), 4, rank.stream.get());
    }
    rank.collectives->Broadcast("word", 0, data.data(), 4, rank.stream.get());
    ASSERT_OK(rank.Synchronize());
    const fake_nccl::Counts after = fake_nccl::Count({.rank = comm->rank()});
    EXPECT_EQ(after.Calls("ncclBroadcast") - before.Calls("ncclBroadcast"), 1u);
  });
}

TEST_P(NcclCollectivesTest, BlocksWithoutMemoryFailTheStream) {
  Run(
      [](Communicator* comm) {
        const auto peers = static_cast<size_t>(comm->world_size() - 1);
        NcclRank rank(comm, {RankSet::All(comm->world_size())},
                      {.reduce = {.blocks = 4 * peers - 1, .zeros = 4}});
        rank.collectives->ReduceScatter("sum", rank.all, {.count = 8},
                                        rank.stream.get());
        ExpectError(rank.Synchronize(), StatusCode::kInvalidArgument,
                    {"'sum'", "no memory for blocks"});
      },
      /*shutdown=*/false);
}

// Blocks for which the memory is too small come in parts, as few as hold them.
TEST_P(NcclCollectivesTest, LargeBlocksComeInParts) {
  Run([](Communicator* comm) {
    BlockingCollectives cpu(comm);
    const auto peers = static_cast<size_t>(comm->world_size() - 1);
    NcclRank rank(comm, EverySet(*comm),
                  {.reduce = {.blocks = peers * 4096, .zeros = 4096}});
    const fake_nccl::Target me = {.rank = comm->rank()};
    for (const RankSet& set : EverySet(*comm)) {
      const auto parts = [&](const Form& form) {
        const uint64_t before = fake_nccl::Count(me).launches;
        CheckReduceScatter(&cpu, &rank, set, 1, form);
        return fake_nccl::Count(me).launches - before;
      };
      const bool by_nccl = set.count > 1;
      EXPECT_EQ(parts({DType::kF32, DType::kF32, false, true, 0, 5000}),
                by_nccl ? 5u : 0u);
      EXPECT_EQ(parts({DType::kBF16, DType::kF32, true, false, -1, 7001}),
                by_nccl ? 4u : 0u);
    }
  });
}

// Two calls at once on a communicator would be a violation.
TEST_P(NcclCollectivesTest, SlowCallsAreWaitedFor) {
  const fake_nccl::Options slow = {
      .polls =
          {.init = 9, .split = 9, .finalize = 9, .collective = 5, .group = 5},
      .call_delay = std::chrono::microseconds(200)};
  Run(
      [](Communicator* comm) {
        BlockingCollectives cpu(comm);
        NcclRank rank(comm, EverySet(*comm));
        for (const RankSet& set : EverySet(*comm)) {
          for (const bool add : {false, true}) {
            CheckReduceScatter(&cpu, &rank, set, 1,
                               {DType::kF32, DType::kF32, add, false, -1, 300});
          }
        }
      },
      /*shutdown=*/true, slow);
}

TEST_P(NcclCollectivesTest, GathersAndBroadcastsMoveBytes) {
  Run([](Communicator* comm) {
    BlockingCollectives cpu(comm);
    NcclRank rank(comm, EverySet(*comm));
    for (const size_t bytes : {0, 1, 5, 4096, 100001}) {
      for (const RankSet& set : EverySet(*comm)) {
        const auto ranks = static_cast<size_t>(set.count);
        for (const bool in_place : {false, true}) {
          Bytes own(bytes, static_cast<unsigned char>(comm->rank() + 1));
          Bytes all(ranks * bytes, 9);
          const size_t at =
              static_cast<size_t>(set.IndexOf(comm->rank())) * bytes;
          std::copy(own.begin(), own.end(),
                    all.begin() + static_cast<ptrdiff_t>(at));
          const DeviceTensor gpu_own(&rank, own);
          const DeviceTensor gpu_all(&rank, all);
          auto* const gathered = static_cast<unsigned char*>(gpu_all.data());
          ASSERT_OK(cpu.AllGatherBlocks("gather", set, own.data(), bytes,
                                        all.data()));
          rank.collectives->AllGatherBlocks(
              "gather", set, in_place ? gathered + at : gpu_own.data(), bytes,
              gathered, rank.stream.get());
          ASSERT_OK(rank.Synchronize());
          EXPECT_TRUE(gpu_all.Read() == all);
        }
      }
      for (int root = 0; root < comm->world_size(); ++root) {
        const DeviceTensor data(
            &rank, Bytes(bytes, static_cast<unsigned char>(comm->rank() + 1)));
        rank.collectives->Broadcast("word", root, data.data(), bytes,
                                    rank.stream.get());
        ASSERT_OK(rank.Synchronize());
        EXPECT_TRUE(data.Read() ==
                    Bytes(bytes, static_cast<unsigned char>(root + 1)));
      }
    }
  });
}

// A sum is one exchange of blocks and one kernel, a gather one call.
TEST_P(NcclCollectivesTest, MakesOneCallForEach) {
  Run([](Communicator* comm) {
    BlockingCollectives cpu(comm);
    NcclRank rank(comm, {RankSet::All(comm->world_size())});
    const auto ranks = static_cast<uint64_t>(comm->world_size());
    constexpr size_t kCount = 100;
    Bytes expected = Values(DType::kF32, ranks * kCount,
                            static_cast<uint32_t>(comm->rank()));
    const DeviceTensor send(&rank, expected);
    const fake_nccl::Target me = {.rank = comm->rank()};
    const fake_nccl::Counts before = fake_nccl::Count(me);
    ASSERT_OK(comm->Barrier("counted", Soon()));
    ReduceScatterArgs args;
    args.send = send.data();
    args.count = kCount;
    args.recv = static_cast<float*>(send.data()) +
                static_cast<size_t>(comm->rank()) * kCount;
    rank.collectives->ReduceScatter("sum", rank.all, args, rank.stream.get());
    rank.collectives->AllGatherBlocks("gather", rank.all, args.recv,
                                      kCount * sizeof(float), send.data(),
                                      rank.stream.get());
    ASSERT_OK(rank.Synchronize());
    const fake_nccl::Counts after = fake_nccl::Count(me);
    EXPECT_EQ(after.launches - before.launches, 2u);
    EXPECT_EQ(after.Calls("ncclSend") - before.Calls("ncclSend"), ranks - 1);
    EXPECT_EQ(after.Calls("ncclRecv") - before.Calls("ncclRecv"), ranks - 1);
    EXPECT_EQ(after.Bytes("ncclSend") - before.Bytes("ncclSend"),
              (ranks - 1) * kCount * sizeof(float));
    EXPECT_EQ(after.Calls("ncclAllGather") - before.Calls("ncclAllGather"), 1u);
    args.send = expected.data();
    args.recv = expected.data() +
                static_cast<size_t>(comm->rank()) * kCount * sizeof(float);
    ASSERT_OK(cpu.ReduceScatter("sum", rank.all, args));
    ASSERT_OK(cpu.AllGatherBlocks("gather", rank.all, args.recv,
                                  kCount * sizeof(float), expected.data()));
    EXPECT_TRUE(send.Read() == expected);
    ASSERT_OK(comm->Barrier("done", Soon()));
  });
}

TEST_P(NcclCollectivesTest, ASetThatWasNotOpenedFailsTheStream) {
  Run(
      [](Communicator* comm) {
        NcclRank rank(comm, {});
        rank.collectives->AllGatherBlocks("gather", rank.all, nullptr, 1,
                                          nullptr, rank.stream.get());
        ExpectError(rank.Synchronize(), StatusCode::kInvalidArgument,
                    {"'gather'", "which OpenCollectives was not given"});
      },
      /*shutdown=*/false);
}

}  // namespace
}  // namespace shard::testing::nccl_collectives_test
