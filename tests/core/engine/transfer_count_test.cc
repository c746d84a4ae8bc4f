// SPDX-License-Identifier: Apache-2.0
//
// Where ranks share no memory, the number of collectives of a step depends on
// the buffers of the plan, and not on their size.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/observe/observer.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::transfer_count_test {
namespace {

constexpr int kRanks = 4;

// The collectives of a step on rank 0.
struct Counts {
  uint64_t reduce_scatters = 0;
  uint64_t all_gathers = 0;
  size_t buffers = 0;
};

uint64_t CallsOf(const Communicator& comm, const char* event) {
  const auto counter = comm.observer()->counters().Find(event);
  return counter.ok() ? counter->calls : 0;
}

Counts CountStep(int stage, int group_size, bool deterministic, int64_t rows) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Root");
  // So many that sharding in groups saves memory beside two slots.
  for (int b = 0; b < 6; ++b) {
    const auto block =
        training.model->AddModule(kRootModule, StrCat("block", b), "Block");
    EXPECT_OK(block);
    EXPECT_OK(training.model->AddParam(*block, "weight", DType::kF32,
                                       {rows, int64_t{128}}));
  }
  training.plan.world_size = kRanks;
  training.plan.stage = stage;
  training.plan.shard_group_size = group_size;
  training.plan.deterministic = deterministic;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  EXPECT_TRUE(ShardsAsItsStage(**plan));
  Counts counts;
  counts.buffers = (*plan)->buffers().size();
  RunThreadRanks(
      kRanks,
      [&](const auto& comm) {
        const auto engine = CreateEngine(*plan, comm);
        ASSERT_OK(engine);
        UnitTrainer trainer(training, engine->get());
        trainer.Fill();
        const uint64_t sums = CallsOf(*comm, "reduce_scatter");
        const uint64_t gathers = CallsOf(*comm, "all_gather_blocks");
        trainer.Forward();
        trainer.Backward(1, /*last=*/true);
        StepReport report;
        ASSERT_OK(trainer.Step(&report));
        if (comm->rank() != 0) return;
        counts.reduce_scatters = CallsOf(*comm, "reduce_scatter") - sums;
        counts.all_gathers = CallsOf(*comm, "all_gather_blocks") - gathers;
      },
      30, "direct=0");
  return counts;
}

TEST(TransferCountTest, DependsOnBuffersAlone) {
  for (const int stage : {1, 2, 3}) {
    for (const int group_size : {0, 2}) {
      for (const bool deterministic : {false, true}) {
        SCOPED_TRACE(StrCat("stage ", stage, ", groups of ", group_size,
                            deterministic ? ", deterministic" : ""));
        const Counts small = CountStep(stage, group_size, deterministic, 64);
        const Counts large = CountStep(stage, group_size, deterministic, 1024);
        ASSERT_EQ(small.buffers, large.buffers);
        EXPECT_EQ(small.reduce_scatters, large.reduce_scatters);
        EXPECT_EQ(small.all_gathers, large.all_gathers);
        const uint64_t levels = group_size > 0 && !deterministic ? 2 : 1;
        EXPECT_EQ(large.reduce_scatters, levels * large.buffers);
      }
    }
  }
}

// A host acquires each of `kBlocks` units forward and backward, and releases it
// before it acquires the next, or once it has.
constexpr int kBlocks = 16;

// Returns the gathers of a step whose order is known.
uint64_t CountGathers(int32_t prefetch, bool release_late) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Root");
  for (int b = 0; b < kBlocks; ++b) {
    const auto block =
        training.model->AddModule(kRootModule, StrCat("block", b), "Block");
    EXPECT_OK(block);
    EXPECT_OK(training.model->AddParam(*block, "weight", DType::kF32,
                                       {int64_t{64}, int64_t{128}}));
  }
  training.plan.world_size = 2;
  training.plan.stage = 3;
  training.plan.prefetch = prefetch;
  training.engine.missing_grads = MissingGrads::kZero;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  EXPECT_TRUE(ShardsAsItsStage(**plan));
  const auto units = static_cast<int32_t>((*plan)->units().size());
  uint64_t gathers = 0;
  RunThreadRanks(
      training.plan.world_size,
      [&](const auto& comm) {
        const auto engine = CreateEngine(*plan, comm, training.engine);
        ASSERT_OK(engine);
        UnitTrainer(training, engine->get()).Fill();
        int32_t held = -1;
        const auto release = [&] {
          if (held >= 0) ASSERT_OK((*engine)->UnitRelease(held));
          held = -1;
        };
        const auto use = [&](int32_t unit, Pass pass) {
          if (!release_late) release();
          ASSERT_OK((*engine)->UnitAcquire(unit, pass, 0));
          release();
          held = unit;
        };
        for (int step = 1; step <= 3; ++step) {
          const uint64_t before = CallsOf(*comm, "all_gather_blocks");
          for (int32_t u = 1; u < units; ++u) use(u, Pass::kForward);
          release();
          for (int32_t u = units - 1; u > 0; --u) use(u, Pass::kBackward);
          release();
          StepReport report;
          ASSERT_OK((*engine)->Step(StepOptions(), &report));
          if (comm->rank() == 0) {
            gathers = CallsOf(*comm, "all_gather_blocks") - before;
          }
        }
      },
      30, "direct=0");
  return gathers;
}

