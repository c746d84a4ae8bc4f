// SPDX-License-Identifier: Apache-2.0

#include "core/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/optim/groups.h"
#include "core/optim/optimizer.h"
#include "tests/core/engine/adamw_reference.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/thread_ranks.h"

namespace shard::engine_test {
namespace {

using testing::AdamWReference;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using CommPtr = std::shared_ptr<Communicator>;

// Sizes that no world size divides, a scalar, an empty tensor, and one of fewer
// elements than ranks.
const std::vector<std::vector<int64_t>> kShapes = {
    {33, 7}, {5}, {}, {0, 4}, {129}, {2, 3, 4}, {1}};

std::shared_ptr<Model> MakeModel() {
  auto model = std::make_shared<Model>("Test");
  for (size_t i = 0; i < kShapes.size(); ++i) {
    const auto param =
        model->AddParam(kRootModule, StrCat("p", i), DType::kF32, kShapes[i]);
    EXPECT_TRUE(param.ok()) << param.status().ToString();
  }
  return model;
}

StatusOr<std::shared_ptr<const Plan>> MakePlan(
    int world_size, const std::string& optimizer_text, int stage = 1,
    Partition partition = Partition::kEven,
    std::shared_ptr<const Model> model = MakeModel()) {
  PlanOptions options;
  options.stage = stage;
  options.world_size = world_size;
  options.partition = partition;
  SHARD_ASSIGN_OR_RETURN(options.groups, PlanGroups(*model, optimizer_text));
  return Plan::Create(std::move(model), options);
}

float Initial(int param, int64_t i) {
  return static_cast<float>(std::sin(param * 31 + i * 0.7));
}

float Gradient(int rank, int step, int param, int64_t i) {
  return static_cast<float>(std::cos(rank * 3 + step * 5 + param * 7 + i));
}

// Returns f(p, i) for every element i of every parameter p.
template <typename F>
AdamWReference::Tensors ForEachElement(F f) {
  AdamWReference::Tensors tensors(kShapes.size());
  for (size_t p = 0; p < kShapes.size(); ++p) {
    int64_t numel = 1;
    for (const int64_t dim : kShapes[p]) numel *= dim;
    for (int64_t i = 0; i < numel; ++i) {
      tensors[p].push_back(f(static_cast<int>(p), i));
    }
  }
  return tensors;
}

// Returns the mean of the ranks' gradients.
AdamWReference::Tensors MeanGradients(int step, int world_size) {
  return ForEachElement([&](int p, int64_t i) {
    double sum = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      sum += static_cast<double>(Gradient(rank, step, p, i));
    }
    return sum / world_size;
  });
}

void FillParams(Engine* engine) {
  for (int p = 0; p < static_cast<int>(kShapes.size()); ++p) {
    const auto tensor = engine->Param(p);
    ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
    std::vector<float> values;
    for (int64_t i = 0; i < tensor->numel; ++i) values.push_back(Initial(p, i));
    const Status set =
        engine->SetParam(p, values.data(), values.size() * sizeof(float));
    ASSERT_TRUE(set.ok()) << set.ToString();
  }
}

void FillGrads(Engine* engine, int rank, int step) {
  for (int p = 0; p < static_cast<int>(kShapes.size()); ++p) {
    const auto tensor = engine->Grad(p);
    ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
    auto* data = FloatsOf(*tensor);
    for (int64_t i = 0; i < tensor->numel; ++i) {
      data[i] = Gradient(rank, step, p, i);
    }
  }
}

struct Case {
  int world_size;
  int stage;
  Partition partition;
  double max_grad_norm;
};

class EngineStepTest : public ::testing::TestWithParam<Case> {};

TEST_P(EngineStepTest, MatchesOneRankInDouble) {
  const Case c = GetParam();
  const std::string text =
      "adamw?lr=0.05&beta1=0.8&beta2=0.95&weight_decay=0.1";
  RunThreadRanks(c.world_size, [&](const CommPtr& comm) {
    const auto plan = MakePlan(c.world_size, text, c.stage, c.partition);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    auto engine = CreateEngine(*plan, comm);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    FillParams(engine->get());
    ASSERT_TRUE((*engine)->BroadcastParams(0).ok());

    AdamWReference reference(
        Optimizer::Parse(text)->hypers(),
        ForEachElement([](int p, int64_t i) { return double{Initial(p, i)}; }));
    for (int step = 1; step <= 5; ++step) {
      FillGrads(engine->get(), comm->rank(), step);
      const StepOptions options = {.max_grad_norm = c.max_grad_norm};
      StepReport report;
      const Status stepped = (*engine)->Step(options, &report);
      ASSERT_TRUE(stepped.ok()) << stepped.ToString();
      const double norm = reference.Step(
          step, MeanGradients(step, c.world_size), c.max_grad_norm);
      EXPECT_EQ(report.step, step);
      EXPECT_FALSE(report.skipped);
      if (c.max_grad_norm > 0) {
        EXPECT_NEAR(report.grad_norm, norm, 1e-6 * norm);
      } else {
        EXPECT_EQ(report.grad_norm, -1);
      }
      EXPECT_GT(report.bytes_moved, 0u);
    }
    for (int p = 0; p < static_cast<int>(kShapes.size()); ++p) {
      const auto tensor = (*engine)->Param(p);
      ASSERT_TRUE(tensor.ok());
      const auto* data = FloatsOf(*tensor);
      for (int64_t i = 0; i < tensor->numel; ++i) {
        const double expected =
            reference.param(static_cast<size_t>(p), static_cast<size_t>(i));
        ASSERT_NEAR(static_cast<double>(data[i]), expected,
                    2e-5 * (1 + std::abs(expected)))
            << "parameter " << p << " element " << i;
      }
    }
  });
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int world_size : {1, 2, 3, 4, 7}) {
    for (const int stage : {0, 1}) {
      for (const Partition partition :
           {Partition::kEven, Partition::kGreedy, Partition::kBucket}) {
        for (const double max_grad_norm : {0.0, 0.5}) {
          cases.push_back({world_size, stage, partition, max_grad_norm});
        }
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, EngineStepTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           const Case& c = info.param;
                           return StrCat("W", c.world_size, "Stage", c.stage,
                                         "Partition", c.partition,
                                         c.max_grad_norm > 0 ? "Clipped" : "");
                         });

// Two runs give the same bits, and so do other stages and partitions, whose
// arithmetic per element is the same.
TEST(EngineTest, RunsAreBitIdentical) {
  const auto run = [](int stage, Partition partition) {
    std::vector<float> result;
    std::mutex mutex;
    RunThreadRanks(3, [&](const CommPtr& comm) {
      const auto plan = MakePlan(3, "adamw?lr=0.01", stage, partition);
      ASSERT_TRUE(plan.ok());
      auto engine = CreateEngine(*plan, comm);
      ASSERT_TRUE(engine.ok()) << engine.status().ToString();
      FillParams(engine->get());
      ASSERT_TRUE((*engine)->BroadcastParams(0).ok());
      for (int step = 1; step <= 3; ++step) {
        FillGrads(engine->get(), comm->rank(), step);
        StepReport report;
        ASSERT_TRUE((*engine)->Step(StepOptions(), &report).ok());
      }
      if (comm->rank() != 1) return;
      std::lock_guard<std::mutex> lock(mutex);
      for (int p = 0; p < static_cast<int>(kShapes.size()); ++p) {
        const auto tensor = (*engine)->Param(p);
        const auto* data = FloatsOf(*tensor);
        result.insert(result.end(), data, data + tensor->numel);
      }
    });
    return result;
  };
  const std::vector<float> first = run(1, Partition::kEven);
  ASSERT_FALSE(first.empty());
  EXPECT_EQ(first, run(1, Partition::kEven));
  EXPECT_EQ(first, run(0, Partition::kEven));
  EXPECT_EQ(first, run(1, Partition::kGreedy));
}

TEST(EngineTest, NonFiniteGradientsSkipTheStepOnAllRanks) {
  RunThreadRanks(2, [](const CommPtr& comm) {
    const auto plan = MakePlan(2, "sgd?lr=0.5");
    ASSERT_TRUE(plan.ok());
    auto engine = CreateEngine(*plan, comm);
    ASSERT_TRUE(engine.ok());
    FillParams(engine->get());
    ASSERT_TRUE((*engine)->BroadcastParams(0).ok());
    FillGrads(engine->get(), comm->rank(), 1);
    auto* gradient = FloatsOf(*(*engine)->Grad(0));
    if (comm->rank() == 1) {
      gradient[3] = std::numeric_limits<float>::infinity();
    }
    const StepOptions options = {.skip_nonfinite = true};
    StepReport report;
    ASSERT_TRUE((*engine)->Step(options, &report).ok());
    EXPECT_TRUE(report.skipped);
    EXPECT_EQ(report.step, 0);
    const auto* param = FloatsOf(*(*engine)->Param(0));
    EXPECT_EQ(param[3], Initial(0, 3));
    EXPECT_EQ(param[0], Initial(0, 0));

    // Both ranks read the parameters before the next step changes them.
    ASSERT_TRUE(comm->Barrier("looked", Deadline::After(30)).ok());
    FillGrads(engine->get(), comm->rank(), 1);
    ASSERT_TRUE((*engine)->Step(options, &report).ok());
    EXPECT_FALSE(report.skipped);
    EXPECT_EQ(report.step, 1);
    EXPECT_NE(param[3], Initial(0, 3));
  });
}

TEST(EngineTest, DivisorLossScaleAndLrAreApplied) {
  RunThreadRanks(2, [](const CommPtr& comm) {
    const auto plan = MakePlan(2, "sgd?lr=1");
    ASSERT_TRUE(plan.ok());
    auto engine = CreateEngine(*plan, comm);
    ASSERT_TRUE(engine.ok());
    ASSERT_TRUE((*engine)->BroadcastParams(0).ok());
    FloatsOf(*(*engine)->Grad(1))[2] = 64;
    ASSERT_TRUE((*engine)->SetHyper(kAllGroups, "lr", 0.5).ok());
    const StepOptions options = {.grad_divisor = 4, .loss_scale = 16};
    StepReport report;
    ASSERT_TRUE((*engine)->Step(options, &report).ok());
    const auto* param = FloatsOf(*(*engine)->Param(1));
    // (64 + 64) / (4 * 16) * 0.5
    EXPECT_EQ(param[2], -1.0f);

    // The engine keeps the learning rate; a cleared gradient changes nothing.
    ASSERT_TRUE(comm->Barrier("looked", Deadline::After(30)).ok());
    EXPECT_TRUE((*engine)->ZeroGrad().ok());
    ASSERT_TRUE((*engine)->Step(StepOptions(), &report).ok());
    EXPECT_EQ(param[2], -1.0f);
    ASSERT_TRUE(comm->Barrier("looked", Deadline::After(30)).ok());
    FloatsOf(*(*engine)->Grad(1))[2] = 2;
    ASSERT_TRUE((*engine)->Step(StepOptions(), &report).ok());
    EXPECT_EQ(param[2], -2.0f);
  });
}

TEST(EngineTest, FrozenParametersKeepTheirValues) {
  RunThreadRanks(2, [](const CommPtr& comm) {
    auto model = MakeModel();
    ASSERT_TRUE(model->SetTrainable(0, false).ok());
    const auto plan = MakePlan(2, "adamw", 1, Partition::kEven, model);
    ASSERT_TRUE(plan.ok());
    auto engine = CreateEngine(*plan, comm);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    FillParams(engine->get());
    ASSERT_TRUE((*engine)->BroadcastParams(0).ok());
    EXPECT_EQ((*engine)->Grad(0).status().code(),
              StatusCode::kFailedPrecondition);
    StepReport report;
    ASSERT_TRUE((*engine)->Step(StepOptions(), &report).ok());
    const auto* param = FloatsOf(*(*engine)->Param(0));
    for (int64_t i = 0; i < 33 * 7; ++i) ASSERT_EQ(param[i], Initial(0, i));
  });
}

TEST(EngineTest, OptionsThatDifferAreADesyncOnAllRanks) {
  RunThreadRanks(3, [](const CommPtr& comm) {
    const auto plan = MakePlan(3, "adamw");
    ASSERT_TRUE(plan.ok());
    auto engine = CreateEngine(*plan, comm);
    ASSERT_TRUE(engine.ok());
    ASSERT_TRUE((*engine)->BroadcastParams(0).ok());
    const StepOptions options = {.max_grad_norm =
                                     comm->rank() == 2 ? 0.5 : 0.25};
    StepReport report;
    const Status status = (*engine)->Step(options, &report);
    EXPECT_EQ(status.code(), StatusCode::kDesync);
    EXPECT_EQ(status.rank(), 2);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("max_grad_norm"), HasSubstr("0.25"),
                      HasSubstr("rank 2 has 0.5")));
  });
}

