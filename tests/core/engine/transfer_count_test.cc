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
  for (int b = 0; b < 3; ++b) {
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

}  // namespace
}  // namespace shard::transfer_count_test
