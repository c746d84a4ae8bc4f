// SPDX-License-Identifier: Apache-2.0
//
// Operations of the fake NCCL between threads: their results, their order in
// streams, and the order of their sums.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "tests/fake_nccl/nccl_testing.h"
#include "tests/fake_nccl/sums.h"

namespace shard::collectives_test {
namespace {

using namespace testing::fake_nccl;

using CollectivesTest = NcclTest;

// Values that differ between ranks and elements, whose sums are rounded.
std::vector<float> ValuesOf(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 7919 + 31) % 1000 + 1) /
                static_cast<float>(3 + 97 * rank);
  }
  return values;
}

// The formula of fake_nccl.h.
std::vector<float> SumOf(int nranks, int block, size_t count, size_t offset) {
  const size_t slice = Options().slice_elements;
  std::vector<std::vector<float>> values;
  for (int r = 0; r < nranks; ++r) {
    values.push_back(ValuesOf(r, offset + count));
  }
  std::vector<float> sums(count);
  for (size_t e = 0; e < count; ++e) {
    const size_t first = static_cast<size_t>(block) + 1 + e / slice;
    for (size_t k = 0; k < static_cast<size_t>(nranks); ++k) {
      const float x =
          values[(first + k) % static_cast<size_t>(nranks)][offset + e];
      sums[e] = k == 0 ? x : sums[e] + x;
    }
  }
  return sums;
}

TEST_F(CollectivesTest, ReduceScatterSumsInTheOrderOfARing) {
  constexpr size_t kCount = 20000;  // More than a channel holds.
  for (const int n : {1, 2, 3, 4}) {
    SCOPED_TRACE(n);
    Begin();
    RunWithComm(n, [&](Rank* rank, Comm* comm) {
      const auto r = static_cast<size_t>(rank->rank());
      float* const send =
          rank->Put(ValuesOf(rank->rank(), static_cast<size_t>(n) * kCount));
      const auto expected = SumOf(n, rank->rank(), kCount, r * kCount);
      auto* const recv = static_cast<float*>(rank->Make(kCount * 4));
      EXPECT_NCCL(ncclReduceScatter(send, recv, kCount, DataType::kFloat32,
                                    RedOp::kSum, comm, rank->stream()));
      EXPECT_EQ(rank->Get(recv, kCount), expected);
      // In place.
      EXPECT_NCCL(ncclReduceScatter(send, send + r * kCount, kCount,
                                    DataType::kFloat32, RedOp::kSum, comm,
                                    rank->stream()));
      EXPECT_EQ(rank->Get(send + r * kCount, kCount), expected);
    });
  }
}

TEST_F(CollectivesTest, TheOrderIsNotThatOfTheRanks) {
  const auto ring = SumOf(3, 0, 2000, 0);
  std::vector<float> ranks = ValuesOf(0, 2000);
  for (int r = 1; r < 3; ++r) {
    const auto values = ValuesOf(r, 2000);
    for (size_t i = 0; i < ranks.size(); ++i) ranks[i] += values[i];
  }
  EXPECT_NE(ring, ranks);
}

TEST_F(CollectivesTest, AllReduceSumsInPlaceAndNot) {
  constexpr size_t kCount = 20001;
  RunWithComm(3, [&](Rank* rank, Comm* comm) {
    const auto expected = SumOf(3, 0, kCount, 0);
    float* const send = rank->Put(ValuesOf(rank->rank(), kCount));
    auto* const recv = static_cast<float*>(rank->Make(kCount * 4));
    EXPECT_NCCL(ncclAllReduce(send, recv, kCount, DataType::kFloat32,
                              RedOp::kSum, comm, rank->stream()));
    EXPECT_NCCL(ncclAllReduce(send, send, kCount, DataType::kFloat32,
                              RedOp::kSum, comm, rank->stream()));
    EXPECT_EQ(rank->Get(recv, kCount), expected);
    EXPECT_EQ(rank->Get(send, kCount), expected);
  });
}

TEST_F(CollectivesTest, AllGatherGathersInPlaceAndNot) {
  constexpr size_t kCount = 20000;
  constexpr int kRanks = 3;
  RunWithComm(kRanks, [&](Rank* rank, Comm* comm) {
    const auto r = static_cast<size_t>(rank->rank());
    std::vector<float> expected;
    for (int i = 0; i < kRanks; ++i) {
      const auto values = ValuesOf(i, kCount);
      expected.insert(expected.end(), values.begin(), values.end());
    }
    float* const send = rank->Put(ValuesOf(rank->rank(), kCount));
    auto* const recv = static_cast<float*>(rank->Make(kRanks * kCount * 4));
    EXPECT_NCCL(ncclAllGather(send, recv, kCount, DataType::kFloat32, comm,
                              rank->stream()));
    EXPECT_EQ(rank->Get(recv, kRanks * kCount), expected);
    std::vector<float> own(kRanks * kCount);
    const auto values = ValuesOf(rank->rank(), kCount);
    std::copy(values.begin(), values.end(),
              own.begin() + static_cast<ptrdiff_t>(r * kCount));
    float* const both = rank->Put(own);
    EXPECT_NCCL(ncclAllGather(both + r * kCount, both, kCount,
                              DataType::kFloat32, comm, rank->stream()));
    EXPECT_EQ(rank->Get(both, kRanks * kCount), expected);
  });
}

