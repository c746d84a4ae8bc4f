// SPDX-License-Identifier: Apache-2.0
//
// Engines whose ranks have a GPU each, over the fakes of the driver and of
// NCCL: which calls of NCCL a step makes, and what a collective that is stuck
// does to it. That all of an engine works on them is shown by the suites that
// run again on fake_nccl (other_devices.bzl).

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/device/cuda/cuda_device.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_engine_test {
namespace {

using cuda_training::Fill;
using cuda_training::Form;
using cuda_training::MakePlan;
using cuda_training::ReadParam;
using cuda_training::TrainOneStep;
using testing::FakeNccl;
using testing::fake_nccl::Counts;

constexpr int kUnits = 3;

Form FormOf(int stage) {
  return {.units = kUnits, .world_size = 2, .stage = stage};
}

StatusOr<std::unique_ptr<Engine>> MakeEngineOn(
    const std::string& device, const std::shared_ptr<const Plan>& plan,
    const std::shared_ptr<Communicator>& comm, double timeout = 0) {
  EngineOptions options;
  options.timeout = timeout;
  if (device == "cpu") return Engine::Create(plan, comm, options);
  SHARD_ASSIGN_OR_RETURN(options.opened_device,
                         cuda::OpenDevice(StrCat(comm->rank())));
  options.transport = Transport::kNccl;
  return Engine::Create(plan, comm, options);
}

testing::fake_cuda::Options TwoGpus() {
  testing::fake_cuda::Options options;
  options.devices = 2;
  return options;
}

// Trains two ranks. Returns parameter 0 of rank 0; `counts` receives what NCCL
// did in the last step on rank 0.
std::vector<float> Train(const std::string& device, int stage, Counts* counts) {
  const FakeNccl fake(TwoGpus());
  const auto plan = MakePlan(FormOf(stage));
  EXPECT_TRUE(stage == 0 || ShardsAsItsStage(*plan));
  std::vector<float> result;
  RunThreadRanks(
      2,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = MakeEngineOn(device, plan, comm);
        ASSERT_OK(engine);
        ASSERT_OK(Fill(engine->get()));
        const testing::fake_nccl::Target me = {.rank = comm->rank()};
        Counts before;
        for (int step = 1; step <= 4; ++step) {
          ASSERT_OK((*engine)->Synchronize(0));
          if (step == 4) before = testing::fake_nccl::Count(me);
          ASSERT_OK(TrainOneStep(engine->get(), step));
        }
        ASSERT_OK((*engine)->Synchronize(0));
        Counts after = testing::fake_nccl::Count(me);
        if (comm->rank() == 0) {
          counts->launches = after.launches - before.launches;
          for (const auto& [symbol, count] : after.calls) {
            counts->calls[symbol] = count - before.Calls(symbol);
          }
        }
        const auto values = ReadParam(engine->get());
        ASSERT_OK(values);
        if (comm->rank() == 0) result = *values;
      },
      30, "direct=0");
  return result;
}

TEST(NcclEngineTest, AStepMakesOneExchangeAndOneGatherForEachBuffer) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    Counts counts;
    const std::vector<float> on_gpus = Train("cuda", stage, &counts);
    ASSERT_FALSE(on_gpus.empty());
    Counts none;
    const std::vector<float> on_cpus = Train("cpu", stage, &none);
    ASSERT_EQ(on_gpus.size(), on_cpus.size());
    // The thread sanitizer's configuration has no fused multiply-add on the
    // CPU.
    if (SHARD_TESTS_THREAD_SANITIZER == 0) {
      EXPECT_TRUE(on_gpus == on_cpus);
    }
    // A unit has one buffer. One gather more is that of the norms.
    EXPECT_EQ(counts.launches, 2u * kUnits + 1);
    EXPECT_EQ(counts.Calls("ncclSend"), kUnits);
    EXPECT_EQ(counts.Calls("ncclRecv"), kUnits);
    EXPECT_EQ(counts.Calls("ncclAllGather"), kUnits + 1);
  }
}

// A host asks for NCCL where all ranks can use it, and is told whether they do.
TEST(NcclEngineTest, AnEngineSaysHowTensorsMove) {
  const auto plan = MakePlan(FormOf(1));
  for (const bool have_gpus_of_their_own : {true, false}) {
    const FakeNccl fake(TwoGpus());
    RunThreadRanks(
        2,
        [&](const std::shared_ptr<Communicator>& comm) {
          EngineOptions options;
          options.opened_device = *cuda::OpenDevice(
              have_gpus_of_their_own ? StrCat(comm->rank()) : "1");
          options.transport = Transport::kAuto;
          const auto engine = Engine::Create(plan, comm, options);
          ASSERT_OK(engine);
          EXPECT_EQ((*engine)->ToJson(),
                    have_gpus_of_their_own
                        ? StrCat(R"({"device":"cuda:)", comm->rank(),
                                 R"(","transport":"nccl 2.28.9",)"
                                 R"("sum_order":"ranks"})")
                        : R"({"device":"cuda:1","transport":"staged",)"
                          R"("sum_order":"ranks"})");
        },
        30, "direct=0");
  }
}

