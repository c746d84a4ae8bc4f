// SPDX-License-Identifier: Apache-2.0
//
// An engine allocates the bytes that its plan predicts, exactly, for every
// optimizer, dtype, way to keep masters, partition and stage.

#include <gtest/gtest.h>

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/training.h"

namespace shard::plan_memory_test {
namespace {

// Returns a model with trainable parameters of every kind that `optimizer` can
// step, one of them in another group, and a frozen parameter.
std::shared_ptr<Model> MakeModel(const std::string& optimizer, DType dtype) {
  std::vector<std::vector<int64_t>> shapes = {{33, 70}, {5},    {},
                                              {0, 4},   {1029}, {2, 3, 4}};
  if (optimizer.substr(0, 4) == "muon") {
    shapes = {{33, 70}, {9, 4}, {0, 4}, {1, 12}};
  }
  auto model = ModelOf(shapes, dtype);
  const auto other = model->AddParam(kRootModule, "other", dtype, {2000});
  const auto frozen =
      model->AddParam(kRootModule, "frozen", DType::kF64, {700});
  EXPECT_OK(other);
  EXPECT_OK(frozen);
  EXPECT_OK(model->AddParamGroup("sgd?momentum=0.5", std::vector{*other}));
  EXPECT_OK(model->SetTrainable(*frozen, false));
  return model;
}

void ExpectPlanned(const std::shared_ptr<const Plan>& plan) {
  const MemoryReport planned = plan->Memory(true);
  RunThreadRanks(plan->options().world_size, [&](const auto& comm) {
    const auto engine = CreateEngine(plan, comm);
    ASSERT_OK(engine);
    const MemoryReport used = (*engine)->Memory();
    const std::string summary = plan->Summary();
    EXPECT_EQ(used.param_bytes, planned.param_bytes) << summary;
    EXPECT_EQ(used.grad_bytes, planned.grad_bytes) << summary;
    EXPECT_EQ(used.state_bytes, planned.state_bytes) << summary;
    EXPECT_EQ(used.workspace_bytes, planned.workspace_bytes) << summary;
  });
}

struct Precision {
  DType dtype;
  Masters masters;
};

constexpr Precision kPrecisions[] = {
    {DType::kF32, Masters::kF32},
    {DType::kBF16, Masters::kF32},
    {DType::kBF16, Masters::kNoneNearest},
    {DType::kBF16, Masters::kNoneStochastic},
    {DType::kF16, Masters::kF32},
    {DType::kF16, Masters::kNoneNearest},
};

class EngineMemoryTest : public ::testing::TestWithParam<const char*> {};

TEST_P(EngineMemoryTest, IsWhatThePlanSays) {
  PlanOptions options;
  int turn = 0;
  for (const Precision& precision : kPrecisions) {
    const auto model = MakeModel(GetParam(), precision.dtype);
    const auto groups = PlanGroups(*model, GetParam());
    ASSERT_OK(groups);
    options.groups = *groups;
    options.masters = precision.masters;
    for (const Partition partition : {Partition::kEven, Partition::kGreedy,
                                      Partition::kBucket, Partition::kManual}) {
      options.partition = partition;
      options.bucket_bytes = 3000;
      for (int world_size = 1; world_size <= 3; ++world_size) {
        options.world_size = world_size;
        // The last rank owns the first parameter, rank 0 all others.
        options.manual_owners.assign(model->params().size(), 0);
        options.manual_owners[0] = world_size - 1;
        for (const int stage : {0, 1}) {
          // With a sanitizer, tries every eleventh combination.
          if (kSanitized && turn++ % 11 != 0) continue;
          options.stage = stage;
          options.f32_grads = stage == 0;
          const auto plan = Plan::Create(model, options);
          ASSERT_OK(plan);
          ExpectPlanned(*plan);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, EngineMemoryTest,
    ::testing::Values("adadelta", "adafactor", "adagrad", "adam",
                      "adam?states=q8&amsgrad=1", "adamax", "adamw",
                      "adamw?amsgrad=1", "adamw?profile=apex",
                      "adamw?states=bf16", "adamw?states=q8", "lamb", "lion",
                      "muon", "rmsprop?momentum=0.9&centered=1", "rprop", "sgd",
                      "sgd?momentum=0.9"),
    [](const auto& info) {
      std::string name = info.param;
      for (char& c : name) {
        if (std::isalnum(c) == 0) c = '_';
      }
      return name;
    });

// Memory that is private to a rank counts once for each rank.
TEST(HostMemoryTest, TheHostHasOneCopyOfParametersAndEveryRanksRest) {
  const auto model = ModelOf({{64, 64}}, DType::kBF16);
  PlanOptions options;
  options.world_size = 2;
  options.groups = *PlanGroups(*model, "lamb");
  options.masters = Masters::kNoneNearest;
  const auto plan = Plan::Create(model, options);
  ASSERT_OK(plan);
  const MemoryReport memory = (*plan)->Memory(true);
  // The workspace holds the parameter and a copy in fp32.
  EXPECT_EQ(memory.workspace_bytes, 2 * 64 * 64 * sizeof(float));
  EXPECT_EQ(memory.HostTotal(2, true),
            memory.param_bytes + 2 * (memory.grad_bytes + memory.state_bytes +
                                      memory.workspace_bytes));
}

}  // namespace
}  // namespace shard::plan_memory_test