TEST_F(CollectivesTest, BroadcastSendsFromTheRoot) {
  RunWithComm(3, [&](Rank* rank, Comm* comm) {
    std::vector<int64_t> values(5000, rank->rank());
    int64_t* const send = rank->Put(values);
    auto* const recv = static_cast<int64_t*>(rank->Make(5000 * 8));
    EXPECT_NCCL(ncclBroadcast(send, recv, 5000, DataType::kInt64, 2, comm,
                              rank->stream()));
    EXPECT_NCCL(ncclBroadcast(send, send, 5000, DataType::kInt64, 1, comm,
                              rank->stream()));
    EXPECT_EQ(rank->Get(recv, 5000), std::vector<int64_t>(5000, 2));
    EXPECT_EQ(rank->Get(send, 5000), std::vector<int64_t>(5000, 1));
  });
}

TEST_F(CollectivesTest, SendsMeetReceives) {
  RunWithComm(2, [&](Rank* rank, Comm* comm) {
    const int other = 1 - rank->rank();
    float* const send = rank->Put(ValuesOf(rank->rank(), 30000));
    auto* const recv = static_cast<float*>(rank->Make(30000 * 4));
    if (rank->rank() == 0) {
      EXPECT_NCCL(ncclSend(send, 30000, DataType::kFloat32, other, comm,
                           rank->stream()));
    }
    EXPECT_NCCL(
        ncclRecv(recv, 30000, DataType::kFloat32, other, comm, rank->stream()));
    if (rank->rank() == 1) {
      EXPECT_NCCL(ncclSend(send, 30000, DataType::kFloat32, other, comm,
                           rank->stream()));
    }
    EXPECT_EQ(rank->Get(recv, 30000), ValuesOf(other, 30000));
  });
}

// Halves are rounded at each hop: 1 + 2^-9 is 1 in bf16, and 2^-9 + 2^-9 is
// not.
TEST_F(CollectivesTest, HalvesAreRoundedAtEachHop) {
  constexpr uint16_t kOne = 0x3F80;
  constexpr uint16_t kTiny = 0x3B00;  // 2^-9
  RunWithComm(3, [&](Rank* rank, Comm* comm) {
    // Two elements of slice 0, whose sum begins at rank 1: (x1 + x2) + x0.
    uint16_t* const values = rank->Put(std::vector<uint16_t>{
        rank->rank() == 0 ? kOne : kTiny, rank->rank() == 1 ? kOne : kTiny});
    EXPECT_NCCL(ncclAllReduce(values, values, 2, DataType::kBfloat16,
                              RedOp::kSum, comm, rank->stream()));
    // 1 + 2^-8 lies half way, and is rounded to even.
    EXPECT_EQ(rank->Get(values, 2), (std::vector<uint16_t>{kOne, kOne}));
    uint16_t* const more = rank->Put(std::vector<uint16_t>{
        rank->rank() == 0 ? kOne : uint16_t{0x3B80},
        rank->rank() == 1 ? kOne : uint16_t{0x3B80}});  // 2^-8
    EXPECT_NCCL(ncclAllReduce(more, more, 2, DataType::kBfloat16, RedOp::kSum,
                              comm, rank->stream()));
    EXPECT_EQ(rank->Get(more, 2), (std::vector<uint16_t>{0x3F81, kOne}));
  });
}

TEST(SumsTest, RoundsF16ToNearestEven) {
  const auto add = [](uint16_t x, uint16_t y) {
    AddTo(&x, &y, 1, DataType::kFloat16);
    return x;
  };
  EXPECT_EQ(add(0x3C00, 0x3C00), 0x4000);  // 1 + 1
  EXPECT_EQ(add(0x3C00, 0x1000), 0x3C00);  // 1 + 2^-11: half way.
  EXPECT_EQ(add(0x3C01, 0x1000), 0x3C02);
  EXPECT_EQ(add(0x0001, 0x0001), 0x0002);  // Below the normal numbers.
  EXPECT_EQ(add(0x03FF, 0x0001), 0x0400);
  EXPECT_EQ(add(0x7BFF, 0x7BFF), 0x7C00);  // Infinity.
  EXPECT_EQ(add(0xBC00, 0x3C00), 0x0000);
  EXPECT_EQ(add(0x7C00, 0xFC00) & 0x7E00, 0x7E00);  // NaN.
}

