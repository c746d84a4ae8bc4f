// SPDX-License-Identifier: Apache-2.0
//
// Engines whose ranks have a GPU each, over the fakes of the driver and of
// NCCL: what they tell, how they are made anew, and what a collective that is
// stuck does to a step. nccl_sums_test has the sums and the calls. That all of
// an engine works on NCCL is shown by the suites that run again on fake_nccl
// (other_devices.bzl).

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/cuda_device.h"
#include "core/engine/engine.h"
#include "core/engine/transfer/collectives_memory.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_engine_test {
namespace {

using cuda_training::Fill;
using cuda_training::Form;
using cuda_training::MakePlan;
using cuda_training::TrainOneStep;
using nccl_training::MakeEngineOn;
using testing::FakeNccl;

constexpr int kUnits = 3;
constexpr int kRanks = 4;

Form FormOf(int stage) {
  return {.units = kUnits, .world_size = 2, .stage = stage};
}

// The plan of a stage, which shards what the stage does.
std::shared_ptr<const Plan> PlanFor(int stage) {
  auto plan = MakePlan(FormOf(stage));
  EXPECT_TRUE(ShardsAsItsStage(*plan));
  return plan;
}

testing::fake_cuda::Options Gpus(int count) {
  testing::fake_cuda::Options options;
  options.devices = count;
  return options;
}

// A plan of one unit with a buffer, or several, of f32 gradients.
std::shared_ptr<const Plan> PlanWith(int64_t numel, bool deterministic,
                                     DType dtype = DType::kF32) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  for (const char* const name : {"a", "b"}) {
    EXPECT_OK(training.model->AddParam(kRootModule, name, dtype, {numel}));
  }
  training.wrap = "";
  training.plan.world_size = kRanks;
  training.plan.deterministic = deterministic;
  training.plan.alignment_bytes = 1;
  const auto plan = ::shard::PlanOf(training);
  EXPECT_OK(plan);
  EXPECT_TRUE(ShardsAsItsStage(**plan));
  return *plan;
}

TEST(CollectivesMemoryTest, IsThatOfTheBlocks) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const auto device_bytes = [](const std::shared_ptr<const Plan>& plan) {
    const CollectivesMemory memory =
        CollectivesMemoryOf(*plan, Transport::kNccl);
    EXPECT_EQ(memory.host_bytes, 0u);
    return memory.device_bytes;
  };
  // Two parameters of 2 MiB in one buffer: blocks of 1 MiB.
  constexpr int64_t kSmall = int64_t{1} << 19;
  EXPECT_EQ(device_bytes(PlanWith(kSmall, true)), 4 * kMiB);
  EXPECT_EQ(device_bytes(PlanWith(kSmall, false)), 4 * kMiB);
  EXPECT_EQ(device_bytes(PlanWith(kSmall, false, DType::kBF16)), 2 * kMiB);
  // In two buffers of 16 MiB: blocks of 4 MiB, 12 MiB from the others. Those of
  // both are 24 MiB, less than buffer_bytes.
  constexpr int64_t kLarge = int64_t{1} << 22;
  EXPECT_EQ(device_bytes(PlanWith(kLarge, true)), (24 + 4) * kMiB);
  EXPECT_EQ(device_bytes(PlanWith(kLarge, false)), (4 + 4) * kMiB);
  // Blocks of 16 MiB.
  EXPECT_EQ(device_bytes(PlanWith(4 * kLarge, true)), (48 + 4) * kMiB);
  EXPECT_EQ(device_bytes(PlanWith(4 * kLarge, false)), (4 + 4) * kMiB);

  const auto plan = PlanWith(kSmall, true);
  const CollectivesMemory staged =
      CollectivesMemoryOf(*plan, Transport::kStaged);
  EXPECT_EQ(staged.device_bytes, 0u);
  EXPECT_EQ(staged.host_bytes, 4 * kMiB);
  const CollectivesMemory either = CollectivesMemoryOf(*plan, Transport::kAuto);
  EXPECT_EQ(either.device_bytes, 4 * kMiB);
  EXPECT_EQ(either.host_bytes, 4 * kMiB);
}

