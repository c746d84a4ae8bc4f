// SPDX-License-Identifier: Apache-2.0
//
// Memory that the host bound holds every new value of a parameter, is the
// gradient of the step, and changes no bit of a run.

#include <gtest/gtest.h>

#include <string>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/bound_host.h"
#include "tests/core/engine/exact_training.h"
#include "tests/core/engine/whole_state.h"
#include "tests/core/flat/sharding.h"

namespace shard::bound_memory_test {
namespace {

constexpr BoundForm kForms[] = {
    {.name = "stage0", .stage = 0},
    {.name = "stage0_simple", .stage = 0, .units = false},
    {.name = "stage1", .stage = 1, .passes = 2},
    {.name = "stage1_async",
     .stage = 1,
     .device = "cpu-async?max_delay=0.0001&seed=1"},
    {.name = "stage1_simple_clipped",
     .stage = 1,
     .units = false,
     .max_grad_norm = 0.1},
    {.name = "stage1_begun", .stage = 1, .begin_step = true},
    {.name = "stage1_simple_begun",
     .stage = 1,
     .units = false,
     .begin_step = true},
    {.name = "stage1_bf16_f32_grads",
     .stage = 1,
     .dtype = DType::kBF16,
     .f32_grads = true},
    {.name = "stage1_missing", .stage = 1, .missing = MissingGrads::kSkip},
    {.name = "stage2", .stage = 2, .passes = 2, .max_grad_norm = 0.1},
    {.name = "stage2_whole_grads",
     .stage = 2,
     .passes = 2,
     .max_grad_norm = 0.1,
     .whole_grads = true},
    {.name = "stage2_begun", .stage = 2, .begin_step = true},
    {.name = "stage2_bf16_missing",
     .stage = 2,
     .dtype = DType::kBF16,
     .missing = MissingGrads::kZero},
    {.name = "apart_stage0", .stage = 0, .link = "direct=0"},
    {.name = "apart_stage1", .stage = 1, .link = "direct=0", .passes = 2},
    {.name = "apart_stage1_simple",
     .stage = 1,
     .link = "direct=0",
     .units = false},
    {.name = "apart_stage1_missing",
     .stage = 1,
     .link = "direct=0",
     .missing = MissingGrads::kZero},
    {.name = "apart_stage1_overlap",
     .stage = 1,
     .link = "direct=0",
     .device = "cpu-async?max_delay=0.0001&seed=2",
     .overlap = true},
    {.name = "apart_stage2_whole_grads",
     .stage = 2,
     .link = "direct=0",
     .passes = 2,
     .missing = MissingGrads::kSkip,
     .whole_grads = true},
    {.name = "apart_stage2",
     .stage = 2,
     .link = "direct=0",
     .overlap = true,
     .passes = 2},
};

class BoundMemoryTest : public ::testing::TestWithParam<BoundForm> {};

// One run binds before parameters have values, and is bound throughout; it
// loads, changes its plan and writes summoned parameters back. The other binds
// nothing.
TEST_P(BoundMemoryTest, NoBitDiffers) {
  const BoundForm& form = GetParam();
  const testing::TempFolder folder;
  WholeState states[2];
  for (const bool bound : {false, true}) {
    RunBound(form, [&](const UnitTraining& training, Engine* engine,
                       UnitTrainer* trainer) {
      BoundHost tensors;
      BoundHost* const host = bound ? &tensors : nullptr;
      if (bound) tensors.Bind(engine);
      trainer->Fill();
      if (bound) tensors.ExpectValues();
      ASSERT_OK(engine->ZeroGrad());
      MakeSteps(form, training, 1, 3, engine, trainer, host);
      if (!bound) ASSERT_OK(engine->Save(folder.path(), SaveOptions()));

      // Load the state of the run without bindings, which is as this one's.
      LoadReport report;
      MakeSteps(form, training, 4, 4, engine, trainer, host);
      ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
      if (bound) tensors.ExpectValues();

      ASSERT_OK(engine->Summon(0, -1, 0));
      for (ParamId param = 0; param < 3; ++param) {
        const auto copy = engine->WritableParam(param);
        ASSERT_OK(copy);
        const DType dtype =
            training.model->params()[static_cast<size_t>(param)].dtype;
        Store(dtype,
              std::vector<float>(static_cast<size_t>(copy->numel), 0.25f),
              copy->data);
      }
      ASSERT_OK(engine->EndSummon(true, 0));
      if (bound) tensors.ExpectValues();
      MakeSteps(form, training, 4, 4, engine, trainer, host);

      // The parameter that is frozen in the model, and one that is not.
      const ParamId thawed[] = {4};
      const ParamId frozen[] = {2};
      ASSERT_OK(engine->SetTrainable(thawed, true, 0));
      if (bound) tensors.ExpectValues();
      ASSERT_OK(engine->SetTrainable(frozen, false, 0));
      ASSERT_OK(engine->ZeroGrad());
      MakeSteps(form, training, 5, 6, engine, trainer, host);
      states[bound ? 1 : 0].Add(*engine);
    });
  }
  EXPECT_FALSE(states[0].tensors().empty());
  EXPECT_EQ(states[1].Differences(states[0]), "");
}

INSTANTIATE_TEST_SUITE_P(Forms, BoundMemoryTest, ::testing::ValuesIn(kForms),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

// Gradients that ranks do not have do not count, whatever bound memory holds.
TEST(BoundMemoryTest, MissingGradients) {
  for (const BoundForm& form :
       {BoundForm{.name = "", .stage = 1}, BoundForm{.name = "", .stage = 2},
        BoundForm{.name = "", .stage = 1, .link = "direct=0"},
        BoundForm{.name = "", .stage = 2, .link = "direct=0"}}) {
    for (const int passes : {1, 2}) {
      SCOPED_TRACE(
          StrCat("stage ", form.stage, ", ", form.link, ", passes ", passes));
      const auto plan = PlanOf(TrainingOf(form));
      ASSERT_OK(plan);
      ASSERT_TRUE(ShardsAsItsStage(**plan));
      ExactTraining training;
      training.plan = *plan;
      training.engine.missing_grads =
          passes == 1 ? MissingGrads::kSkip : MissingGrads::kZero;
      training.link = form.link;
      training.passes = passes;
      training.has_grad = [](int step, int pass, int rank, ParamId param) {
        return (step + pass + rank + param) % 3 != 0;
      };
      BoundHost hosts[kBoundRanks];
      training.prepare = [&](Engine* engine) {
        hosts[engine->comm()->rank()].Bind(engine, true);
        // Accumulated gradients begin at zero.
        ASSERT_OK(engine->ZeroGrad());
      };
      EXPECT_EQ(TrainExactly(training), "");
    }
  }
}

}  // namespace
}  // namespace shard::bound_memory_test
