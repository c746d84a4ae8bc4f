// SPDX-License-Identifier: Apache-2.0

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/params/full_params.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::summon_test {
namespace {

using ::testing::HasSubstr;

struct Form {
  const char* name;
  int stage;
  const char* link;
  int shard_group_size = 0;
};

constexpr Form kForms[] = {
    {"stage1", 1, ""},
    {"stage3", 3, ""},
    {"apart_stage1", 1, "direct=0"},
    {"apart_stage2_groups", 2, "direct=0", 2},
    {"apart_stage3", 3, "direct=0"},
    {"apart_stage3_groups", 3, "direct=0", 2},
};

constexpr int kWorldSize = 4;

class SummonTest : public ::testing::TestWithParam<Form> {
 protected:
  static UnitTraining TrainingOf(DType dtype = DType::kF32) {
    const Form& form = GetParam();
    UnitTraining training;
    training.model = BlockModel(20, dtype);
    training.link = form.link;
    training.plan.stage = form.stage;
    training.plan.world_size = kWorldSize;
    training.plan.shard_group_size = form.shard_group_size;
    return training;
  }

  // Calls `body` on every rank, after one step.
  static void Run(const UnitTraining& training,
                  const std::function<void(Engine*, UnitTrainer*)>& body) {
    const auto plan = PlanOf(training);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    EXPECT_TRUE(ShardsAsItsStage(**plan));
    RunThreadRanks(
        kWorldSize,
        [&](const auto& comm) {
          auto engine = CreateEngine(*plan, comm, training.engine);
          ASSERT_TRUE(engine.ok()) << engine.status().ToString();
          UnitTrainer trainer(training, engine->get());
          trainer.Fill();
          Step(&trainer, 1);
          body(engine->get(), &trainer);
        },
        30, training.link);
  }

  static void Step(UnitTrainer* trainer, int batch) {
    trainer->Forward();
    trainer->Backward(batch, true);
    StepReport report;
    const Status stepped = trainer->Step(&report);
    ASSERT_TRUE(stepped.ok()) << stepped.ToString();
  }

  // Returns the summoned parameters by ParamId; empty for a parameter that this
  // rank does not have.
  static std::vector<std::vector<float>> ReadSummoned(Engine* engine) {
    std::vector<std::vector<float>> values;
    const auto& params = engine->plan().model().params();
    for (size_t p = 0; p < params.size(); ++p) {
      const auto tensor = engine->Param(static_cast<ParamId>(p));
      values.emplace_back();
      if (!tensor.ok()) continue;
      values.back() = Load(params[p].dtype, tensor->data, tensor->numel);
    }
    return values;
  }
};

TEST_P(SummonTest, AllParametersOnAllRanks) {
  Run(TrainingOf(), [](Engine* engine, UnitTrainer* trainer) {
    const auto expected = trainer->Read();
    ASSERT_TRUE(engine->Summon(kRootModule, kAllRanks, 0).ok());
    EXPECT_EQ(ReadSummoned(engine), expected);
    ASSERT_TRUE(engine->EndSummon(false, 0).ok());
    EXPECT_EQ(trainer->Read(), expected);
  });
}

TEST_P(SummonTest, AModuleOnOneRank) {
  Run(TrainingOf(), [](Engine* engine, UnitTrainer* trainer) {
    const auto expected = trainer->Read();
    // Summons the second block, with the modules below it, and the head, whose
    // weight is the embedding's.
    const Model& model = engine->plan().model();
    for (size_t m = 1; m < model.modules().size(); ++m) {
      const auto module = static_cast<ModuleId>(m);
      const std::string fqn = model.ModuleFqn(module);
      if (fqn != "block1" && fqn != "head") continue;
      ASSERT_TRUE(engine->Summon(module, 2, 0).ok());
      const ParamId inside = fqn == "head" ? 0 : 4;
      const auto tensor = engine->Param(inside);
      if (engine->comm()->rank() == 2) {
        ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
        EXPECT_EQ(Load(DType::kF32, tensor->data, tensor->numel),
                  expected[static_cast<size_t>(inside)])
            << fqn;
      } else {
        EXPECT_EQ(tensor.status().code(), StatusCode::kFailedPrecondition);
        EXPECT_THAT(tensor.status().ToString(), HasSubstr("rank 2"));
      }
      ASSERT_TRUE(engine->EndSummon(false, 0).ok());
    }
  });
}

// Changes are lost without write_back. With write_back every rank reads them
// and trains on with them.
TEST_P(SummonTest, WriteBack) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int rank : {kAllRanks, 1}) {
      // Under a sanitizer, each dtype with one choice of ranks.
      if (kSanitized && (dtype == DType::kF32) != (rank == 1)) continue;
      for (const bool write_back : {false, true}) {
        SCOPED_TRACE(StrCat(DTypeName(dtype), " rank ", rank, " write_back ",
                            write_back ? 1 : 0));
        Run(TrainingOf(dtype), [&](Engine* engine, UnitTrainer* trainer) {
          auto expected = trainer->Read();
          ASSERT_TRUE(engine->Summon(kRootModule, rank, 0).ok());
          const auto& params = engine->plan().model().params();
          for (size_t p = 0; p < params.size(); ++p) {
            if (write_back) {
              for (float& value : expected[p]) value *= 2;
            }
            const auto tensor = engine->Param(static_cast<ParamId>(p));
            if (!tensor.ok()) continue;
            std::vector<float> values =
                Load(dtype, tensor->data, tensor->numel);
            for (float& value : values) value *= 2;
            Store(dtype, values, tensor->data);
          }
          ASSERT_TRUE(engine->EndSummon(write_back, 0).ok());
          EXPECT_EQ(trainer->Read(), expected);
          Step(trainer, 2);
        });
      }
    }
  }
}

