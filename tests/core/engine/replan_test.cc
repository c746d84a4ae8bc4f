// SPDX-License-Identifier: Apache-2.0
//
// Param groups and trainable parameters that change during a run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::replan_test {
namespace {

using std::string_view_literals::operator""sv;

using ::testing::HasSubstr;

struct Form {
  const char* name;
  int stage;
  const char* link;
  Partition partition;
  int world_size;
  int shard_group_size = 0;
};

constexpr Form kForms[] = {
    {"stage1", 1, "", Partition::kEven, 2},
    {"stage1_greedy", 1, "", Partition::kGreedy, 3},
    {"stage2", 2, "", Partition::kEven, 2},
    {"stage3", 3, "", Partition::kEven, 3},
    {"apart_stage1", 1, "direct=0", Partition::kEven, 2},
    {"apart_stage3", 3, "direct=0", Partition::kEven, 3},
    {"apart_stage3_greedy", 3, "direct=0", Partition::kGreedy, 2},
    {"apart_stage3_groups", 3, "direct=0", Partition::kEven, 4, 2},
};

class ReplanTest : public ::testing::TestWithParam<Form> {
 protected:
  static UnitTraining TrainingOf(DType dtype = DType::kF32) {
    const Form& form = GetParam();
    UnitTraining training;
    training.model = BlockModel(12, dtype);
    training.link = form.link;
    training.plan.stage = form.stage;
    training.plan.world_size = form.world_size;
    training.plan.shard_group_size = form.shard_group_size;
    training.plan.partition = form.partition;
    training.plan.deterministic = dtype == DType::kF32;
    return training;
  }

  // Calls `change(engine, step)` before each step. Returns the parameters after
  // the last step.
  static std::vector<std::vector<float>> Run(
      const UnitTraining& training, int steps,
      const std::function<void(Engine*, int)>& change) {
    std::vector<std::vector<float>> result;
    const auto plan = PlanOf(training);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    // The padding of parameters that are owned whole can take more than
    // sharding saves.
    if (training.plan.partition == Partition::kEven &&
        training.optimizer != "adafactor") {
      EXPECT_TRUE(ShardsAsItsStage(**plan));
    }
    RunThreadRanks(
        training.plan.world_size,
        [&](const auto& comm) {
          auto engine = CreateEngine(*plan, comm, training.engine);
          ASSERT_TRUE(engine.ok()) << engine.status().ToString();
          UnitTrainer trainer(training, engine->get());
          trainer.Fill();
          for (int step = 1; step <= steps; ++step) {
            change(engine->get(), step);
            trainer.Forward();
            trainer.Backward(step, true);
            StepReport report;
            const Status stepped = trainer.Step(&report);
            ASSERT_TRUE(stepped.ok()) << stepped.ToString();
            ASSERT_TRUE((*engine)->ZeroGrad().ok());
          }
          const bool shares = (*engine)->SharesTensors();
          EXPECT_EQ((*engine)->Memory().HostTotal(1, shares),
                    (*engine)
                        ->plan()
                        .Memory(shares, (*engine)->offload(),
                                ProcessorOf((*engine)->device().kind))
                        .HostTotal(1, shares));
          auto read = trainer.Read();
          if (comm->rank() == 0) result = std::move(read);
        },
        30, training.link);
    return result;
  }
};

// A change that changes nothing for the optimizer moves all states to new
// places.
TEST_P(ReplanTest, ThereAndBackChangesNothing) {
  for (const std::string optimizer :
       {"adamw", "adamw?states=bf16", "adamw?states=q8", "adafactor"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      // With a sanitizer, and in the short form on other devices, tries both
      // dtypes, one of them with the states that have most parts.
      const char* const tried =
          dtype == DType::kF32 ? "adamw" : "adamw?states=q8";
      if ((kSanitized || TriesFew()) && optimizer != tried) continue;
      SCOPED_TRACE(StrCat(optimizer, " ", DTypeName(dtype)));
      UnitTraining training = TrainingOf(dtype);
      training.optimizer = optimizer;
      const auto plain = Run(training, 4, [](Engine*, int) {});
      const auto changed = Run(training, 4, [](Engine* engine, int step) {
        if (step != 3) return;
        // The head's bias is the last parameter of the root.
        const auto last =
            static_cast<ParamId>(engine->plan().model().params().size() - 1);
        // A group of its own with the same optimizer moves all parameters.
        const auto group = engine->AddParamGroup("?"sv, std::vector{last}, 0);
        EXPECT_TRUE(group.ok()) << group.status().ToString();
        EXPECT_EQ(*group, 1);
      });
      EXPECT_EQ(changed, plain);
    }
  }
}

TEST_P(ReplanTest, FrozenParametersKeepTheirValues) {
  UnitTraining training = TrainingOf();
  std::vector<float> before;
  const ParamId frozen = 2;
  const auto result = Run(training, 4, [&](Engine* engine, int step) {
    if (step != 3) return;
    const Status status = engine->SetTrainable(std::vector{frozen}, false, 0);
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_TRUE(engine->Summon(kRootModule, kAllRanks, 0).ok());
    const auto tensor = engine->Param(frozen);
    if (engine->comm()->rank() == 0) {
      before = Load(DType::kF32, tensor->data, tensor->numel);
    }
    ASSERT_TRUE(engine->EndSummon(false, 0).ok());
    EXPECT_EQ(engine->Grad(frozen).status().code(),
              StatusCode::kFailedPrecondition);
  });
  EXPECT_EQ(result[frozen], before);
  const auto trained = Run(training, 4, [](Engine*, int) {});
  EXPECT_NE(result[frozen], trained[frozen]);
}

// A parameter that is trained from step 3 on is updated like one of a run that
// began there: its states are zeros, and its bias correction is that of a first
// step.
TEST_P(ReplanTest, UnfrozenParametersBeginAnew) {
  UnitTraining training = TrainingOf();
  training.optimizer = "adam?lr=0.01";
  const ParamId thawed = 2;
  ASSERT_TRUE(training.model->SetTrainable(thawed, false).ok());
  std::vector<float> first;
  const auto result = Run(training, 3, [&](Engine* engine, int step) {
    if (step != 3) return;
    ASSERT_TRUE(engine->SetTrainable(std::vector{thawed}, true, 0).ok());
  });
  // Adam's first step is very nearly lr times the gradient's sign.
  for (size_t i = 0; i < result[thawed].size(); ++i) {
    const float moved =
        result[thawed][i] - InitialValue(thawed, static_cast<int64_t>(i));
    EXPECT_NEAR(std::abs(moved), 0.01f, 1e-4f) << i;
  }
}

TEST_P(ReplanTest, NewGroupsHaveTheirOwnHyperparameters) {
  UnitTraining training = TrainingOf();
  training.optimizer = "sgd?lr=0.5";
  const auto result = Run(training, 2, [](Engine* engine, int step) {
    if (step == 1) {
      ASSERT_TRUE(engine->SetHyper(0, "lr", 0.25).ok());
    } else {
      ASSERT_TRUE(engine->AddParamGroup("?lr=0"sv, std::vector{1}, 0).ok());
      EXPECT_EQ(*engine->hypers().Get(0, "lr"), 0.25);
      EXPECT_EQ(*engine->hypers().Get(1, "lr"), 0.0);
    }
  });
  const auto one = Run(training, 1, [](Engine* engine, int) {
    ASSERT_TRUE(engine->SetHyper(0, "lr", 0.25).ok());
  });
  EXPECT_EQ(result[1], one[1]);
  EXPECT_NE(result[0], one[0]);
}

// An error has the same code on all ranks, and the engine works as before.
TEST_P(ReplanTest, ErrorsAreThoseOfAllRanks) {
  UnitTraining training = TrainingOf();
  const auto plain = Run(training, 3, [](Engine*, int) {});
  const auto result = Run(training, 3, [](Engine* engine, int step) {
    if (step != 2) return;
    const int rank = engine->comm()->rank();
    // The argument is wrong on one rank.
    Status status =
        engine->SetTrainable(std::vector{rank == 1 ? 99 : 1}, false, 0);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.ToString(), HasSubstr("99"));
    EXPECT_THAT(status.ToString(), HasSubstr("rank 1"));
    // A count that no array has is refused before an element is read.
    const ParamId one = 1;
    const size_t count = rank == 1 ? SIZE_MAX : 1;
    status = engine->SetTrainable(std::span(&one, count), false, 0);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.ToString(),
                AllOf(HasSubstr("18446744073709551615"), HasSubstr("rank 1")));
    status = engine->AddParamGroup("?"sv, std::span(&one, count), 0).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    // The lists differ between ranks.
    status = engine->SetTrainable(std::vector{rank == 1 ? 2 : 1}, false, 0);
    EXPECT_EQ(status.code(), StatusCode::kDesync);
    EXPECT_THAT(status.ToString(),
                AllOf(HasSubstr("the changed plan: trainable of parameter '"),
                      HasSubstr("rank 0 has "), HasSubstr("rank 1 has ")));
    const auto group = engine->AddParamGroup("?lr=1x"sv, std::vector{1}, 0);
    EXPECT_EQ(group.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(engine->SetTrainable({}, true, 0).code(),
              StatusCode::kInvalidArgument);
  });
  EXPECT_EQ(result, plain);
}

