// SPDX-License-Identifier: Apache-2.0
//
// Engines with Muon on the device cuda, over the fakes of the driver and of
// cuBLASLt: what a step launches and calls, what ranks share, a cuBLAS that
// does not start or has no algorithm, and a plan that cannot change for want of
// one. cuda_muon_precision_test compares what
// steps compute, and cuda_faults_test makes each of their calls fail.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/rounding.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/driver_api.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/flat/sharding.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_muon_test {
namespace {

using cuda_training::Form;
using cuda_training::HostsStream;
using cuda_training::MakeEngine;
using cuda_training::MakePlan;
using cuda_training::OpenLocal;
using cuda_training::TrainOneStep;
using testing::FakeCuda;
using testing::FakeCudaTest;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::FailCall;
using testing::fake_cuda::RunAll;
using testing::fake_cuda::SetProductWorkspaces;
using FakeCounters = testing::fake_cuda::Counters;
using Shapes = std::vector<std::vector<int64_t>>;
using Launches = std::map<std::string, uint64_t>;

// Returns `count` equal matrices, which are larger than a CPU steps several of.
Shapes Equal(size_t count) {
  return Shapes(count, std::vector<int64_t>{36, 60});
}

// Returns `count` matrices of 8 x 8.
Shapes Small(size_t count) { return Shapes(count, std::vector<int64_t>{8, 8}); }

// Ranks have so many units that sharding gradients and parameters saves memory:
// else stages 2 and 3 are stage 1.
constexpr int kUnits = 6;

// The launches of a step's update.
Launches UpdateOf(const FakeCounters& counters) {
  Launches launches = counters.launches;
  launches.erase("shard_add_to_norm");
  launches.erase("shard_finish_norm");
  return launches;
}

Launches LaunchesOf(uint64_t batches, uint64_t ns_steps) {
  return {{"shard_muon_momentum", batches},
          {"shard_sum_squares", batches},
          {"shard_muon_normalize", batches},
          {"shard_muon_apply", batches},
          {"cublasLtMatmul", 3 * ns_steps * batches}};
}

// ---- What a step costs ------------------------------------------------------

// An engine that trains.
struct Training {
  Training(const Shapes& shapes, const std::string& optimizer, int units = 1,
           int stage = 1) {
    const Form form = {.units = units,
                       .stage = stage,
                       .optimizer = optimizer,
                       .shapes = shapes};
    auto made = MakeEngine(MakePlan(form), OpenLocal());
    EXPECT_OK(made);
    engine = *std::move(made);
    EXPECT_OK(engine->SetStream(stream.get()));
    EXPECT_OK(cuda_training::Fill(engine.get()));
  }

  // Makes a step as a host that does not wait, and returns what it did.
  FakeCounters Step() {
    // Then each wait of the host is one query.
    RunAll();
    const FakeCounters before = Count();
    for (auto unit = static_cast<int32_t>(engine->plan().units().size());
         unit-- > 0;) {
      EXPECT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
      EXPECT_OK(engine->MarkUnitGradsReady(unit));
      EXPECT_OK(engine->UnitRelease(unit));
    }
    EXPECT_OK(engine->Step(cuda_training::Clipped(), nullptr));
    return CountSince(before);
  }
  ~Training() { EXPECT_OK(engine->Synchronize(0)); }

