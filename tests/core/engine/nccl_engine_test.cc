// SPDX-License-Identifier: Apache-2.0
//
// Engines whose ranks have a GPU each, over the fakes of the driver and of
// NCCL: which calls of NCCL a step makes, whose sums it has, and what a
// collective that is stuck does to it. That all of an engine works on them is
// shown by the suites that run again on fake_nccl (other_devices.bzl).

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/device/cuda/cuda_device.h"
#include "core/engine/engine.h"
#include "core/engine/transfer/collectives_memory.h"
#include "kernels/cpu/convert.h"
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
using cuda_training::TrainOneStep;
using testing::FakeNccl;
using testing::fake_nccl::Counts;

constexpr int kUnits = 3;
constexpr int kRanks = 4;

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

testing::fake_cuda::Options Gpus(int count) {
  testing::fake_cuda::Options options;
  options.devices = count;
  return options;
}

struct Sums {
  int stage;
  int group_size = 0;
  bool deterministic = false;
};

// A unit has a buffer of each dtype.
std::shared_ptr<const Plan> PlanOf(const Sums& sums) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  for (int u = 0; u < kUnits; ++u) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("block", u), "Block");
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      EXPECT_OK(
          training.model->AddParam(block, DTypeName(dtype), dtype, {3000}));
    }
  }
  training.optimizer = "sgd?lr=0.5";
  training.wrap = "class?names=Block";
  training.plan.world_size = kRanks;
  training.plan.stage = sums.stage;
  training.plan.shard_group_size = sums.group_size;
  training.plan.deterministic = sums.deterministic;
  training.plan.prefetch = 0;
  const auto plan = ::shard::PlanOf(training);
  EXPECT_OK(plan);
  EXPECT_TRUE(ShardsAsItsStage(**plan));
  return *plan;
}

// Values of many exponents, whose sum depends on the order of addition.
float GradientOf(int rank, ParamId param, int64_t i) {
  const auto x = static_cast<uint32_t>(i * 31 + param * 7 + rank * 1013 + 1);
  const uint32_t hash = (x * 2654435761u) >> 8;
  return (static_cast<float>(hash % 20011) / 10007 - 1) *
         static_cast<float>(1 << (hash % 7));
}

Status TrainOnce(Engine* engine, int rank) {
  SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
  const auto units = static_cast<int32_t>(engine->plan().units().size());
  for (int32_t unit = units; unit-- > 0;) {
    SHARD_RETURN_IF_ERROR(engine->UnitAcquire(unit, Pass::kBackward, 0));
    for (const ParamId param : cuda_training::ParamsOf(engine->plan(), unit)) {
      SHARD_ASSIGN_OR_RETURN(const Engine::Tensor grad, engine->Grad(param));
      SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
      std::vector<float> values(static_cast<size_t>(grad.numel));
      for (int64_t i = 0; i < grad.numel; ++i) {
        values[static_cast<size_t>(i)] = GradientOf(rank, param, i);
      }
      Store(
          engine->plan().buffer(engine->plan().place(param).buffer).grad_dtype,
          values, grad.data);
    }
    SHARD_RETURN_IF_ERROR(engine->MarkUnitGradsReady(unit));
    SHARD_RETURN_IF_ERROR(engine->UnitRelease(unit));
  }
  return engine->Step(StepOptions(), nullptr);
}

// All parameters of rank 0 after two steps, by dtype.
struct Result {
  std::vector<float> f32;
  std::vector<float> bf16;
};

StatusOr<Result> ReadParams(Engine* engine) {
  SHARD_RETURN_IF_ERROR(engine->Summon(0, -1, 0));
  SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
  Result result;
  const auto& params = engine->plan().model().params();
  for (size_t p = 0; p < params.size(); ++p) {
    SHARD_ASSIGN_OR_RETURN(const Engine::Tensor param,
                           engine->Param(static_cast<ParamId>(p)));
    std::vector<float> values(static_cast<size_t>(param.numel));
    Widen(params[p].dtype, param.data, values.data(), values.size());
    auto& all = params[p].dtype == DType::kF32 ? result.f32 : result.bf16;
    all.insert(all.end(), values.begin(), values.end());
  }
  SHARD_RETURN_IF_ERROR(engine->EndSummon(false, 0));
  return result;
}

// Trains two steps. `counts` receives what NCCL did in the second on rank 0.
Result Train(const std::string& device, const Sums& sums, Counts* counts,
             const testing::fake_nccl::Options& options = {}) {
  const FakeNccl fake(Gpus(kRanks), options);
  const auto plan = PlanOf(sums);
  Result result;
  RunThreadRanks(
      kRanks,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = MakeEngineOn(device, plan, comm);
        ASSERT_OK(engine);
        if (device != "cpu") {
          const CollectivesMemory used = (*engine)->collectives_memory();
          const CollectivesMemory planned =
              CollectivesMemoryOf(*plan, Transport::kNccl);
          EXPECT_EQ(used.device_bytes, planned.device_bytes);
          EXPECT_EQ(used.host_bytes, planned.host_bytes);
          EXPECT_EQ(used.host_bytes, 0u);
        }
        ASSERT_OK(Fill(engine->get()));
        ASSERT_OK(TrainOnce(engine->get(), comm->rank()));
        ASSERT_OK((*engine)->Synchronize(0));
        const testing::fake_nccl::Target me = {.rank = comm->rank()};
        const Counts before = testing::fake_nccl::Count(me);
        ASSERT_OK(TrainOnce(engine->get(), comm->rank()));
        ASSERT_OK((*engine)->Synchronize(0));
        Counts after = testing::fake_nccl::Count(me);
        if (comm->rank() == 0) {
          counts->launches = after.launches - before.launches;
          for (const auto& [symbol, count] : after.calls) {
            counts->calls[symbol] = count - before.Calls(symbol);
          }
        }
        const auto params = ReadParams(engine->get());
        ASSERT_OK(params);
        if (comm->rank() == 0) result = *params;
      },
      30, "direct=0");
  return result;
}