// A host asks for NCCL where all ranks can use it, and is told whether they do.
TEST(NcclEngineTest, AnEngineSaysHowTensorsMove) {
  const auto plan = PlanFor(1);
  for (const bool have_gpus_of_their_own : {true, false}) {
    const FakeNccl fake(Gpus(2));
    RunThreadRanks(
        2,
        [&](const std::shared_ptr<Communicator>& comm) {
          EngineOptions options;
          options.opened_device = *cuda::OpenDevice(
              have_gpus_of_their_own ? StrCat(comm->rank()) : "1");
          options.transport = Transport::kAuto;
          const auto engine = Engine::Create(plan, comm, options);
          ASSERT_OK(engine);
          const MemoryReport memory = (*engine)->Memory();
          EXPECT_EQ(
              (*engine)->ToJson(),
              have_gpus_of_their_own
                  ? StrCat(R"({"device":"cuda:)", comm->rank(),
                           R"(","transport":"nccl 2.28.9",)"
                           R"("sum_order":"library",)"
                           R"("sums":[{"ranks":2,"f32":"library"}],)"
                           R"("registered_bytes":)",
                           memory.param_bytes + memory.grad_bytes +
                               memory.transient_bytes +
                               (*engine)->collectives_memory().device_bytes,
                           R"(,"no_windows":"rank 0: NCCL 2.28.9 makes no )"
                           R"(windows that collectives can use; )"
                           R"(use 2.31.2 or later"})")
                  : R"({"device":"cuda:1","transport":"staged",)"
                    R"("sum_order":"ranks"})");
        },
        30, "direct=0");
  }
}

TEST(NcclEngineTest, AWaitThatIsTooShortNamesTheRanksThatAreLate) {
  const FakeNccl fake(Gpus(2));
  const auto plan = PlanFor(1);
  std::promise<void> late;
  RunThreadRanks(
      2,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = MakeEngineOn("cuda", plan, comm);
        ASSERT_OK(engine);
        ASSERT_OK(Fill(engine->get()));
        ASSERT_OK((*engine)->Synchronize(0));
        if (comm->rank() == 1) late.get_future().wait();
        const auto last = static_cast<int32_t>(plan->units().size()) - 1;
        ASSERT_OK((*engine)->MarkUnitGradsReady(last));
        if (comm->rank() == 0) {
          const Status status = (*engine)->Synchronize(0.3);
          ExpectError(
              status, StatusCode::kDeadlineExceeded,
              {StrCat("'reduce gradients of unit ", last,
                      "': 1 of 2 ranks did not enter it within 0.3 s")});
          EXPECT_EQ(status.rank(), 1);
          late.set_value();
        }
        EXPECT_OK((*engine)->Synchronize(0));
      },
      30, "direct=0");
}

// The GPUs do not come to anything while the hosts go through the units: a host
// gives them a whole pass, and then waits.
TEST(NcclEngineTest, NoCallOfAUnitWaitsForItsTransfers) {
  const FakeNccl fake(Gpus(2));
  const auto plan = PlanFor(3);
  const auto units = static_cast<int32_t>(plan->units().size());
  ASSERT_GT(units, 2);
  RunThreadRanks(
      2,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = MakeEngineOn("cuda", plan, comm);
        ASSERT_OK(engine);
        ASSERT_OK(Fill(engine->get()));
        // What a first step allocates is there then.
        ASSERT_OK(TrainOneStep(engine->get(), 1));
        ASSERT_OK((*engine)->Synchronize(0));
        const auto count = [&](EventId event) {
          return comm->observer()->counters().Get(event).calls;
        };
        const uint64_t gathers = count(EventId::kGather);
        const uint64_t reduces = count(EventId::kReduce);
        ASSERT_OK(comm->Barrier("trained", Deadline::After(30)));
        if (comm->rank() == 0) testing::fake_cuda::Pause();
        ASSERT_OK(comm->Barrier("paused", Deadline::After(30)));
        for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
          const bool forward = pass == Pass::kForward;
          for (int32_t i = 0; i < units; ++i) {
            const int32_t unit = forward ? i : units - 1 - i;
            EXPECT_OK((*engine)->UnitAcquire(unit, pass, 0));
            if (!forward) EXPECT_OK((*engine)->MarkUnitGradsReady(unit));
            EXPECT_OK((*engine)->UnitRelease(unit));
          }
        }
        EXPECT_GT(testing::fake_cuda::NumPending(), 0u);
        EXPECT_EQ(count(EventId::kGather), gathers);
        EXPECT_EQ(count(EventId::kReduce), reduces);
        ASSERT_OK(comm->Barrier("given", Deadline::After(30)));
        if (comm->rank() == 0) testing::fake_cuda::Resume();
        StepReport report;
        ASSERT_OK((*engine)->Step(StepOptions(), &report));
        ASSERT_OK((*engine)->Synchronize(0));
        // The root unit has no parameters, and those of the last unit are there
        // when the backward pass begins.
        const auto moved = static_cast<uint64_t>(units) - 1;
        EXPECT_EQ(count(EventId::kGather), gathers + 2 * moved - 1);
        EXPECT_EQ(count(EventId::kReduce), reduces + moved);
      },
      30, "direct=0");
}

