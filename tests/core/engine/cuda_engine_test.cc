// SPDX-License-Identifier: Apache-2.0
//
// Engines on the device cuda, over the fake of its driver: what a steady step
// costs, memory that runs out, and fork. cuda_faults_test makes the driver
// fail.

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>

#include "core/device/cuda/cuda_device.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_engine_test {
namespace {

using namespace cuda_training;  // NOLINT: the helpers of these tests
using testing::FakeCuda;
using testing::FakeCudaTest;
using testing::fake_cuda::Alive;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountAlive;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::Reset;
using testing::fake_cuda::RunAll;
using FakeCounters = testing::fake_cuda::Counters;

// ---- What a step costs ------------------------------------------------------

void ExpectOnGpu(const StatusOr<Engine::Tensor>& tensor) {
  ASSERT_OK(tensor);
  const auto device = cuda::OpenDevice("0");
  ASSERT_OK(device);
  EXPECT_OK((*device)->CheckPlace(tensor->data, MemoryPlace::kDevice));
}

// Returns what the fourth step calls, from the declaration of its gradients on.
FakeCounters CountStep(const Form& form) {
  FakeCounters counters;
  const FakeCuda fake;
  const auto plan = MakePlan(form);
  RunThreadRanks(1, [&](const auto& comm) {
    const HostsStream stream;
    const auto engine = MakeEngine(plan, comm);
    ASSERT_OK(engine);
    ASSERT_OK((*engine)->SetStream(stream.get()));
    ASSERT_OK(Fill(engine->get()));
    for (ParamId p = 0; p < static_cast<ParamId>(plan->places().size()); ++p) {
      ExpectOnGpu((*engine)->Param(p));
      ExpectOnGpu((*engine)->Grad(p));
    }
    for (int step = 1; step <= 4; ++step) {
      // Then each wait of the host is one query.
      RunAll();
      const FakeCounters before = Count();
      for (auto unit = static_cast<int32_t>(plan->units().size());
           unit-- > 0;) {
        ASSERT_OK((*engine)->MarkUnitGradsReady(unit));
      }
      ASSERT_OK((*engine)->Step(Clipped(), nullptr));
      counters = CountSince(before);
    }
    ASSERT_OK((*engine)->Synchronize(0));
  });
  return counters;
}

class StepCostTest : public ::testing::Test {};

TEST_F(StepCostTest, WaitsOnceAndAllocatesNothing) {
  for (const int stage : {0, 1}) {
    const FakeCounters counters = CountStep({.stage = stage});
    EXPECT_EQ(counters.Calls("cuEventQuery"), 1u);
    EXPECT_EQ(counters.waits_of_host, 0u);
    EXPECT_EQ(counters.pageable_copies, 0u);
    for (const char* const call :
         {"cuMemAlloc", "cuMemAllocFromPoolAsync", "cuMemHostAlloc",
          "cuMemFree", "cuMemFreeAsync", "cuMemFreeHost", "cuStreamCreate",
          "cuEventCreate", "cuModuleLoadData", "cuMemPoolTrimTo"}) {
      EXPECT_EQ(counters.Calls(call), 0u) << call;
    }
    // The sum of one buffer, its scale, and its update.
    EXPECT_EQ(counters.Launches(), 3u);
    EXPECT_EQ(counters.Launches("shard_add_to_norm"), 1u);
    EXPECT_EQ(counters.Launches("shard_finish_norm"), 1u);
    // The step's values, and its results.
    EXPECT_EQ(counters.to_device.count, 1u);
    EXPECT_EQ(counters.to_host.count, 1u);
    EXPECT_LE(counters.to_device.bytes + counters.to_host.bytes, 4096u);
  }
}

TEST_F(StepCostTest, DependsOnUnitsAlone) {
  const FakeCounters one = CountStep({});
  const FakeCounters tensors = CountStep({.tensors_per_unit = 1000});
  EXPECT_EQ(tensors.calls, one.calls);
  EXPECT_EQ(tensors.launches, one.launches);
  const FakeCounters two = CountStep({.units = 2});
  const FakeCounters ten = CountStep({.units = 10});
  EXPECT_EQ(ten.Calls("cuEventQuery"), 1u);
  // The sum of the buffer and its update.
  EXPECT_EQ(two.Launches(), one.Launches() + 2);
  EXPECT_EQ(ten.Launches(), one.Launches() + 2 * 9);
  EXPECT_EQ(ten.to_device.count, 1u);
  EXPECT_EQ(ten.Calls() - two.Calls(), 8 * (two.Calls() - one.Calls()));
}

// ---- Engines
// -----------------------------------------------------------------

class CudaEngineTest : public FakeCudaTest {};

TEST_F(CudaEngineTest, MemoryThatRunsOutIsNamed) {
  Reset({.memory_bytes = size_t{1} << 20});
  const auto plan = MakePlan({.units = 100});
  RunThreadRanks(1, [&](const auto& comm) {
    const auto engine = MakeEngine(plan, comm);
    ExpectError(engine, StatusCode::kResourceExhausted,
                {"cuda:0", "free of 1.0 MiB", "shardctl plan"});
  });
}

// A child of fork has the parent's handles, and nothing of CUDA works there.
TEST_F(CudaEngineTest, AForkedChildLeavesTheDeviceAlone) {
  const auto plan = MakePlan({});
  CommOptions options;
  options.world_size = 1;
  auto comm = OpenCommunicator("local:", options);
  ASSERT_OK(comm);
  auto engine = MakeEngine(plan, *comm);
  ASSERT_OK(engine);
  ASSERT_OK(Fill(engine->get()));
  ASSERT_OK(TrainOneStep(engine->get(), 1));
  const Alive before = CountAlive();
  testing::InChild([&] {
    ExpectError(cuda::OpenDevice("0"), StatusCode::kFailedPrecondition,
                {"was forked from", "exec"});
    engine->reset();
  });
  EXPECT_EQ(CountAlive(), before);
  EXPECT_OK(TrainOneStep(engine->get(), 2));
}

}  // namespace
}  // namespace shard::cuda_engine_test