  HostsStream stream;
  std::unique_ptr<Engine> engine;
};

TEST(MuonStepTest, ABatchIsFourKernelsAndThreeProductsForEachNsStep) {
  for (const size_t count : {1, 2, 20}) {
    for (const int ns_steps : {1, 5}) {
      SCOPED_TRACE(StrCat(count, " matrices, ", ns_steps, " steps"));
      const FakeCuda fake;
      Training training(Small(count), StrCat("muon?ns_steps=", ns_steps));
      EXPECT_EQ(UpdateOf(training.Step()),
                LaunchesOf(1, static_cast<uint64_t>(ns_steps)));
    }
  }
}

// Twelve matrices of 768 x 2304, say, are 36 tiles each of a GPU with 132
// multiprocessors.
TEST(MuonStepTest, EqualMatricesAreOneBatch) {
  for (const auto& [shapes, batches] :
       {std::pair{Equal(12), 1}, std::pair{Small(41), 1},
        std::pair{Shapes{{70, 90}, {90, 70}, {70, 90}, {64, 64}, {90, 70}},
                  3}}) {
    SCOPED_TRACE(StrCat(shapes.size(), " matrices"));
    const FakeCuda fake;
    Training training(shapes, "muon");
    FakeCounters made = training.Step();
    EXPECT_EQ(UpdateOf(made), LaunchesOf(static_cast<uint64_t>(batches), 5));
    EXPECT_EQ(made.blocks["cublasLtMatmul"], shapes.size() * 15);
  }
}

TEST(MuonStepTest, TheWorkspaceIsWhatThePlanSays) {
  // Of a matrix: two of 8640 bytes and two squares of 5184.
  constexpr uint64_t kOne = 2 * (RoundUp(8640, 256) + RoundUp(5184, 256));
  for (const auto& [world_size, at_once] : {std::pair{1, 12}, {2, 6}, {5, 3}}) {
    SCOPED_TRACE(StrCat(world_size, " ranks"));
    const FakeCuda fake;
    for (const int stage : {0, 3}) {
      const auto plan = MakePlan({.units = kUnits,
                                  .world_size = world_size,
                                  .stage = stage,
                                  .optimizer = "muon",
                                  .shapes = Equal(12)});
      ASSERT_TRUE(ShardsAsItsStage(*plan));
      const uint64_t planned =
          plan->Memory(world_size == 1, nullptr, Processor::kGpu)
              .workspace_bytes;
      EXPECT_EQ(planned, RoundUpToPage(static_cast<uint64_t>(at_once) * kOne));
      RunThreadRanks(world_size, [&](const auto& comm) {
        const size_t before = testing::fake_cuda::CountAlive().device_bytes;
        const auto engine = MakeEngine(plan, comm);
        ASSERT_OK(engine);
        EXPECT_EQ((*engine)->Memory().workspace_bytes, planned);
        if (comm->world_size() > 1) return;
        const MemoryReport all = plan->Memory(true, nullptr, Processor::kGpu);
        EXPECT_EQ((*engine)->Memory().DeviceTotal(), all.DeviceTotal());
        // Tables and scratch memory of kernels are beside the plan.
        const size_t taken =
            testing::fake_cuda::CountAlive().device_bytes - before;
        EXPECT_GE(taken, all.DeviceTotal());
        EXPECT_LE(taken, all.DeviceTotal() + (size_t{32} << 20));
      });
    }
  }
}

// Nothing is allocated for a part of the batch.
TEST(MuonStepTest, AnEngineWithoutRoomForABatchSaysWhatItNeeds) {
  size_t planned = 0;
  {
    const FakeCuda fake;
    planned = MakePlan({.optimizer = "muon", .shapes = Equal(12)})
                  ->Memory(true, nullptr, Processor::kGpu)
                  .DeviceTotal();
  }
  const FakeCuda fake({.memory_bytes = planned - 1});
  ExpectError(
      MakeEngine(MakePlan({.optimizer = "muon", .shapes = Equal(12)}),
                 OpenLocal()),
      StatusCode::kResourceExhausted,
      {StrCat("the plan needs ", FormatBytes(planned), " (", planned,
              " bytes) ", "on cuda:0, which has ", FormatBytes(planned - 1)),
       "it fits with", "offload=states",
       "which multiplies muon's matrices on the host"});
  EXPECT_EQ(testing::fake_cuda::CountAlive().device_bytes, 0u);
}

// Returns the bits of all parameters after two steps.
std::vector<float> TrainedIn(const Form& form) {
  const auto engine = MakeEngine(MakePlan(form), OpenLocal());
  EXPECT_OK(engine);
  EXPECT_OK(cuda_training::Fill(engine->get()));
  for (const int step : {1, 2}) {
    EXPECT_OK(TrainOneStep(engine->get(), step, StepOptions()));
  }
  EXPECT_OK((*engine)->Synchronize(0));
  std::vector<float> values;
  const Plan& plan = (*engine)->plan();
  for (const ParamPlace& place : plan.places()) {
    const EngineBuffer& buffer = (*engine)->memory().buffer(place.buffer);
    const auto* const first =
        static_cast<const float*>(buffer.ParamAt(place.offset));
    values.insert(values.end(), first, first + 36 * 60);
  }
  return values;
}

// Matrices of units of their own are stepped one by one.
TEST(MuonStepTest, ABatchHasTheBitsOfItsMatrices) {
  for (const char* precision : {"highest", "high", "medium"}) {
    SCOPED_TRACE(precision);
    const FakeCuda fake;
    const std::string optimizer = StrCat("muon?matmul_precision=", precision);
    FakeCounters before = Count();
    const auto together =
        TrainedIn({.optimizer = optimizer, .shapes = Equal(12)});
    EXPECT_EQ(CountSince(before).Launches("cublasLtMatmul"), 2 * 15u);
    before = Count();
    const auto alone =
        TrainedIn({.units = 12, .optimizer = optimizer, .shapes = Equal(1)});
    EXPECT_EQ(CountSince(before).Launches("cublasLtMatmul"), 2 * 12 * 15u);
    EXPECT_EQ(together.size(), 12u * 36 * 60);
    EXPECT_TRUE(together == alone);
  }
}

// Nothing is made, chosen, allocated or freed, and nothing drains the device.
TEST(MuonStepTest, ASteadyStepOnlyLaunches) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int units : {1, 3}) {
      SCOPED_TRACE(StrCat("stage ", stage, ", ", units, " units"));
      const FakeCuda fake;
      Training training({{8, 16}, {40, 30}, {8, 16}}, "muon", units, stage);
      for (int step = 0; step < 4; ++step) training.Step();
      for (int step = 0; step < 3; ++step) {
        const auto alive = testing::fake_cuda::CountAlive();
        const FakeCounters made = training.Step();
        EXPECT_EQ(UpdateOf(made), LaunchesOf(2 * uint64_t(units), 5));
        for (const auto& [symbol, count] : made.calls) {
          EXPECT_TRUE(!symbol.starts_with("cublas") ||
                      symbol == "cublasLtMatmul")
              << symbol;
          for (const char* word : {"Alloc", "Create", "Load", "Free", "Destroy",
                                   "Unload", "Trim", "Retain", "Release"}) {
            EXPECT_EQ(symbol.find(word), std::string::npos) << symbol;
          }
        }
        EXPECT_EQ(testing::fake_cuda::CountAlive(), alive);
        EXPECT_EQ(made.waits_of_host, 0u);
        EXPECT_EQ(made.pageable_copies, 0u);
      }
    }
  }
}

