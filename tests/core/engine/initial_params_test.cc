// SPDX-License-Identifier: Apache-2.0
//
// The first values of parameters: those that rank 0 set last, and zeros.

#include "core/engine/params/initial_params.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::initial_params_test {
namespace {

constexpr int kWorldSize = 2;
// More than the piece of 1 MiB in which sharded parameters are sent.
constexpr int64_t kLarge = 300'000;

struct Form {
  const char* name;
  int stage;
  const char* link;
};

constexpr Form kForms[] = {
    {"stage1", 1, ""},
    {"apart_stage1", 1, "direct=0"},
    {"apart_stage3", 3, "direct=0"},
};

// Returns a training of four blocks with a large parameter and a small one.
UnitTraining TrainingOf(const Form& form) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Root");
  for (int b = 0; b < 4; ++b) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("b", b), "Block");
    EXPECT_OK(training.model->AddParam(block, "weight", DType::kF32, {kLarge}));
    EXPECT_OK(training.model->AddParam(block, "bias", DType::kF32, {3}));
  }
  training.wrap = "class?names=Block";
  training.plan.stage = form.stage;
  training.plan.world_size = kWorldSize;
  training.plan.prefetch = 0;
  return training;
}

// Returns numbers from `first` on.
std::vector<float> Numbers(int64_t numel, float first) {
  std::vector<float> values(static_cast<size_t>(numel));
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST(InitialParamsTest, AreThoseThatRankZeroSetLastAndZeros) {
  constexpr ParamId kWeight = 2;  // In the second block.
  constexpr ParamId kBias = 3;
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.name);
    const UnitTraining training = TrainingOf(form);
    const auto plan = PlanOf(training);
    ASSERT_OK(plan);
    ASSERT_TRUE(ShardsAsItsStage(**plan));
    RunThreadRanks(
        kWorldSize,
        [&](const auto& comm) {
          const auto made = CreateEngine(*plan, comm, training.engine);
          ASSERT_OK(made);
          Engine& engine = **made;
          for (const float value : {9.0f, 1.0f}) {
            // The values of rank 1 do not count.
            const float first = value + 100 * static_cast<float>(comm->rank());
            for (const ParamId param : {kWeight, kBias}) {
              const std::vector<float> values =
                  Numbers(param == kBias ? 3 : kLarge, first);
              ASSERT_OK(engine.SetParam(param, values.data(),
                                        values.size() * sizeof(float)));
            }
          }
          // Arguments are checked on all ranks.
          ExpectInvalid(engine.SetParam(kBias, nullptr, 8),
                        {"parameter 3 has 12 bytes", "not 8"});
          ASSERT_OK(engine.BroadcastParams(0));
          UnitTrainer trainer(training, &engine);
          const auto read = trainer.Read();
          for (size_t p = 0; p < read.size(); ++p) {
            const auto param = static_cast<ParamId>(p);
            const int64_t numel = training.model->params()[p].numel;
            std::vector<float> expected(static_cast<size_t>(numel));
            if (param == kWeight || param == kBias) {
              expected = Numbers(numel, 1);
            }
            EXPECT_TRUE(read[p] == expected) << "parameter " << p;
          }
        },
        30, form.link);
  }
}

}  // namespace
}  // namespace shard::initial_params_test