double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return most;
}

class NcclSumsTest : public ::testing::TestWithParam<Sums> {};

// The sums of f32 gradients are NCCL's, all others are those of ranks on
// processors.
TEST_P(NcclSumsTest, HaveTheBitsAndTheCallsOfTheirOrder) {
  const Sums& sums = GetParam();
  Counts counts;
  const Result gpus = Train("cuda", sums, &counts);
  ASSERT_EQ(gpus.f32.size(), 3000u * kUnits);
  Counts none;
  const Result cpus = Train("cpu", sums, &none);
  ASSERT_EQ(cpus.f32.size(), gpus.f32.size());
  // The thread sanitizer's configuration has no fused multiply-add on the CPU.
  if (SHARD_TESTS_THREAD_SANITIZER == 0) {
    EXPECT_TRUE(gpus.bf16 == cpus.bf16);
    // The sum of two ranks is the same in either order.
    const bool same = sums.deterministic || sums.group_size > 0;
    EXPECT_EQ(gpus.f32 == cpus.f32, same);
  }
  EXPECT_LT(Difference(gpus.f32, cpus.f32), 1e-4);

  const bool two_levels = sums.group_size > 0 && !sums.deterministic;
  const uint64_t levels = two_levels ? 2 : 1;
  // Those of one level.
  const uint64_t peers = two_levels ? 1 : kRanks - 1;
  const uint64_t by_nccl = sums.deterministic ? 0 : 1;
  EXPECT_EQ(counts.Calls("ncclReduceScatter"), by_nccl * kUnits * levels);
  EXPECT_EQ(counts.Calls("ncclSend"), (2 - by_nccl) * kUnits * levels * peers);
  EXPECT_EQ(counts.Calls("ncclRecv"), counts.Calls("ncclSend"));
  // The collectives of a unit are one launch for each level; those that publish
  // a buffer come with its update.
  const bool publishes = sums.stage < 3 || sums.group_size > 0;
  const bool gathers = sums.stage == 3;
  EXPECT_EQ(counts.Calls("ncclAllGather"),
            2u * kUnits * ((publishes ? 1 : 0) + (gathers ? 1 : 0)));
  EXPECT_EQ(counts.launches,
            kUnits * (levels + (publishes ? 2 : 0) + (gathers ? 1 : 0)));
}

INSTANTIATE_TEST_SUITE_P(
    Forms, NcclSumsTest,
    ::testing::Values(Sums{1}, Sums{2}, Sums{3}, Sums{3, 2}, Sums{1, 0, true},
                      Sums{2, 0, true}, Sums{3, 0, true}, Sums{3, 2, true}),
    [](const auto& info) {
      const Sums& sums = info.param;
      return StrCat("stage", sums.stage, sums.group_size > 0 ? "_groups" : "",
                    sums.deterministic ? "_deterministic" : "");
    });

// What an NCCL that registers nothing moves and adds is the same.
TEST(NcclEngineTest, RegisteredMemoryHasTheSameBits) {
  for (const Sums& sums : {Sums{1}, Sums{3, 2}}) {
    SCOPED_TRACE(StrCat("stage ", sums.stage));
    Counts counts;
    const Result registered = Train("cuda", sums, &counts);
    EXPECT_GT(testing::fake_nccl::Count().Calls("ncclCommRegister"), 0u);
    const Result plain = Train("cuda", sums, &counts, {.version = 21805});
    EXPECT_EQ(testing::fake_nccl::Count().Calls("ncclMemAlloc"), 0u);
    ASSERT_EQ(registered.f32.size(), 3000u * kUnits);
    EXPECT_TRUE(registered.f32 == plain.f32);
    EXPECT_TRUE(registered.bf16 == plain.bf16);
  }
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
  const auto plan = MakePlan(FormOf(1));
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
                           R"("sum_order":"library","registered_bytes":)",
                           memory.param_bytes + memory.grad_bytes +
                               memory.transient_bytes +
                               (*engine)->collectives_memory().device_bytes,
                           "}")
                  : R"({"device":"cuda:1","transport":"staged",)"
                    R"("sum_order":"ranks"})");
        },
        30, "direct=0");
  }
}

TEST(NcclEngineTest, AWaitThatIsTooShortNamesTheRanksThatAreLate) {
  const FakeNccl fake(Gpus(2));
  const auto plan = MakePlan(FormOf(1));
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
          ExpectError(status, StatusCode::kDeadlineExceeded,
                      {"'reduce gradients': 1 of 2 ranks did not enter it "
                       "within 0.3 s"});
          EXPECT_EQ(status.rank(), 1);
          late.set_value();
        }
        EXPECT_OK((*engine)->Synchronize(0));
      },
      30, "direct=0");
}

TEST(NcclEngineTest, AnEngineSaysWhyNoMemoryIsRegistered) {
  const FakeNccl fake(Gpus(2), {.registers = false});
  const auto plan = MakePlan(FormOf(3));
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
  const FakeNccl fake(Gpus(2));
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
      const FakeNccl fake(Gpus(2));
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