TEST(EngineTest, PlansThatDifferAreADesyncOnAllRanks) {
  RunThreadRanks(3, [](const CommPtr& comm) {
    const auto plan =
        MakePlan(3, comm->rank() == 1 ? "adamw?lr=0.5" : "adamw?lr=0.25");
    ASSERT_TRUE(plan.ok());
    const auto engine = CreateEngine(*plan, comm);
    EXPECT_EQ(engine.status().code(), StatusCode::kDesync);
    EXPECT_EQ(engine.status().rank(), 1);
    EXPECT_THAT(engine.status().message(),
                HasSubstr("the plan: lr of param group 0: rank 0 has 0.25, "
                          "rank 1 has 0.5"));
  });
}

// The error has the same code on all ranks, and training goes on.
TEST(EngineTest, AWrongOptionOnOneRankIsAnErrorOnAllAndChangesNothing) {
  RunThreadRanks(3, [](const CommPtr& comm) {
    const auto plan = MakePlan(3, "adamw");
    ASSERT_TRUE(plan.ok());
    auto engine = CreateEngine(*plan, comm);
    ASSERT_TRUE(engine.ok());
    StepReport report;
    const Status early = (*engine)->Step(StepOptions(), &report);
    EXPECT_EQ(early.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(early.message(), HasSubstr("broadcast"));
    ASSERT_TRUE((*engine)->BroadcastParams(0).ok());

    StepOptions options;
    if (comm->rank() == 1) options.max_grad_norm = -3;
    const Status status = (*engine)->Step(options, &report);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.rank(), 1);
    EXPECT_THAT(status.message(), HasSubstr("max_grad_norm=-3"));

    // The scale of the gradients cannot be held in fp32.
    for (const double divisor : {1e-45, 1e60}) {
      options = StepOptions();
      options.grad_divisor = divisor;
      EXPECT_EQ((*engine)->Step(options, &report).code(),
                StatusCode::kInvalidArgument);
    }

    EXPECT_TRUE((*engine)->Step(StepOptions(), &report).ok());
    EXPECT_EQ(report.step, 1);
  });
}