// A unit that was gathered ahead stays until the host acquires it.
TEST(TransferCountTest, PrefetchGathersNoUnitTwice) {
  for (const int32_t prefetch : {0, 1, 2, 3, 5}) {
    for (const bool release_late : {false, true}) {
      // A single slot is in use until then.
      if (prefetch == 0 && release_late) continue;
      SCOPED_TRACE(
          StrCat("prefetch ", prefetch, release_late ? ", released late" : ""));
      const uint64_t gathers = CountGathers(prefetch, release_late);
      // Backward, the slots still have the last units.
      EXPECT_LE(gathers, 2 * kBlocks - 1);
      EXPECT_GE(gathers, kBlocks);
    }
  }
}

// Adds a unit with a matrix, and returns its module.
ModuleId AddBlock(ModuleId parent, const std::string& name, Model* model) {
  const auto block = model->AddModule(parent, name, "Block");
  EXPECT_OK(block);
  EXPECT_OK(model->AddParam(*block, "weight", DType::kF32,
                            {int64_t{64}, int64_t{128}}));
  return *block;
}

// Makes two steps of the same calls, with 2 units gathered ahead, and returns
// the gathers of the second one until each of its acquires has returned and all
// that it began is done. `calls`: units that are acquired, and negative ones
// that are released.
std::vector<uint64_t> GathersOf(const std::shared_ptr<Model>& model,
                                const std::vector<int32_t>& calls) {
  UnitTraining training;
  training.model = model;
  training.wrap = "class?names=Block";
  training.plan.world_size = 2;
  training.plan.stage = 3;
  training.plan.prefetch = 2;
  training.engine.missing_grads = MissingGrads::kZero;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  EXPECT_TRUE(ShardsAsItsStage(**plan));
  std::vector<uint64_t> gathers;
  RunThreadRanks(
      training.plan.world_size,
      [&](const auto& comm) {
        const auto engine = CreateEngine(*plan, comm, training.engine);
        ASSERT_OK(engine);
        UnitTrainer(training, engine->get()).Fill();
        for (int step = 1; step <= 2; ++step) {
          const uint64_t before = CallsOf(*comm, "all_gather_blocks");
          for (const int32_t call : calls) {
            if (call < 0) {
              ASSERT_OK((*engine)->UnitRelease(-call));
              continue;
            }
            ASSERT_OK((*engine)->UnitAcquire(call, Pass::kForward, 0));
            ASSERT_OK((*engine)->Synchronize(0));
            if (step == 1 || comm->rank() != 0) continue;
            gathers.push_back(CallsOf(*comm, "all_gather_blocks") - before);
          }
          StepReport report;
          ASSERT_OK((*engine)->Step(StepOptions(), &report));
        }
      },
      30, "direct=0");
  return gathers;
}

// Each depth has three slots, or as many as it has units.
TEST(TransferCountTest, AUnitOfAnotherDepthIsGatheredPastOneWithoutASlot) {
  const auto model = std::make_shared<Model>("Root");
  const ModuleId first = AddBlock(kRootModule, "first", model.get());  // Unit 1
  for (int b = 0; b < kBlocks; ++b) {
    AddBlock(first, StrCat("inner", b), model.get());  // From unit 2 on.
  }
  AddBlock(kRootModule, "last", model.get());
  constexpr int32_t kLast = kBlocks + 2;
  // While 2, 3 and 4 are in use there is no slot for 5, but one for the last.
  const std::vector<int32_t> calls = {1,  2, 3,  4,  -2,    -3,
                                      -4, 5, -5, -1, kLast, -kLast};
  const std::vector<uint64_t> gathers = {3, 4, 4, 5, 6, 6};
  EXPECT_EQ(GathersOf(model, calls), gathers);
}

// Where only slots of units gathered ahead are left, the one that is needed
// last is given up.
TEST(TransferCountTest, AUnitTakesTheSlotThatIsNeededLast) {
  const auto model = std::make_shared<Model>("Root");
  for (int b = 0; b < kBlocks; ++b) {
    AddBlock(kRootModule, StrCat("block", b), model.get());
  }
  // 4 takes the slot of 3, and 2 is still there.
  const std::vector<int32_t> calls = {1, 2, 3, -2, -3, 4, 2, -1, -4, -2, 3, -3};
  const std::vector<uint64_t> gathers = {3, 3, 3, 4, 4, 5};
  EXPECT_EQ(GathersOf(model, calls), gathers);
}

}  // namespace
}  // namespace shard::transfer_count_test
