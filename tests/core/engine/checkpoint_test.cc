// SPDX-License-Identifier: Apache-2.0
//
// Saves and loads of whole engines, compared bit by bit: every world size into
// every other, with any stage, partition, units and backend.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/file_env.h"
#include "core/base/strings.h"
#include "core/checkpoint/open_store.h"
#include "core/checkpoint/safetensors/safetensors_export.h"
#include "core/checkpoint/write_checkpoint.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/whole_state.h"
#include "tests/core/engine/worlds.h"

namespace shard::checkpoint_test {
namespace {

// Ranks that save, or train on after a load, in shard groups if that is not 0.
struct Ranks {
  int count;
  int group_size = 0;

  std::string Name() const {
    return StrCat("W", count, group_size > 0 ? "_groups" : "");
  }
};

// Returns a training of these ranks. In groups they shard parameters.
UnitTraining TrainingOf(const Ranks& ranks, int variant) {
  if (ranks.group_size == 0) return AwkwardTraining(ranks.count, variant);
  UnitTraining training = AwkwardTraining(ranks.count, 3);
  training.plan.partition = Partition::kEven;
  training.plan.shard_group_size = ranks.group_size;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  EXPECT_TRUE(plan.ok() && (*plan)->shards_params());
  return training;
}

class WorldSizesTest : public ::testing::TestWithParam<Ranks> {};

TEST_P(WorldSizesTest, LoadsIntoEveryOther) {
  const Ranks& ranks = GetParam();
  const int n = ranks.count;
  const testing::TempFolder folder;
  WholeState saved;
  Params params;
  SaveWorld(TrainingOf(ranks, n), 2, folder.path(), &saved, &params);
  ASSERT_FALSE(saved.tensors().empty());
  std::vector<Ranks> others;
  for (int m = 1; m <= 9; ++m) {
    if (kSanitized && m % 3 != n % 3) continue;
    // The short form on other devices: no number of ranks divides all others.
    if (!kSanitized && TriesFew() && m != 1 && m != 3 && m != 4) continue;
    others.push_back({m});
  }
  if (!kSanitized || n % 3 == 1) others.push_back({4, 2});
  ASSERT_FALSE(others.empty());
  for (const Ranks& other : others) {
    WholeState loaded;
    LoadWorld(TrainingOf(other, n + 2 * other.count), folder.path(), &loaded,
              params);
    EXPECT_TRUE(loaded == saved)
        << "into " << other.Name() << ": " << saved.Differences(loaded);
  }
}

INSTANTIATE_TEST_SUITE_P(Saved, WorldSizesTest,
                         ::testing::Values(Ranks{1}, Ranks{2}, Ranks{3},
                                           Ranks{4}, Ranks{5}, Ranks{6},
                                           Ranks{7}, Ranks{8}, Ranks{9},
                                           Ranks{4, 2}),
                         [](const auto& info) { return info.param.Name(); });

struct Stopped {
  const char* name;
  const char* optimizer;
  Ranks ranks = {3};
};

class ResumeTest : public ::testing::TestWithParam<Stopped> {};

// A run that stops and resumes ends with the same bits as one that does not
// stop.
TEST_P(ResumeTest, ContinuesBitIdentically) {
  const Stopped& run = GetParam();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool async : {false, true}) {
      if (kSanitized && async != (dtype == DType::kBF16)) continue;
      const testing::TempFolder folder;
      UnitTraining training = TrainingOf(run.ranks, async ? 3 : 2);
      training.model = AwkwardModel(dtype);
      training.optimizer = run.optimizer;
      training.engine.loss_scaler =
          *LossScaler::Parse("dynamic?init_scale=1024&growth_interval=3");
      WholeState whole;
      const SaveOptions save = {.async = async};
      RunWorld(training, 2, [&](Engine* engine, UnitTrainer* trainer) {
        const auto saved = engine->Save(folder.path(), save);
        ASSERT_OK(saved);
        TrainSteps(3, 4, engine, trainer);
        whole.Add(*engine);
      });
      WholeState resumed;
      RunWorld(training, 0, [&](Engine* engine, UnitTrainer* trainer) {
        LoadReport report;
        ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
        EXPECT_EQ(report.step, 2);
        EXPECT_EQ(report.saved_world_size, run.ranks.count);
        TrainSteps(3, 4, engine, trainer);
        resumed.Add(*engine);
      });
      EXPECT_TRUE(resumed == whole)
          << DTypeName(dtype) << (async ? " async: " : ": ")
          << whole.Differences(resumed);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runs, ResumeTest,
    ::testing::Values(Stopped{"adamw", "adamw"},
                      Stopped{"amsgrad", "adam?amsgrad=1"},
                      Stopped{"momentum", "sgd?momentum=0.9"},
                      Stopped{"bf16_states", "adamw?states=bf16"},
                      Stopped{"q8_states", "adamw?states=q8"},
                      Stopped{"adafactor", "adafactor"},
                      Stopped{"lamb", "lamb"},
                      Stopped{"groups", "adamw", {4, 2}}),
    [](const auto& info) { return std::string(info.param.name); });

// Checkpoints that were written without an engine load like those that an
// engine saved.
TEST(CheckpointTest, LoadsReshardedAndExportedCheckpoints) {
  const testing::TempFolder folder;
  WholeState saved;
  Params params;
  SaveWorld(AwkwardTraining(3, 1), 2, folder.path(), &saved, &params);
  FileEnv* const env = FileEnv::Posix();
  const auto opened = OpenTensorStore(env, folder.path());
  ASSERT_OK(opened);
  const FileStore& store = *opened->store;
  for (const int files : {1, 5}) {
    const std::string root = StrCat(folder.path(), "/", files);
    const WriteCheckpointOptions options = {.world_size = files};
    ASSERT_OK(WriteCheckpoint(env, store, root, options));
    WholeState loaded;
    LoadWorld(AwkwardTraining(2, files), root, &loaded, params);
    EXPECT_TRUE(loaded == saved) << files << ": " << saved.Differences(loaded);
  }

  std::vector<size_t> model;
  for (size_t t = 0; t < store.num_tensors(); ++t) {
    if (store.tensor(t).role == TensorRole::kParam) model.push_back(t);
  }
  const std::string file = folder.path() + "/model.safetensors";
  ASSERT_OK(ExportSafetensors(env, store, model, file, {}));
  WholeState ignored;
  const LoadOptions options = {.state = {.content = StateContent::kModel}};
  LoadWorld(AwkwardTraining(4, 3), file, &ignored, params, options);
}

}  // namespace
}  // namespace shard::checkpoint_test