TEST(EngineTest, ParametersWithoutElementsUseNoMemory) {
  RunThreadRanks(2, [](const CommPtr& comm) {
    auto model = std::make_shared<Model>("Empty");
    ASSERT_TRUE(model->AddParam(kRootModule, "p", DType::kF32, {0, 3}).ok());
    const auto plan = MakePlan(2, "adamw", 1, Partition::kEven, model);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    auto engine = CreateEngine(*plan, comm);
    ASSERT_TRUE(engine.ok());
    ASSERT_TRUE((*engine)->BroadcastParams(0).ok());
    StepReport report;
    ASSERT_TRUE((*engine)->Step(StepOptions(), &report).ok());
    EXPECT_EQ(report.bytes_moved, 0u);
    EXPECT_EQ((*plan)->Memory(true).HostTotal(2, true), 0u);
    EXPECT_EQ((*engine)->Memory().HostTotal(2, true), 0u);
  });
}

TEST(EngineTest, RefusesUnsupportedPlansOnAllRanks) {
  RunThreadRanks(2, [](const CommPtr& comm) {
    const auto wrong_size = MakePlan(4, "adamw");
    ASSERT_TRUE(wrong_size.ok());
    const auto refused = CreateEngine(*wrong_size, comm);
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.status().message(),
                AllOf(HasSubstr("world size 4"), HasSubstr("has 2")));
    auto model = MakeModel();
    ASSERT_TRUE(model->AddParam(kRootModule, "wide", DType::kF64, {3}).ok());
    const auto mixed = MakePlan(2, "adamw", 1, Partition::kEven, model);
    ASSERT_TRUE(mixed.ok());
    const auto wide = CreateEngine(*mixed, comm);
    EXPECT_EQ(wide.status().code(), StatusCode::kUnimplemented);
    EXPECT_THAT(wide.status().message(),
                AllOf(HasSubstr("'wide'"), HasSubstr("f64")));
  });
}