// What one rank made is ended, and the others do not wait for more.
TEST(NcclEngineTest, AnEngineIsMadeAfterOneThatFailed) {
  const FakeNccl fake(TwoGpus());
  const auto plan = MakePlan(FormOf(1));
  testing::fake_nccl::FailCall("ncclCommInitRankConfig", 2,
                               testing::fake_nccl::Result::kSystemError);
  RunThreadRanks(
      2,
      [&](const std::shared_ptr<Communicator>& comm) {
        EXPECT_FALSE(MakeEngineOn("cuda", plan, comm).ok());
      },
      30, "direct=0");
  RunThreadRanks(
      2,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = MakeEngineOn("cuda", plan, comm);
        ASSERT_OK(engine);
        ASSERT_OK(Fill(engine->get()));
        ASSERT_OK(TrainOneStep(engine->get(), 1));
        ASSERT_OK((*engine)->Synchronize(0));
      },
      30, "direct=0");
}

// Trains two ranks, and from step 3 on a parameter that was frozen and is
// larger than all others. Returns the parameters of rank 0.
std::vector<std::vector<float>> TrainMore(const std::string& device) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  ParamId frozen = 0;
  for (const int64_t rows : {20, 200}) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("block", rows), "Block");
    frozen =
        *training.model->AddParam(block, "weight", DType::kF32, {rows, 60});
  }
  EXPECT_OK(training.model->SetTrainable(frozen, false));
  training.wrap = "class?names=Block";
  training.plan.world_size = 2;
  training.plan.stage = 1;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  std::vector<std::vector<float>> result;
  RunThreadRanks(
      2,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = MakeEngineOn(device, *plan, comm);
        ASSERT_OK(engine);
        UnitTrainer trainer(training, engine->get());
        trainer.Fill();
        for (int step = 1; step <= 4; ++step) {
          if (step == 3) {
            ASSERT_OK((*engine)->SetTrainable(std::vector{frozen}, true, 0));
          }
          trainer.Forward();
          trainer.Backward(step, true);
          StepReport report;
          ASSERT_OK(trainer.Step(&report));
          ASSERT_OK((*engine)->ZeroGrad());
        }
        auto read = trainer.Read();
        if (comm->rank() == 0) result = std::move(read);
      },
      30, "direct=0");
  return result;
}

// Communicators are made anew, with memory for larger blocks.
TEST(NcclEngineTest, ReductionsGrowWithThePlan) {
  const FakeNccl fake(TwoGpus());
  const auto on_gpus = TrainMore("cuda");
  EXPECT_EQ(testing::fake_nccl::Count().Calls("ncclCommInitRankConfig"), 4u);
  const auto on_cpus = TrainMore("cpu");
  ASSERT_EQ(on_gpus.size(), 2u);
  ASSERT_EQ(on_cpus.size(), 2u);
  // As above.
  if (SHARD_TESTS_THREAD_SANITIZER == 0) {
    EXPECT_TRUE(on_gpus == on_cpus);
  }
}

// The rank whose collective is stuck is not known: its GPU is.
TEST(NcclEngineTest, AStepWhoseCollectiveIsStuckEndsInTime) {
  constexpr double kTimeout = 1;
  for (const int stage : {1, 3}) {
    for (const uint64_t collective : {1, 3, 5}) {
      SCOPED_TRACE(StrCat("stage ", stage, ", collective ", collective));
      const FakeNccl fake(TwoGpus());
      const auto plan = MakePlan(FormOf(stage));
      RunThreadRanks(
          2,
          [&](const std::shared_ptr<Communicator>& comm) {
            auto engine = MakeEngineOn("cuda", plan, comm, kTimeout);
            ASSERT_OK(engine);
            ASSERT_OK(Fill(engine->get()));
            ASSERT_OK(TrainOneStep(engine->get(), 1));
            ASSERT_OK((*engine)->Synchronize(0));
            ASSERT_OK(comm->Barrier("trained", Deadline::After(30)));
            if (comm->rank() == 1) {
              testing::fake_nccl::StickAt(collective, {.rank = 1});
            }
            ASSERT_OK(comm->Barrier("stuck", Deadline::After(30)));
            const auto begin = std::chrono::steady_clock::now();
            Status status = TrainOneStep(engine->get(), 2);
            if (status.ok()) status = (*engine)->Synchronize(0);
            const std::chrono::duration<double> took =
                std::chrono::steady_clock::now() - begin;
            EXPECT_TRUE(status.code() == StatusCode::kDeadlineExceeded ||
                        status.code() == StatusCode::kPoisoned)
                << status.ToString();
            // A step waits several times, each with a time of its own.
            EXPECT_LT(took.count(), 5 * kTimeout);
            EXPECT_FALSE((*engine)->Step(StepOptions(), nullptr).ok());
          },
          30, "direct=0");
    }
  }
}

}  // namespace
}  // namespace shard::nccl_engine_test