TEST(MuonStepTest, HyperparametersHoldFromTheNextStepOn) {
  const FakeCuda fake;
  Training training({{12, 20}}, "muon");
  EXPECT_EQ(UpdateOf(training.Step()), LaunchesOf(1, 5));
  for (const int ns_steps : {2, 7}) {
    ASSERT_OK(training.engine->SetHyper(0, "ns_steps", ns_steps));
    EXPECT_EQ(UpdateOf(training.Step()),
              LaunchesOf(1, static_cast<uint64_t>(ns_steps)));
  }
}

// ---- Ranks ------------------------------------------------------------------

using MuonRanksTest = FakeCudaTest;

// Returns what a step of all ranks does.
FakeCounters StepOfRanks(Form form, int world_size) {
  form.world_size = world_size;
  const auto plan = MakePlan(form);
  EXPECT_TRUE(ShardsAsItsStage(*plan));
  const FakeCounters before = Count();
  RunThreadRanks(world_size, [&](const auto& comm) {
    const auto engine = MakeEngine(plan, comm);
    EXPECT_OK(engine);
    EXPECT_OK(cuda_training::Fill(engine->get()));
    EXPECT_OK(TrainOneStep(engine->get(), 1));
    EXPECT_OK((*engine)->Synchronize(0));
  });
  return CountSince(before);
}

// Each is a batch of its own.
const Shapes kSixShapes = {{8, 9},   {9, 8},   {40, 33},
                           {12, 12}, {33, 40}, {5, 60}};

TEST_F(MuonRanksTest, EachMatrixIsMadeOrthogonalOnce) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(StrCat("stage ", stage));
    const Form form = {.units = kUnits,
                       .stage = stage,
                       .optimizer = "muon",
                       .shapes = kSixShapes};
    for (const int ranks : {1, 2}) {
      EXPECT_EQ(StepOfRanks(form, ranks).Launches("cublasLtMatmul"),
                kUnits * 6 * 15u);
    }
  }
}