TEST(SumsTest, RoundsBF16ToNearestEven) {
  const auto add = [](uint16_t x, uint16_t y) {
    AddTo(&x, &y, 1, DataType::kBfloat16);
    return x;
  };
  EXPECT_EQ(add(0x3F80, 0x3B80), 0x3F80);  // 1 + 2^-8: half way.
  EXPECT_EQ(add(0x3F81, 0x3B80), 0x3F82);
  EXPECT_EQ(add(0x7F7F, 0x7F7F), 0x7F80);  // Infinity.
}

TEST(SumsTest, IntegersWrap) {
  uint8_t x = 200;
  const uint8_t y = 100;
  AddTo(&x, &y, 1, DataType::kInt8);
  EXPECT_EQ(x, 44);
}

// A collective that waits holds up its stream alone.
TEST_F(CollectivesTest, ACollectiveWaitsForTheOtherRanks) {
  std::atomic<bool> was_held_up = false;
  RunWithComm(2, [&](Rank* rank, Comm* comm) {
    float* const x = rank->Put(std::vector<float>{1});
    if (rank->rank() == 1) {
      EXPECT_TRUE(ComesTrue([&] { return was_held_up.load(); }));
    }
    EXPECT_NCCL(ncclAllReduce(x, x, 1, DataType::kFloat32, RedOp::kSum, comm,
                              rank->stream()));
    const CuEvent event = rank->Record();
    if (rank->rank() == 0) {
      const CuStream other = rank->MakeStream();
      for (int i = 0; i < 10; ++i) EXPECT_TRUE(rank->Synchronize(other));
      EXPECT_TRUE(Rank::IsPending(event));
      was_held_up = true;
    }
    EXPECT_TRUE(ComesTrue([&] { return !Rank::IsPending(event); }));
    EXPECT_EQ(rank->Get(x, 1), std::vector<float>{2});
  });
}

// The operations of a communicator come in the order of their launches, on
// whatever streams.
TEST_F(CollectivesTest, ACommunicatorHasOneOrder) {
  RunWithComm(1, [&](Rank* rank, Comm* comm) {
    float* const x = rank->Put(std::vector<float>{1});
    float* const y = rank->Put(std::vector<float>{1});
    const CuStream other = rank->MakeStream();
    std::atomic<bool> is_open = false;
    testing::fake_cuda::WaitingKernel gate;
    gate.name = "gate";
    gate.context = rank->context();
    gate.streams = {rank->stream()};
    gate.begin = [&is_open] {
      return [&is_open] {
        return is_open ? testing::fake_cuda::Progress::kDone
                       : testing::fake_cuda::Progress::kWaits;
      };
    };
    EXPECT_CU(testing::fake_cuda::LaunchWaiting(gate));
    EXPECT_NCCL(
        ncclAllGather(x, x, 1, DataType::kFloat32, comm, rank->stream()));
    EXPECT_NCCL(ncclAllGather(y, y, 1, DataType::kFloat32, comm, other));
    const CuEvent event = rank->Record(other);
    const CuStream third = rank->MakeStream();
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(rank->Synchronize(third));
    EXPECT_TRUE(Rank::IsPending(event));
    is_open = true;
    EXPECT_TRUE(rank->Synchronize(other));
    EXPECT_TRUE(rank->Synchronize());
  });
}

// The checks of order see the memory of collectives.
TEST_F(CollectivesTest, ACollectiveNeedsAnOrder) {
  RunWithComm(2, [&](Rank* rank, Comm* comm) {
    float* const x = rank->Put(std::vector<float>{1, 2});
    const CuStream other = rank->MakeStream();
    EXPECT_NCCL(ncclAllGather(x + rank->rank(), x, 1, DataType::kFloat32, comm,
                              rank->stream()));
    if (rank->rank() == 0) {
      EXPECT_CU(Api().MemsetD8Async(At(x + 1), 0, 4, other));
      EXPECT_TRUE(rank->Synchronize(other));
    }
    EXPECT_TRUE(rank->Synchronize());
  });
  ASSERT_EQ(testing::fake_cuda::Violations().size(), 1u);
  EXPECT_NE(testing::fake_cuda::ViolationText().find("ncclAllGather"),
            std::string::npos);
  testing::fake_cuda::ClearViolations();
}

}  // namespace
}  // namespace shard::collectives_test