TEST(EngineTest, ArgumentsAreChecked) {
  RunThreadRanks(1, [](const CommPtr& comm) {
    auto model = MakeModel();
    ASSERT_TRUE(model->IgnoreParam(4).ok());
    const auto plan = MakePlan(1, "adamw", 1, Partition::kEven, model);
    ASSERT_TRUE(plan.ok());
    auto engine = CreateEngine(*plan, comm);
    ASSERT_TRUE(engine.ok());
    EXPECT_THAT((*engine)->Param(7).status().message(),
                AllOf(HasSubstr("7"), HasSubstr("has 7")));
    EXPECT_EQ((*engine)->Param(-1).status().code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ((*engine)->Param(4).status().code(),
              StatusCode::kFailedPrecondition);
    const float value[5] = {};
    const Status wrong = (*engine)->SetParam(1, value, 16);
    EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(wrong.message(), AllOf(HasSubstr("20"), HasSubstr("16")));
    ASSERT_TRUE((*engine)->BroadcastParams(0).ok());
    EXPECT_EQ((*engine)->SetParam(1, value, 20).code(),
              StatusCode::kFailedPrecondition);
    EXPECT_EQ((*engine)->BroadcastParams(0).code(),
              StatusCode::kFailedPrecondition);
  });
}

TEST(EngineTest, AllocatesThePredictedBytes) {
  for (const int stage : {0, 1}) {
    RunThreadRanks(3, [&](const CommPtr& comm) {
      const auto plan = MakePlan(3, "adamw", stage, Partition::kGreedy);
      ASSERT_TRUE(plan.ok());
      auto engine = CreateEngine(*plan, comm);
      ASSERT_TRUE(engine.ok());
      const MemoryReport predicted = (*plan)->Memory(true);
      const MemoryReport measured = (*engine)->Memory();
      EXPECT_EQ(measured.param_bytes, predicted.param_bytes);
      EXPECT_EQ(measured.grad_bytes, predicted.grad_bytes);
      EXPECT_EQ(measured.state_bytes, predicted.state_bytes);
    });
  }
}

TEST(EngineTest, ManyWarningsOfThePlanAreCounted) {
  auto model = std::make_shared<Model>();
  for (int u = 0; u < 20; ++u) {
    const ModuleId module =
        *model->AddModule(kRootModule, StrCat("m", u), "Block");
    ASSERT_TRUE(model->AddParam(module, "w", DType::kF32, {4}).ok());
    const ParamId frozen = *model->AddParam(module, "f", DType::kF32, {4});
    ASSERT_TRUE(model->SetTrainable(frozen, false).ok());
  }
  PlanOptions options;
  options.groups = *PlanGroups(*model, "sgd");
  options.wrap = *WrapPolicy::Parse("class?names=Block");
  const auto plan = Plan::Create(model, options);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  ASSERT_EQ((*plan)->Warnings().size(), 20u);
  std::vector<std::string> lines;
  CommOptions comm_options;
  comm_options.logger = Logger(
      [](int32_t, const char* message, void* log) {
        static_cast<std::vector<std::string>*>(log)->emplace_back(message);
      },
      LogLevel::kWarning, &lines);
  const auto comm = OpenCommunicator("local:", comm_options);
  ASSERT_TRUE(comm.ok());
  const auto engine = CreateEngine(*plan, *comm);
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  ASSERT_EQ(lines.size(), 9u);
  EXPECT_EQ(lines[7], (*plan)->Warnings()[7]);
  EXPECT_THAT(lines[8], HasSubstr("12 more warnings"));

  // A change of the plan logs only the warnings that are new.
  lines.clear();
  ASSERT_TRUE((*engine)->BroadcastParams(10).ok());
  Status changed = (*engine)->SetTrainable(std::vector{0}, false, 10);
  ASSERT_TRUE(changed.ok()) << changed.ToString();
  EXPECT_EQ((*engine)->plan().Warnings().size(), 19u);
  EXPECT_THAT(lines, IsEmpty());
  changed = (*engine)->SetTrainable(std::vector{0}, true, 10);
  ASSERT_TRUE(changed.ok()) << changed.ToString();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], (*engine)->plan().Warnings()[0]);
}

}  // namespace
}  // namespace shard::engine_test
