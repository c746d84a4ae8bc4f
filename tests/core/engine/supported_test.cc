// SPDX-License-Identifier: Apache-2.0
//
// The memory that a new plan needs, of an engine and in place of another plan.

#include "core/engine/step/supported.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/base/element_type.h"
#include "core/collectives/collectives.h"
#include "core/engine/params/replan.h"
#include "core/engine/transfer/collectives_memory.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/guard_device.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"

namespace shard::supported_test {
namespace {

constexpr int kWorldSize = 2;

// Returns a plan of a parameter and of a host tensor of `bytes` bytes.
std::shared_ptr<const Plan> PlanWith(int64_t bytes) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  EXPECT_OK(training.model->AddParam(kRootModule, "p", DType::kF32, {3000}));
  EXPECT_OK(training.model->AddHostTensor(kRootModule, "h", ElementType::kU8,
                                          {bytes}, false));
  training.wrap = "";
  training.plan.world_size = kWorldSize;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  return *plan;
}

uint64_t HostBytes(const Plan& plan, const Communicator& comm,
                   const Device& device, const Plan* before) {
  const auto placement = PlacementOf(comm, device);
  if (before == nullptr) return NeedOf(plan, placement, nullptr).host;
  const ReplacedPlan replaced = {before, ReduceMemoryOf(*before)};
  return NeedOf(plan, placement, &replaced).host;
}

// Host tensors stay where they are when the plan changes: they need no memory
// again. Ranks that share no memory need their own of everything.
TEST(SupportedTest, HostTensorsNeedMemoryOnce) {
  constexpr uint64_t kHostTensor = 5 * kPageBytes;
  const auto plan = PlanWith(kHostTensor);
  const std::shared_ptr<Device> cpu = *OpenDevice("cpu");
  for (const char* link : {"", "direct=0"}) {
    SCOPED_TRACE(link);
    RunThreadRanks(
        kWorldSize,
        [&](const auto& comm) {
          const auto engine = CreateEngine(plan, comm);
          ASSERT_OK(engine);
          const int here = comm->local_world_size();
          const uint64_t taken =
              (*engine)->Memory().HostTotal(here, (*engine)->SharesParams());
          EXPECT_EQ(HostBytes(*plan, *comm, *cpu, nullptr), taken);
          EXPECT_EQ(HostBytes(*plan, *comm, *cpu, plan.get()),
                    taken - static_cast<uint64_t>(here) * kHostTensor);
        },
        30, link);
  }
}

// Ranks that may lack gradients have room for the sums of their shard group.
TEST(SupportedTest, SumsOfShardGroupsNeedMemoryWhereGradientsMayBeMissing) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
    const ModuleId block = *training.model->AddModule(kRootModule, name, "B");
    EXPECT_OK(training.model->AddParam(block, "p", DType::kF32, {3000}));
  }
  training.wrap = "class?names=B";
  training.plan.world_size = 4;
  training.plan.stage = 3;
  training.plan.shard_group_size = 2;
  training.plan.prefetch = 0;
  const auto plan = ::shard::PlanOf(training);
  ASSERT_OK(plan);
  ASSERT_TRUE((*plan)->shards_grads());
  // Half of a buffer's gradients.
  EXPECT_EQ(GroupSumBytes(**plan), 2 * kPageBytes);
  const std::shared_ptr<Device> cpu = *OpenDevice("cpu");
  RunThreadRanks(
      4,
      [&](const auto& comm) {
        const int here = comm->local_world_size();
        std::vector<uint64_t> needs;
        for (const MissingGrads missing :
             {MissingGrads::kError, MissingGrads::kZero}) {
          EngineOptions options;
          options.missing_grads = missing;
          options.opened_device = cpu;
          const auto engine = Engine::Create(*plan, comm, options);
          ASSERT_OK(engine);
          const RankPlacement placement = PlacementOf(
              *comm, *cpu, Transport::kStaged, missing != MissingGrads::kError);
          needs.push_back(NeedOf(**plan, placement, nullptr).host);
          EXPECT_EQ((*engine)->Memory().HostTotal(here, false), needs.back());
        }
        EXPECT_EQ(needs[1] - needs[0],
                  static_cast<uint64_t>(here) * GroupSumBytes(**plan));
      },
      30, "direct=0");
}

