// SPDX-License-Identifier: Apache-2.0
//
// The effect of a step on memory that the host bound: where the step is
// skipped, where gradients do not count, where a rank joins, and after the
// step.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/bound_host.h"

namespace shard::bound_steps_test {
namespace {

// A gradient that does not count is zeroed where the host keeps it, as the
// engine's own is: later ones are added to nothing.
TEST(BoundStepsTest, GradientsThatDoNotCountAreZeroed) {
  for (const char* link : {"", "direct=0"}) {
    RunBound(
        {.name = "",
         .stage = 1,
         .link = link,
         .units = false,
         .missing = MissingGrads::kZero},
        [](const UnitTraining& training, Engine* engine, UnitTrainer* trainer) {
          const ParamId weight = 2;
          const ParamId bias = 3;
          BoundHost host;
          host.Bind(engine, true);
          trainer->Fill();
          ASSERT_OK(engine->ZeroGrad());
          WriteAllGrads(engine, 1);
          ASSERT_OK(engine->MarkParamGradReady(bias));
          const auto before = host.tensors();
          StepReport report;
          ASSERT_OK(engine->Step(training.step, &report));
          const auto& after = host.tensors();
          EXPECT_EQ(after[bias].grad, before[bias].grad);
          EXPECT_EQ(after[weight].grad,
                    std::vector<std::byte>(before[weight].grad.size()));
        });
  }
}

// A step with gradients that are not finite leaves bound values, and bound
// gradients, as they are.
TEST(BoundStepsTest, ASkippedStepKeepsTheValues) {
  constexpr BoundForm kForms[] = {
      {.name = "stage 1", .stage = 1, .skip_nonfinite = true},
      {.name = "apart, stage 1, overlap",
       .stage = 1,
       .link = "direct=0",
       .overlap = true,
       .skip_nonfinite = true},
      {.name = "stage 2", .stage = 2, .loss_scaling = "dynamic?init_scale=8"},
  };
  for (const BoundForm& form : kForms) {
    SCOPED_TRACE(form.name);
    RunBound(form, [&](const UnitTraining& training, Engine* engine,
                       UnitTrainer* trainer) {
      BoundHost host;
      host.Bind(engine, true);
      trainer->Fill();
      ASSERT_OK(engine->ZeroGrad());
      MakeSteps(form, training, 1, 1, engine, trainer, &host);
      const ParamId bias = 3;
      for (auto unit = static_cast<int32_t>(engine->plan().units().size());
           unit-- > 0;) {
        ASSERT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
        if (unit == engine->plan().UnitOf(bias) &&
            engine->comm()->rank() == 1) {
          const auto grad = engine->Grad(bias);
          ASSERT_OK(grad);
          Store(DType::kF32, {std::numeric_limits<float>::infinity()},
                grad->data);
        }
        ASSERT_OK(engine->MarkUnitGradsReady(unit));
        ASSERT_OK(engine->UnitRelease(unit));
      }
      const auto before = host.tensors();
      const double scale = engine->loss_scale();
      StepReport report;
      ASSERT_OK(engine->Step(training.step, &report));
      EXPECT_TRUE(report.skipped);
      EXPECT_EQ(report.step, 1);
      EXPECT_TRUE(host.tensors() == before);
      host.ExpectValues();
      EXPECT_EQ(engine->loss_scale(), scale == 1 ? 1 : scale / 2);
      // The next good step brings new values.
      ASSERT_OK(engine->ZeroGrad());
      MakeSteps(form, training, 2, 2, engine, trainer, &host);
      EXPECT_NE(host.tensors()[bias].values, before[bias].values);
    });
  }
}

// With overlap, a step leaves new values to the next acquisition of their unit;
// a change of the plan before that brings them.
TEST(BoundStepsTest, AChangeOfThePlanAfterAnOverlappedStep) {
  const BoundForm form{.name = "",
                       .stage = 1,
                       .link = "direct=0",
                       .device = "cpu-async?max_delay=0.0001&seed=3",
                       .overlap = true};
  RunBound(form, [](const UnitTraining&, Engine* engine, UnitTrainer* trainer) {
    BoundHost host;
    host.Bind(engine, true);
    trainer->Fill();
    ASSERT_OK(engine->ZeroGrad());
    for (const bool thaw : {true, false}) {
      trainer->Forward();
      trainer->Backward(1, true);
      StepReport report;
      ASSERT_OK(trainer->Step(&report));
      const ParamId changed[] = {4};
      ASSERT_OK(engine->SetTrainable(changed, thaw, 0));
      host.ExpectValues();
    }
  });
}

TEST(BoundStepsTest, AStepCopiesNoFrozenParameters) {
  RunBound({.name = "", .stage = 1},
           [](const UnitTraining&, Engine* engine, UnitTrainer* trainer) {
             trainer->Fill();
             const ParamId frozen = 4;  // {5}
             std::vector<std::byte> values(5 * sizeof(float), kGarbage);
             int64_t bytes[2];
             for (const bool bound : {false, true}) {
               if (bound) {
                 ASSERT_OK(BindTo(engine, frozen, values, {}));
                 EXPECT_NE(values[0], kGarbage);
                 values.assign(values.size(), kGarbage);
               }
               trainer->Forward();
               trainer->Backward(1, true);
               StepReport report;
               ASSERT_OK(trainer->Step(&report));
               bytes[bound ? 1 : 0] = static_cast<int64_t>(report.bytes_moved);
             }
             EXPECT_EQ(bytes[0], bytes[1]);
             EXPECT_EQ(values[0], kGarbage);
           });
}

// A rank that joins has gradients of zero, and receives the parameters.
TEST(BoundStepsTest, Join) {
  for (const char* link : {"", "direct=0"}) {
    RunBound({.name = "", .stage = 1, .link = link},
             [](const UnitTraining&, Engine* engine, UnitTrainer* trainer) {
               BoundHost host;
               host.Bind(engine, true);
               trainer->Fill();
               ASSERT_OK(engine->ZeroGrad());
               if (engine->comm()->rank() == 0) {
                 trainer->Forward();
                 trainer->Backward(1, true);
                 StepReport report;
                 ASSERT_OK(trainer->Step(&report));
               }
               int64_t steps = 0;
               ASSERT_OK(engine->Join(0, &steps));
               EXPECT_EQ(steps, engine->comm()->rank());
               host.ExpectValues();
               if (engine->comm()->rank() == 1) host.ExpectZeroGrads();
             });
  }
}

}  // namespace
}  // namespace shard::bound_steps_test