TEST(NcclEngineTest, AnEngineSaysWhyNoMemoryIsRegistered) {
  const FakeNccl fake(Gpus(2), {.registers = false});
  const auto plan = PlanFor(3);
  RunThreadRanks(
      2,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = MakeEngineOn("cuda", plan, comm);
        ASSERT_OK(engine);
        const std::string json = (*engine)->ToJson();
        EXPECT_NE(
            json.find(R"("registered_bytes":0,)"
                      R"("not_registered":"rank 0: NCCL 2.28.9 registers)"),
            std::string::npos)
            << json;
      },
      30, "direct=0");
}

// What one rank made is ended, and the others do not wait for more.
TEST(NcclEngineTest, AnEngineIsMadeAfterOneThatFailed) {
  const FakeNccl fake(Gpus(2));
  const auto plan = PlanFor(1);
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

// Wherever NCCL fails on one rank while an engine is made, both have one error,
// or both say why their memory is not registered.
TEST(NcclEngineTest, AnErrorOfAnyQueryIsThatOfAll) {
  const auto plan = PlanFor(1);
  bool was_made = false;
  const uint64_t step = std::getenv("SHARD_TEST_LONG") != nullptr ? 1 : 5;
  for (uint64_t query = 1; !was_made; query += step) {
    SCOPED_TRACE(query);
    const FakeNccl fake(Gpus(2));
    testing::fake_nccl::FailCall("ncclCommGetAsyncError", query,
                                 testing::fake_nccl::Result::kSystemError,
                                 {.rank = 1});
    std::array<std::string, 2> told;
    std::atomic<uint64_t> faults = 0;
    RunThreadRanks(
        2,
        [&](const std::shared_ptr<Communicator>& comm) {
          const auto engine = MakeEngineOn("cuda", plan, comm);
          std::string& mine = told[static_cast<size_t>(comm->rank())];
          if (engine.ok()) {
            const std::string json = (*engine)->ToJson();
            const size_t why = json.find(R"("not_registered")");
            if (why != std::string::npos) {
              mine = json.substr(why, json.find('}', why) - why);
            }
          } else {
            mine = engine.status().ToString();
          }
          if (comm->rank() == 1) faults = testing::fake_nccl::NumFaults();
          // The end of an engine queries, too.
          (void)comm->Barrier("made", Deadline::After(30)).ok();
        },
        30, "direct=0");
    EXPECT_EQ(told[0], told[1]);
    was_made = faults == 0;
    EXPECT_EQ(told[0].empty(), was_made) << told[0];
    ASSERT_LT(query, 1000u);
  }
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
  EXPECT_TRUE(ShardsAsItsStage(**plan));
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
  const FakeNccl fake(Gpus(2));
  const auto on_gpus = TrainMore("cuda");
  EXPECT_EQ(testing::fake_nccl::Count().Calls("ncclCommInitRankConfig"), 4u);
  const auto on_cpus = TrainMore("cpu");
  ASSERT_EQ(on_gpus.size(), 2u);
  ASSERT_EQ(on_cpus.size(), 2u);
  // The thread sanitizer's configuration has no fused multiply-add on the CPU.
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
      const FakeNccl fake(Gpus(2));
      const auto plan = PlanFor(stage);
      RunThreadRanks(
          2,
          [&](const std::shared_ptr<Communicator>& comm) {
            EngineOptions options;
            options.timeout = kTimeout;
            const auto engine = MakeEngineOn("cuda", plan, comm, options);
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