// Collectives of tensors that the host does not reach have staging memory, once
// for all plans of an engine.
TEST(SupportedTest, StagingMemoryIsNeededOnce) {
  const auto plan = PlanWith(5 * kPageBytes);
  const std::shared_ptr<Device> cpu = *OpenDevice("cpu");
  const std::shared_ptr<Device> guard = testing::GuardTensors(cpu);
  RunThreadRanks(kWorldSize, [&](const auto& comm) {
    const auto here = static_cast<uint64_t>(comm->local_world_size());
    EXPECT_EQ(HostBytes(*plan, *comm, *guard, nullptr),
              HostBytes(*plan, *comm, *cpu, nullptr) +
                  here * StagingBytes(kWorldSize));
    EXPECT_EQ(HostBytes(*plan, *comm, *guard, plan.get()),
              HostBytes(*plan, *comm, *cpu, plan.get()));
  });
}

// No machine has the memory of this host tensor; an engine that has it already
// may change its plan.
TEST(SupportedTest, AChangeOfThePlanAsksForNoHostTensors) {
  const auto plan = PlanWith(int64_t{1} << 50);
  const std::shared_ptr<Device> cpu = *OpenDevice("cpu");
  RunThreadRanks(kWorldSize, [&](const auto& comm) {
    const Deadline deadline = Deadline::After(30);
    const RankPlacement placement = PlacementOf(*comm, *cpu);
    ExpectError(CheckSupported(*plan, *comm, placement, nullptr, deadline),
                StatusCode::kResourceExhausted,
                {"of memory are needed on this host",
                 " are missing; no stage, ", "use a smaller model"});
    const ReplacedPlan replaced = {plan.get(), ReduceMemoryOf(*plan)};
    EXPECT_OK(CheckSupported(*plan, *comm, placement, &replaced, deadline));
  });
}

// Options are not looked for where no time is left to tell the others of them.
TEST(SupportedTest, TheSearchForOptionsEndsWithTheTime) {
  const auto plan = PlanWith(int64_t{1} << 50);
  const std::shared_ptr<Device> cpu = *OpenDevice("cpu");
  RunThreadRanks(kWorldSize, [&](const auto& comm) {
    ExpectError(
        CheckSupported(*plan, *comm, PlacementOf(*comm, *cpu), nullptr,
                       Deadline::After(0)),
        StatusCode::kResourceExhausted,
        {" are missing; try a higher stage, more ranks or narrower optimizer "
         "states"});
  });
}

// The host tensor is as large as the machine's memory, of which some is always
// in use, so no engine is created with it. A runtime does not ask, and the
// kernel gives the pages when they are touched, which nothing does here.
TEST(SupportedTest, ANewPlanAsksForNoMemoryOfHostTensors) {
  const int64_t machine = int64_t{::sysconf(_SC_PHYS_PAGES)} *
                          static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  const auto plan = PlanWith(machine);
  RunThreadRanks(kWorldSize, [&](const auto& comm) {
    ExpectError(CreateEngine(plan, comm).status(),
                StatusCode::kResourceExhausted, {"are needed on this host"});
    const auto device = OpenDevice("cpu");
    ASSERT_OK(device);
    auto wrapped = (*device)->WrapStream(nullptr);
    ASSERT_OK(wrapped);
    HostStream host(*std::move(wrapped));
    const BoundMemory bound;
    const EngineRuntime::Options options = {.timeout = 30,
                                            .allow_missing = false,
                                            .overlap = false,
                                            .bound = &bound,
                                            .host = &host};
    const Deadline deadline = Deadline::After(30);
    const auto from = EngineRuntime::Create(plan, comm.get(), device->get(),
                                            options, nullptr, deadline);
    // A kernel that promises no more memory than it has refuses the tensor.
    if (from.status().code() == StatusCode::kResourceExhausted) return;
    ASSERT_OK(from);
    const auto hypers = Hypers::Create(*plan);
    ASSERT_OK(hypers);
    EXPECT_OK(
        Replan(**from, Status(),
               NewParamGroup(*plan, *hypers, std::string_view("sgd?lr=0.5"),
                             std::vector{0}),
               options, comm.get(), device->get(), deadline));
  });
}

}  // namespace
}  // namespace shard::supported_test
