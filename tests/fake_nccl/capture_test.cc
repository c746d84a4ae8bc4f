// SPDX-License-Identifier: Apache-2.0
//
// Operations of the fake NCCL in graphs, on devices that are lazy, late or
// guarded, and behind a driver that chooses other orders.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "tests/fake_cuda/graph_api.h"
#include "tests/fake_nccl/nccl_testing.h"

namespace shard::capture_test {
namespace {

using namespace testing::fake_nccl;

using CaptureTest = NcclTest;

TEST_F(CaptureTest, AGraphRepeatsCollectives) {
  const cuda::GraphApi graphs = cuda::GraphApi::Load();
  RunWithComm(1, [&](Rank* rank, Comm* comm) {
    float* const x = rank->Put(std::vector<float>{1, 2});
    float* const y = rank->Put(std::vector<float>{0, 0});
    EXPECT_CU(graphs.StreamBeginCapture(rank->stream(),
                                        cuda::CuCaptureMode::kThreadLocal));
    EXPECT_NCCL(
        ncclAllGather(x, y, 2, DataType::kFloat32, comm, rank->stream()));
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclAllReduce(y, x, 1, DataType::kFloat32, RedOp::kSum, comm,
                              rank->stream()));
    EXPECT_NCCL(ncclAllReduce(y + 1, x + 1, 1, DataType::kFloat32, RedOp::kSum,
                              comm, rank->stream()));
    EXPECT_NCCL(ncclGroupEnd());
    cuda::CuGraph graph = nullptr;
    cuda::CuGraphExec exec = nullptr;
    EXPECT_CU(graphs.StreamEndCapture(rank->stream(), &graph));
    EXPECT_CU(graphs.GraphInstantiate(&exec, graph, 0));
    EXPECT_CU(graphs.GraphDestroy(graph));
    EXPECT_EQ(Count().launches, 0u);
    EXPECT_EQ(rank->Get(y, 2), (std::vector<float>{0, 0}));
    for (uint64_t i = 1; i <= 3; ++i) {
      EXPECT_CU(Api().MemsetD8Async(At(y), 0, 8, rank->stream()));
      EXPECT_CU(graphs.GraphLaunch(exec, rank->stream()));
      EXPECT_EQ(rank->Get(y, 2), (std::vector<float>{1, 2}));
      EXPECT_EQ(Count().launches, 2 * i);
    }
    EXPECT_CU(graphs.GraphExecDestroy(exec));
  });
}

// Ranks capture at once. A graph of two ranks meets the calls of a third.
TEST_F(CaptureTest, AGraphMeetsCalls) {
  const cuda::GraphApi graphs = cuda::GraphApi::Load();
  RunWithComm(3, [&](Rank* rank, Comm* comm) {
    int* const x = rank->Put(std::vector<int>{rank->rank() + 1});
    cuda::CuGraphExec exec = nullptr;
    if (rank->rank() != 2) {
      cuda::CuGraph graph = nullptr;
      EXPECT_CU(graphs.StreamBeginCapture(rank->stream(),
                                          cuda::CuCaptureMode::kThreadLocal));
      EXPECT_NCCL(ncclAllReduce(x, x, 1, DataType::kInt32, RedOp::kSum, comm,
                                rank->stream()));
      EXPECT_CU(graphs.StreamEndCapture(rank->stream(), &graph));
      EXPECT_CU(graphs.GraphInstantiate(&exec, graph, 0));
      EXPECT_CU(graphs.GraphDestroy(graph));
    }
    for (int i = 0; i < 3; ++i) {
      if (rank->rank() != 2) {
        EXPECT_CU(graphs.GraphLaunch(exec, rank->stream()));
      } else {
        EXPECT_NCCL(ncclAllReduce(x, x, 1, DataType::kInt32, RedOp::kSum, comm,
                                  rank->stream()));
      }
    }
    EXPECT_EQ(rank->Get(x, 1), std::vector<int>{54});
    if (rank->rank() != 2) {
      EXPECT_CU(graphs.GraphExecDestroy(exec));
    }
  });
}

TEST_F(CaptureTest, AGroupOfACapturedStreamAndAnotherFails) {
  const cuda::GraphApi graphs = cuda::GraphApi::Load();
  RunWithComm(1, [&](Rank* rank, Comm* comm) {
    float* const x = rank->Put(std::vector<float>{1, 2});
    const CuStream other = rank->MakeStream();
    EXPECT_CU(graphs.StreamBeginCapture(rank->stream(),
                                        cuda::CuCaptureMode::kThreadLocal));
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclAllReduce(x, x, 1, DataType::kFloat32, RedOp::kSum, comm,
                              rank->stream()));
    EXPECT_NCCL(ncclAllReduce(x + 1, x + 1, 1, DataType::kFloat32, RedOp::kSum,
                              comm, other));
    EXPECT_EQ(ncclGroupEnd(), Result::kUnhandledCudaError);
    cuda::CuGraph graph = nullptr;
    EXPECT_CU(graphs.StreamEndCapture(rank->stream(), &graph));
    EXPECT_CU(graphs.GraphDestroy(graph));
  });
}

// Ranks exchange sums many times, with other work in between.
TEST_F(CaptureTest, DevicesMayBeLazyLateOrGuarded) {
  std::vector<testing::fake_cuda::Options> all(4);
  all[0].lazy = true;
  all[1].max_delay = std::chrono::microseconds(50);
  all[2].guard = true;
  all[3].lazy = true;
  all[3].guard = true;
  all[3].seed = 7;
  for (const auto& cuda : all) {
    SCOPED_TRACE(&cuda - all.data());
    Begin({}, cuda);
    RunWithComm(3, [&](Rank* rank, Comm* comm) {
      auto* const x = static_cast<int*>(rank->Make(3 * 4));
      auto* const sum = static_cast<int*>(rank->Make(4));
      EXPECT_CU(Api().MemsetD8Async(At(x), 0, 12, rank->stream()));
      for (int i = 0; i < 10; ++i) {
        EXPECT_CU(
            Api().MemsetD8Async(At(x + rank->rank()), 1, 1, rank->stream()));
        EXPECT_NCCL(ncclAllGather(x + rank->rank(), x, 1, DataType::kInt32,
                                  comm, rank->stream()));
        EXPECT_NCCL(ncclReduceScatter(x, sum, 1, DataType::kInt32, RedOp::kSum,
                                      comm, rank->stream()));
      }
      EXPECT_EQ(rank->Get(x, 3), (std::vector<int>{1, 1, 1}));
      EXPECT_EQ(rank->Get(sum, 1), std::vector<int>{3});
    });
  }
}

}  // namespace
}  // namespace shard::capture_test
