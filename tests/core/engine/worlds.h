// SPDX-License-Identifier: Apache-2.0
//
// Worlds that train, save and load: engines with threads as ranks, of a model
// that makes layouts awkward.

#ifndef SHARD_TESTS_CORE_ENGINE_WORLDS_H_
#define SHARD_TESTS_CORE_ENGINE_WORLDS_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/engine/whole_state.h"
#include "tests/core/flat/sharding.h"

namespace shard {

// Returns a model whose tensors make layouts awkward: 0-d, empty, smaller than
// most worlds, frozen, tied, and one of a size that no world size divides.
inline std::shared_ptr<Model> AwkwardModel(DType dtype = DType::kF32) {
  auto model = std::make_shared<Model>("Root");
  EXPECT_TRUE(model->AddParam(kRootModule, "scale", dtype, {}).ok());
  EXPECT_TRUE(model->AddParam(kRootModule, "empty", dtype, {0, 4}).ok());
  const ParamId weight = *model->AddParam(kRootModule, "weight", dtype, {7, 9});
  const ModuleId block = *model->AddModule(kRootModule, "block", "Block");
  EXPECT_TRUE(model->AddParam(block, "bias", dtype, {3}).ok());
  const ParamId frozen = *model->AddParam(block, "frozen", dtype, {5});
  EXPECT_TRUE(model->SetTrainable(frozen, false).ok());
  EXPECT_TRUE(model->AddParam(block, "big", dtype, {31, 41}).ok());
  const ModuleId head = *model->AddModule(kRootModule, "head", "Head");
  EXPECT_TRUE(model->Tie(head, "weight", weight).ok());
  // Adds enough units of a few pages that stages 2 and 3 have memory to shard.
  for (int b = 0; b < 8; ++b) {
    const ModuleId more =
        *model->AddModule(kRootModule, StrCat("more", b), "Block");
    EXPECT_TRUE(model->AddParam(more, "weight", dtype, {2200}).ok());
  }
  return model;
}

inline UnitTraining AwkwardTraining(int world_size, int variant) {
  UnitTraining training;
  training.model = AwkwardModel();
  training.plan.world_size = world_size;
  training.plan.stage = variant % 4;
  training.plan.prefetch = 0;
  training.plan.partition =
      variant % 3 == 0 ? Partition::kGreedy : Partition::kEven;
  training.plan.buffer_bytes = variant % 2 == 0 ? 512 : 25 << 20;
  training.wrap =
      variant % 4 >= 2 || variant % 5 < 3 ? "class?names=Block" : "";
  training.link = variant % 2 == 1 ? "direct=0" : "";
  return training;
}

inline void TrainSteps(int first, int last, Engine* engine,
                       UnitTrainer* trainer) {
  for (int step = first; step <= last; ++step) {
    trainer->Forward();
    trainer->Backward(step, true);
    StepReport report;
    ASSERT_OK(trainer->Step(&report));
    ASSERT_EQ(report.step, step);
    ASSERT_OK(engine->ZeroGrad());
  }
}

// Trains a world for `steps` steps, then calls `then` on every rank.
inline void RunWorld(const UnitTraining& training, int steps,
                     const std::function<void(Engine*, UnitTrainer*)>& then) {
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  EXPECT_TRUE(ShardsAsItsStage(**plan));
  RunThreadRanks(
      training.plan.world_size,
      [&](const auto& comm) {
        auto engine = CreateEngine(*plan, comm, training.engine);
        ASSERT_OK(engine);
        UnitTrainer trainer(training, engine->get());
        // Without steps, the caller gives the parameters their values.
        if (steps > 0) trainer.Fill();
        TrainSteps(1, steps, engine->get(), &trainer);
        then(engine->get(), &trainer);
      },
      60, training.link);
}

// The parameters by ParamId, in fp32, as every rank reads them.
using Params = std::vector<std::vector<float>>;

inline void SaveWorld(const UnitTraining& training, int steps,
                      const std::string& root, WholeState* whole,
                      Params* params, const SaveOptions& options = {}) {
  RunWorld(training, steps, [&](Engine* engine, UnitTrainer* trainer) {
    const auto saved = engine->Save(root, options);
    ASSERT_OK(saved);
    if (*saved != nullptr) ASSERT_OK((*saved)->Wait(Deadline::After(60)));
    whole->Add(*engine);
    auto read = trainer->Read();
    if (engine->comm()->rank() == 0) *params = std::move(read);
  });
}

inline void LoadWorld(const UnitTraining& training, const std::string& root,
                      WholeState* whole, const Params& params,
                      const LoadOptions& options = {}) {
  RunWorld(training, 0, [&](Engine* engine, UnitTrainer* trainer) {
    LoadReport report;
    ASSERT_OK(engine->Load(root, options, &report));
    whole->Add(*engine);
    EXPECT_EQ(trainer->Read(), params);
  });
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_WORLDS_H_
