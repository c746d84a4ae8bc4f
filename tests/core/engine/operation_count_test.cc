// SPDX-License-Identifier: Apache-2.0
//
// The number of operations that a steady step enqueues depends on the buffers
// alone: 10 parameters and 10,000 of the same total size need equally many.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "core/model/model.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/counting_device.h"
#include "tests/core/device/test_device.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"
#include "tests/kernels/cpu/fake_cblas.h"

namespace shard::operation_count_test {
namespace {

using testing::CountOperations;
using testing::OperationCounts;

using Counts = std::map<std::string, int>;

constexpr int kWorldSize = 2;
constexpr int kUnits = 5;

struct Form {
  const char* name;
  const char* optimizer;
  DType dtype = DType::kF32;
  Masters masters = Masters::kF32;
  bool tries_norms = false;
};

// Returns five units of 2,000 rows of 25 elements each, cut into `params`
// matrices of equal size in all. No rank's parameters fill its range, so that
// each buffer has padding.
std::shared_ptr<Model> MakeModel(int params, DType dtype) {
  auto model = std::make_shared<Model>("Root");
  for (int u = 0; u < kUnits; ++u) {
    const ModuleId block =
        *model->AddModule(kRootModule, StrCat("block", u), "Block");
    for (int p = 0; p < params / kUnits; ++p) {
      EXPECT_OK(model->AddParam(block, StrCat("p", p), dtype,
                                {2000 * kUnits / params, 25}));
    }
  }
  return model;
}

// Binds memory of the host to all parameters and gradients; `memory` holds it.
void BindAll(const Plan& plan, Engine* engine,
             std::vector<std::vector<std::byte>>* memory) {
  for (size_t p = 0; p < plan.places().size(); ++p) {
    const auto param = static_cast<ParamId>(p);
    const FlatBufferPlan& buffer = plan.buffer(plan.place(param).buffer);
    const int64_t numel = plan.model().params()[p].numel;
    for (const DType dtype : {buffer.dtype, buffer.grad_dtype}) {
      memory->emplace_back(DTypeBytes(dtype, numel));
    }
    ASSERT_OK(engine->Bind(
        param, {std::span(memory->end()[-2]), std::span(memory->end()[-1])}));
  }
}

// Makes two steps; returns rank 0's operations in the last one, from the
// backward pass to zero_grad.
Counts CountStep(const Form& form, int stage, const std::string& link,
                 int params, const StepOptions& step, bool bound = false) {
  UnitTraining training;
  training.model = MakeModel(params, form.dtype);
  training.optimizer = form.optimizer;
  training.wrap = "class?names=Block";
  training.plan.stage = stage;
  training.plan.world_size = kWorldSize;
  training.plan.masters = form.masters;
  // So that five units are sharded.
  training.plan.prefetch = 0;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  EXPECT_TRUE(ShardsAsItsStage(**plan));
  Counts counts;
  RunThreadRanks(
      kWorldSize,
      [&](const auto& comm) {
        auto device = testing::OpenTestDevice("cpu-async?max_delay=0");
        ASSERT_OK(device);
        const auto counted = std::make_shared<OperationCounts>();
        EngineOptions options;
        options.opened_device = CountOperations(*std::move(device), counted);
        // Outlives the engine, which may still use it.
        std::vector<std::vector<std::byte>> memory;
        auto engine = Engine::Create(*plan, comm, options);
        ASSERT_OK(engine);
        if (bound) BindAll(**plan, engine->get(), &memory);
        ASSERT_OK((*engine)->BroadcastParams(0));
        const auto units = static_cast<int32_t>((*plan)->units().size());
        for (int i = 0; i < 2; ++i) {
          counted->Take();
          for (int32_t unit = units; unit-- > 0;) {
            ASSERT_OK((*engine)->UnitAcquire(
                unit, bound ? Pass::kBackward : Pass::kBackwardOverwrite, 0));
            ASSERT_OK((*engine)->MarkUnitGradsReady(unit));
            ASSERT_OK((*engine)->UnitRelease(unit));
          }
          StepReport report;
          ASSERT_OK((*engine)->Step(step, &report));
          ASSERT_OK((*engine)->ZeroGrad());
        }
        if (comm->rank() == 0) counts = counted->Take();
      },
      60, link);
  return counts;
}

class OperationCountTest : public ::testing::TestWithParam<Form> {};

TEST_P(OperationCountTest, DoesNotGrowWithTheNumberOfParameters) {
  const Form& form = GetParam();
  const BlasLibrary library(FakeCblasPath("plain"));
  StepOptions clipped;
  clipped.max_grad_norm = 1;
  StepOptions by_p = clipped;
  by_p.grad_norm_type = 3;
  for (const int stage : {1, 2, 3}) {
    for (const char* link : {"", "direct=0"}) {
      for (const StepOptions& step : {StepOptions(), clipped, by_p}) {
        // Norms are the same for all optimizers.
        if (!form.tries_norms && step.max_grad_norm == 0) continue;
        if (!form.tries_norms && step.grad_norm_type == 3) continue;
        SCOPED_TRACE(StrCat("stage ", stage, " ", link, ", norm ",
                            step.max_grad_norm, " of ", step.grad_norm_type));
        Counts few = CountStep(form, stage, link, 10, step);
        EXPECT_EQ(few, CountStep(form, stage, link, 10000, step));
        EXPECT_EQ(few["Update"], kUnits);
        const int passes = step.max_grad_norm == 0    ? 0
                           : step.grad_norm_type == 3 ? 2
                                                      : 1;
        EXPECT_EQ(few["AddToNorm"], passes * kUnits);
        EXPECT_EQ(few["FinishNorm"], passes);
      }
    }
  }
}

TEST(BoundOperationCountTest, DoesNotGrowWithTheNumberOfParameters) {
  for (const int stage : {1, 2}) {
    for (const char* link : {"", "direct=0"}) {
      SCOPED_TRACE(StrCat("stage ", stage, " ", link));
      const Form form{.name = "bound", .optimizer = "adamw"};
      Counts few = CountStep(form, stage, link, 10, StepOptions(), true);
      EXPECT_EQ(few, CountStep(form, stage, link, 10000, StepOptions(), true));
      // Gradients that are copied and zeroed, and parameters that are copied.
      EXPECT_GE(few["Fill"], 3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, OperationCountTest,
    ::testing::Values(
        Form{.name = "adamw", .optimizer = "adamw", .tries_norms = true},
        Form{.name = "adamw_bf16_stochastic",
             .optimizer = "adamw?states=bf16",
             .dtype = DType::kBF16,
             .masters = Masters::kNoneStochastic},
        Form{.name = "adamw_q8", .optimizer = "adamw?states=q8"},
        Form{.name = "lamb", .optimizer = "lamb"},
        Form{.name = "adafactor_bf16",
             .optimizer = "adafactor",
             .dtype = DType::kBF16},
        Form{.name = "muon", .optimizer = "muon"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shard::operation_count_test