// Other owners of matrices: with shard groups, whose ranks hold as much as all
// ranks otherwise do, and with another partition.
TEST_F(MuonRanksTest, EachMatrixIsMadeOrthogonalOnceWhoeverOwnsIt) {
  for (const Partition partition : {Partition::kEven, Partition::kGreedy}) {
    for (const int group_size : {0, 2}) {
      for (const int stage : {1, 3}) {
        SCOPED_TRACE(StrCat("partition ", static_cast<int>(partition),
                            ", groups of ", group_size, ", stage ", stage));
        const Form form = {.units = kUnits,
                           .stage = stage,
                           .optimizer = "muon?ns_steps=1",
                           .shapes = kSixShapes,
                           .shard_group_size = group_size,
                           .partition = partition};
        EXPECT_EQ(StepOfRanks(form, 4).Launches("cublasLtMatmul"),
                  kUnits * 6 * 3u);
      }
    }
  }
}

TEST_F(MuonRanksTest, ABatchOfManyRanksIsOneOfEach) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(StrCat("stage ", stage));
    const Form form = {.units = kUnits,
                       .stage = stage,
                       .optimizer = "muon?ns_steps=1",
                       .shapes = Shapes(16, {16, 16})};
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(StrCat(ranks, " ranks"));
      FakeCounters made = StepOfRanks(form, ranks);
      EXPECT_EQ(made.Launches("cublasLtMatmul"),
                static_cast<uint64_t>(ranks) * kUnits * 3);
      // Each matrix is one rank's alone.
      EXPECT_EQ(made.blocks["cublasLtMatmul"], kUnits * 16 * 3u);
    }
  }
}

// A cuBLAS that does not start is what one that is missing is: the test's
// loader finds no other.
TEST_F(MuonRanksTest, ACublasThatDoesNotStartIsTheErrorOfAllRanks) {
  const auto plan =
      MakePlan({.world_size = 2, .optimizer = "muon", .shapes = Small(4)});
  for (const int failures : {1, 2}) {
    SCOPED_TRACE(StrCat(failures, " failures"));
    for (int call = 1; call <= failures; ++call) {
      FailCall("cublasLtCreate", static_cast<uint64_t>(call),
               cuda::CuResult::kNotSupported);
    }
    RunThreadRanks(2, [&](const auto& comm) {
      ExpectError(MakeEngine(plan, comm), StatusCode::kBackendUnavailable,
                  {"no usable cuBLAS: libcublasLt.so.13 13.8: cublasLtCreate: "
                   "CUBLAS_STATUS_NOT_SUPPORTED (15); ",
                   "libcublasLt.so.12: ", "; install cuBLAS of CUDA 12 or 13"});
    });
  }
  RunThreadRanks(2,
                 [&](const auto& comm) { EXPECT_OK(MakeEngine(plan, comm)); });
}

// An engine has no more room for cuBLAS's algorithms than is promised.
TEST_F(MuonRanksTest, ProductsThatNeedALargerWorkspaceAreTheErrorOfAllRanks) {
  const auto plan =
      MakePlan({.world_size = 2, .optimizer = "muon", .shapes = Small(4)});
  constexpr size_t kTooMuch = (size_t{32} << 20) + 1;
  SetProductWorkspaces({kTooMuch});
  RunThreadRanks(2, [&](const auto& comm) {
    ExpectError(MakeEngine(plan, comm), StatusCode::kBackendUnavailable,
                {"muon's products of 2 matrices of 8 x 8, "
                 "matmul_precision=highest: libcublasLt.so.13 13.8 has no "
                 "algorithm for a product that needs at most 32.0 MiB"});
  });
  // Slower ones will do.
  for (const size_t less : {2048, 0}) {
    SetProductWorkspaces({kTooMuch, less});
    RunThreadRanks(2, [&](const auto& comm) {
      const auto engine = MakeEngine(plan, comm);
      ASSERT_OK(engine);
      ASSERT_OK(cuda_training::Fill(engine->get()));
      EXPECT_OK(TrainOneStep(engine->get(), 1));
      EXPECT_OK((*engine)->Synchronize(0));
    });
  }
}

// ---- Changes of the plan ----------------------------------------------------