// One rank adds a group while the others train on.
TEST_P(ReplanTest, AChangeOnOneRankIsADesyncOnAll) {
  UnitTraining training = TrainingOf();
  const auto plan = PlanOf(training);
  ASSERT_TRUE(plan.ok());
  RunThreadRanks(
      training.plan.world_size,
      [&](const auto& comm) {
        auto engine = CreateEngine(*plan, comm, training.engine);
        ASSERT_TRUE(engine.ok());
        UnitTrainer trainer(training, engine->get());
        trainer.Fill();
        trainer.Forward();
        trainer.Backward(1, true);
        StepReport report;
        ASSERT_TRUE(trainer.Step(&report).ok());
        Status status;
        if (comm->rank() == 0) {
          status =
              (*engine)->AddParamGroup("?lr=1"sv, std::vector{1}, 0).status();
        } else {
          // The other ranks get the error from whichever call first meets rank
          // 0.
          const auto units = static_cast<int32_t>((*plan)->units().size());
          for (int32_t u = units; u-- > 0 && status.ok();) {
            status = (*engine)->UnitAcquire(u, Pass::kBackward, 0);
            if (status.ok()) status = (*engine)->MarkUnitGradsReady(u);
            if (status.ok()) status = (*engine)->UnitRelease(u);
          }
          if (status.ok()) status = trainer.Step(&report);
        }
        EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
        EXPECT_THAT(status.ToString(),
                    HasSubstr("rank 0 changes groups or trainable parameters"));
        // The error is final, because the ranks are out of step.
        EXPECT_EQ(trainer.Step(&report).code(), StatusCode::kDesync);
      },
      10, training.link);
}

INSTANTIATE_TEST_SUITE_P(Forms, ReplanTest, ::testing::ValuesIn(kForms),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace shard::replan_test