// The master weights of parameters that the host did not change keep all their
// bits.
TEST_P(SummonTest, UntouchedMastersStay) {
  std::vector<std::vector<float>> plain;
  std::vector<std::vector<float>> summoned;
  for (const bool summon : {false, true}) {
    Run(TrainingOf(DType::kBF16), [&](Engine* engine, UnitTrainer* trainer) {
      if (summon) {
        ASSERT_TRUE(engine->Summon(kRootModule, kAllRanks, 0).ok());
        ASSERT_TRUE(engine->EndSummon(true, 0).ok());
      }
      for (int step = 2; step < (kSanitized ? 4 : 6); ++step) {
        Step(trainer, step);
      }
      auto read = trainer->Read();
      if (engine->comm()->rank() != 0) return;
      (summon ? summoned : plain) = std::move(read);
    });
  }
  EXPECT_EQ(summoned, plain);
}

TEST_P(SummonTest, NothingElseMeanwhile) {
  Run(TrainingOf(), [](Engine* engine, UnitTrainer* trainer) {
    ASSERT_TRUE(engine->Summon(kRootModule, kAllRanks, 0).ok());
    const auto expect = [](const Status& status) {
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
      EXPECT_THAT(status.ToString(), HasSubstr("SUMMON_FULL_PARAMS"));
    };
    StepReport report;
    expect(engine->Step(StepOptions(), &report));
    expect(engine->UnitAcquire(0, Pass::kForward, 0));
    expect(engine->Summon(kRootModule, kAllRanks, 0));
    expect(engine->SetTrainable(std::vector{1}, false, 0));
    // A host may pass any number as an id.
    for (const ParamId wrong : {-1, 1 << 30}) {
      EXPECT_EQ(engine->WritableParam(wrong).status().code(),
                StatusCode::kInvalidArgument);
    }
    ASSERT_TRUE(engine->EndSummon(false, 0).ok());
    const Status ended = engine->EndSummon(false, 0);
    expect(ended);
    Step(trainer, 2);
  });
}

TEST_P(SummonTest, ErrorsAreThoseOfAllRanks) {
  Run(TrainingOf(), [](Engine* engine, UnitTrainer* trainer) {
    const int rank = engine->comm()->rank();
    Status status = engine->Summon(rank == 3 ? 77 : 0, kAllRanks, 0);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.ToString(), HasSubstr("77"));
    status = engine->Summon(0, kWorldSize, 0);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    status = engine->Summon(rank == 3 ? 1 : 0, kAllRanks, 0);
    EXPECT_EQ(status.code(), StatusCode::kDesync);
    EXPECT_THAT(
        status.ToString(),
        HasSubstr("the arguments of summon: module: rank 0 has all, rank 3 "
                  "has '"));
    status = engine->Summon(0, rank == 0 ? 0 : kAllRanks, 0);
    EXPECT_EQ(status.code(), StatusCode::kDesync);
    EXPECT_EQ(status.rank(), 0);
    EXPECT_THAT(status.ToString(),
                HasSubstr("rank: rank 1 has -1, rank 0 has 0"));
    Step(trainer, 2);
  });
}

INSTANTIATE_TEST_SUITE_P(Forms, SummonTest, ::testing::ValuesIn(kForms),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

// Parameters are written back in pieces of 32768 elements. Masters of elements
// that changed follow, and no others, where pieces meet too.
TEST(WriteBackTest, MastersFollowWhereElementsChanged) {
  constexpr int64_t kNumel = 40'000;
  UnitTraining training;
  training.model = std::make_shared<Model>("Root");
  ASSERT_TRUE(
      training.model->AddParam(kRootModule, "p", DType::kBF16, {kNumel}).ok());
  training.wrap = "";
  const auto plan = PlanOf(training);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  RunThreadRanks(1, [&](const auto& comm) {
    const auto engine = CreateEngine(*plan, comm, training.engine);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    UnitTrainer trainer(training, engine->get());
    trainer.Fill();
    trainer.Forward();
    trainer.Backward(1, true);
    StepReport report;
    ASSERT_TRUE(trainer.Step(&report).ok());
    const EngineBuffer& buffer = (*engine)->memory().buffers()[0];
    const auto* masters = testing::KernelView(
        reinterpret_cast<const float*>(buffer.states.back()));
    std::vector<float> expected(masters, masters + kNumel);
    ASSERT_TRUE((*engine)->Summon(kRootModule, kAllRanks, 0).ok());
    const auto tensor = (*engine)->Param(0);
    ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
    std::vector<float> values = Load(DType::kBF16, tensor->data, kNumel);
    for (const size_t i : {0, 32'767, 32'768, 39'999}) {
      values[i] = 3;
      expected[i] = 3;
    }
    Store(DType::kBF16, values, tensor->data);
    ASSERT_TRUE((*engine)->EndSummon(true, 0).ok());
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), masters));
  });
}

}  // namespace
}  // namespace shard::summon_test