// An engine of four matrices that has made one step.
std::unique_ptr<Engine> SteppedOnce(const std::shared_ptr<Communicator>& comm) {
  auto engine = MakeEngine(MakePlan({.world_size = comm->world_size(),
                                     .optimizer = "muon",
                                     .shapes = Small(4)}),
                           comm);
  EXPECT_OK(engine);
  EXPECT_OK(cuda_training::Fill(engine->get()));
  EXPECT_OK(TrainOneStep(engine->get(), 1));
  return *std::move(engine);
}

// Makes the second step, and returns a parameter.
std::vector<float> SecondStep(Engine* engine) {
  EXPECT_OK(TrainOneStep(engine, 2));
  const auto param = cuda_training::ReadParam(engine);
  EXPECT_OK(param);
  return *param;
}

Status Freeze(Engine* engine, bool thaw = false) {
  const ParamId params[] = {3};
  return engine->SetTrainable(params, thaw, 0);
}

// The products of a new plan are looked for before it replaces the old one.
TEST_F(MuonRanksTest, APlanWithoutProductsDoesNotReplaceTheOldOne) {
  RunThreadRanks(2, [&](const auto& comm) {
    const auto expected = SecondStep(SteppedOnce(comm).get());
    const auto engine = SteppedOnce(comm);
    const auto alive = testing::fake_cuda::CountAlive();
    ASSERT_OK(comm->Barrier("stepped", Deadline::After(30)));
    SetProductWorkspaces({(size_t{32} << 20) + 1});
    ASSERT_OK(comm->Barrier("none", Deadline::After(30)));
    ExpectError(Freeze(engine.get()), StatusCode::kBackendUnavailable,
                {"rank 0: muon's products of 2 matrices of 8 x 8, "
                 "matmul_precision=highest: libcublasLt.so.13 13.8 has no "
                 "algorithm for a product that needs at most 32.0 MiB"});
    ASSERT_OK(comm->Barrier("refused", Deadline::After(30)));
    EXPECT_EQ(testing::fake_cuda::CountAlive().device_bytes,
              alive.device_bytes);
    EXPECT_TRUE(SecondStep(engine.get()) == expected);
    SetProductWorkspaces({1024});
    ASSERT_OK(comm->Barrier("there", Deadline::After(30)));
    EXPECT_OK(Freeze(engine.get()));
    EXPECT_OK(Freeze(engine.get(), /*thaw=*/true));
    EXPECT_OK(TrainOneStep(engine.get(), 3));
  });
}

// Each allocation of the change fails once, that of cuBLAS's workspace too.
TEST_F(MuonRanksTest, APlanWithoutAWorkspaceDoesNotReplaceTheOldOne) {
  const auto comm = OpenLocal();
  const auto expected = SecondStep(SteppedOnce(comm).get());
  int workspaces = 0;
  bool changed = false;
  for (uint64_t call = 1; !changed; ++call) {
    SCOPED_TRACE(call);
    const auto engine = SteppedOnce(comm);
    const size_t before = testing::fake_cuda::CountAlive().device_bytes;
    // Memory is looked for a second time, when the pool has given some back.
    FailCall("cuMemAllocFromPoolAsync", call, cuda::CuResult::kOutOfMemory);
    FailCall("cuMemAllocFromPoolAsync", call + 1, cuda::CuResult::kOutOfMemory);
    const Status status = Freeze(engine.get());
    testing::fake_cuda::ClearFailures();
    changed = status.ok();
    if (changed) break;
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted)
        << status.ToString();
    const std::string text(status.message());
    EXPECT_NE(text.find("of memory of cuda:0"), std::string::npos) << text;
    workspaces += text.find("the workspace of cuBLAS: ") != std::string::npos;
    EXPECT_EQ(testing::fake_cuda::CountAlive().device_bytes, before);
    EXPECT_TRUE(SecondStep(engine.get()) == expected);
  }
  EXPECT_GE(workspaces, 1);
}

TEST_F(MuonRanksTest, OtherOptimizersNeedNoCublas) {
  FailCall("cublasLtCreate", 1, cuda::CuResult::kUnknown);
  EXPECT_OK(MakeEngine(MakePlan({}), OpenLocal()));
  testing::fake_cuda::ClearFailures();
}

}  // namespace
}  // namespace shard::cuda_muon_test
