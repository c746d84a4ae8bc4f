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

TEST(CheckpointTest, LoadsEveryWorldSizeIntoEveryOther) {
  for (int n = 1; n <= 9; ++n) {
    const testing::TempFolder folder;
    WholeState saved;
    Params params;
    SaveWorld(AwkwardTraining(n, n), 2, folder.path(), &saved, &params);
    ASSERT_FALSE(saved.tensors().empty());
    for (int m = 1; m <= 9; ++m) {
      if (kSanitized && m % 3 != n % 3) continue;
      WholeState loaded;
      LoadWorld(AwkwardTraining(m, n + 2 * m), folder.path(), &loaded, params);
      EXPECT_TRUE(loaded == saved)
          << n << " into " << m << ": " << saved.Differences(loaded);
    }
  }
}

// A run that stops and resumes ends with the same bits as one that does not
// stop.
TEST(CheckpointTest, ResumeContinuesBitIdentically) {
  for (const char* optimizer :
       {"adamw", "adam?amsgrad=1", "sgd?momentum=0.9", "adamw?states=bf16",
        "adamw?states=q8", "adafactor", "lamb"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const bool async : {false, true}) {
        if (kSanitized && async != (dtype == DType::kBF16)) continue;
        const testing::TempFolder folder;
        UnitTraining training = AwkwardTraining(3, async ? 3 : 2);
        training.model = AwkwardModel(dtype);
        training.optimizer = optimizer;
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
          EXPECT_EQ(report.saved_world_size, 3);
          TrainSteps(3, 4, engine, trainer);
          resumed.Add(*engine);
        });
        EXPECT_TRUE(resumed == whole)
            << optimizer << " " << DTypeName(dtype)
            << (async ? " async: " : ": ") << whole.Differences(resumed);
      }
    }
  }
}

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
