// SPDX-License-Identifier: Apache-2.0
//
// Saves and loads of state other than tensors: step numbers, hyperparameters,
// the loss scale, blobs of the host.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/checkpoint_options.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/whole_state.h"
#include "tests/core/engine/worlds.h"

namespace shard::checkpoint_numbers_test {
namespace {

// Returns the step number of tensor `key` in a checkpoint that this engine
// saves.
int64_t StepOf(Engine* engine, const std::string& root,
               const std::string& key) {
  SaveOptions save = Quick();
  save.overwrite = true;
  EXPECT_OK(engine->Save(root, save));
  const auto store = OpenIn(root);
  EXPECT_OK(store);
  const int64_t tensor = (*store)->Find(key);
  EXPECT_GE(tensor, 0) << key;
  return (*store)->manifest()->tensor_step(static_cast<size_t>(tensor));
}

TEST(CheckpointNumbersTest, LoadsWithMoreOrFewerTrainableParameters) {
  const UnitTraining less = AwkwardTraining(2, 2);
  UnitTraining more = less;
  more.model = AwkwardModel();
  ASSERT_OK(more.model->SetTrainable(kFrozen, true));
  const LoadOptions lax = {.rules = {.strict = false}};

  const testing::TempFolder folder, again;
  WholeState whole;
  Params params;
  SaveWorld(less, 3, folder.path(), &whole, &params, Quick());
  RunWorld(more, 0, [&](Engine* engine, UnitTrainer* trainer) {
    LoadReport report;
    ExpectError(engine->Load(folder.path(), LoadOptions(), &report),
                StatusCode::kFailedPrecondition,
                {"2 missing: state.block.frozen.exp_avg", "0 unexpected"});
    ASSERT_OK(engine->Load(folder.path(), lax, &report));
    EXPECT_EQ(report.match.missing.size(), 2u);
    // The frozen parameter has no saved state, so its steps count from 0.
    EXPECT_EQ(StepOf(engine, again.path(), "block.frozen"), 0);
    EXPECT_EQ(StepOf(engine, again.path(), "block.big"), 3);
    TrainSteps(4, 4, engine, trainer);
    EXPECT_EQ(StepOf(engine, again.path(), "block.frozen"), 1);
    EXPECT_EQ(StepOf(engine, again.path(), "weight"), 4);
  });

  const testing::TempFolder back;
  SaveWorld(more, 2, back.path(), &whole, &params, Quick());
  RunWorld(less, 0, [&](Engine* engine, UnitTrainer* trainer) {
    LoadReport report;
    ExpectError(engine->Load(back.path(), LoadOptions(), &report),
                StatusCode::kFailedPrecondition,
                {"0 missing", "2 unexpected: state.block.frozen.exp_avg"});
    ASSERT_OK(engine->Load(back.path(), lax, &report));
    EXPECT_EQ(trainer->Read(), params);
    TrainSteps(3, 3, engine, trainer);
  });
}

// Takes a step in which only `params` have gradients.
void StepSome(Engine* engine, const std::set<ParamId>& params) {
  for (const ParamId param : params) {
    const int32_t unit = engine->plan().UnitOf(param);
    ASSERT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
    const auto grad = engine->Grad(param);
    ASSERT_OK(grad);
    for (int64_t i = 0; i < grad->numel; ++i) {
      FloatsOf(*grad)[i] = 0.5f;
    }
    ASSERT_OK(engine->MarkParamGradReady(param));
    ASSERT_OK(engine->UnitRelease(unit));
  }
  StepReport report;
  ASSERT_OK(engine->Step(StepOptions(), &report));
  ASSERT_OK(engine->ZeroGrad());
}

TEST(CheckpointNumbersTest, EachParameterKeepsItsStepCount) {
  for (const char* optimizer : {"adamw", "sgd"}) {
    UnitTraining training = AwkwardTraining(2, 2);
    training.optimizer = optimizer;
    training.wrap = "";
    training.plan.stage = 1;
    training.engine.missing_grads = MissingGrads::kSkip;
    const testing::TempFolder folder, again;
    WholeState whole, resumed;
    RunWorld(training, 0, [&](Engine* engine, UnitTrainer* trainer) {
      trainer->Fill();
      StepSome(engine, {kWeight, kBig});
      StepSome(engine, {kBig});
      ASSERT_OK(engine->Save(folder.path(), Quick()));
      StepSome(engine, {kWeight, kBias, kBig});
      whole.Add(*engine);
    });
    RunWorld(training, 0, [&](Engine* engine, UnitTrainer*) {
      LoadReport report;
      ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
      EXPECT_EQ(StepOf(engine, again.path(), "weight"), 1);
      EXPECT_EQ(StepOf(engine, again.path(), "block.big"), 2);
      EXPECT_EQ(StepOf(engine, again.path(), "block.bias"), 0);
      StepSome(engine, {kWeight, kBias, kBig});
      resumed.Add(*engine);
    });
    EXPECT_TRUE(whole == resumed)
        << optimizer << ": " << whole.Differences(resumed);
  }
}

// Collects the messages that an engine logs.
class Log {
 public:
  Logger logger() {
    return Logger(
        [](int32_t, const char* message, void* log) {
          auto* const self = static_cast<Log*>(log);
          const std::lock_guard<std::mutex> lock(self->mutex_);
          self->text_ += std::string(message) + "\n";
        },
        LogLevel::kWarning, this);
  }
  std::string text() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

std::unique_ptr<Engine> LocalEngine(const UnitTraining& training, Log* log) {
  const CommOptions options = {
      .rank = 0, .world_size = 1, .logger = log->logger()};
  const auto comm = OpenCommunicator("local:", options);
  EXPECT_OK(comm);
  auto engine = CreateEngine(*PlanOf(training), *comm, training.engine);
  EXPECT_OK(engine);
  return *std::move(engine);
}

TEST(CheckpointNumbersTest, RestoresHyperparametersAndLossScale) {
  for (const char* optimizer : {"adamw", "sgd"}) {
    UnitTraining training = AwkwardTraining(1, 1);
    training.optimizer = optimizer;
    training.engine.loss_scaler = *LossScaler::Parse("dynamic?init_scale=64");
    const testing::TempFolder folder;
    Log log;
    {
      const auto engine = LocalEngine(training, &log);
      UnitTrainer(training, engine.get()).Fill();
      ASSERT_OK(engine->SetHyper(0, "lr", 0.0625));
      ASSERT_OK(engine->Save(folder.path(), Quick()));
    }
    training.engine.loss_scaler = *LossScaler::Parse("dynamic?init_scale=8");
    const auto same = LocalEngine(training, &log);
    LoadReport report;
    ASSERT_OK(same->Load(folder.path(), LoadOptions(), &report));
    EXPECT_EQ(*same->hypers().Get(0, "lr"), 0.0625) << optimizer;
    EXPECT_EQ(same->loss_scale(), 64);
    EXPECT_EQ(log.text().find("keeps its"), std::string::npos) << log.text();
    EXPECT_EQ(log.text().find("loss scale"), std::string::npos);

    // The new run has another optimizer, and a scaler that never has the saved
    // scale.
    training.optimizer = "lion?lr=0.5";
    training.engine.loss_scaler = *LossScaler::Parse("static?scale=2");
    const auto other = LocalEngine(training, &log);
    const LoadOptions lax = {.rules = {.strict = false}};
    ASSERT_OK(other->Load(folder.path(), lax, &report));
    EXPECT_EQ(*other->hypers().Get(0, "lr"), 0.5);
    EXPECT_EQ(other->loss_scale(), 2);
    EXPECT_NE(log.text().find("param group 0 keeps its hyperparameters"),
              std::string::npos)
        << log.text();
    EXPECT_NE(log.text().find("the engine keeps its loss scale: loss scale 64"),
              std::string::npos)
        << log.text();
  }
}

// A load restores the scale alone if the saved count of good steps is beyond
// the run's growth_interval.
TEST(CheckpointNumbersTest, RestoresALossScaleWithoutItsCount) {
  UnitTraining training = AwkwardTraining(1, 1);
  training.engine.loss_scaler = *LossScaler::Parse("dynamic?init_scale=64");
  const testing::TempFolder folder;
  Log log;
  {
    const auto engine = LocalEngine(training, &log);
    UnitTrainer(training, engine.get()).Fill();
    ASSERT_OK(engine->SetLossScale({32, 100}));
    ASSERT_OK(engine->Save(folder.path(), Quick()));
  }
  training.engine.loss_scaler =
      *LossScaler::Parse("dynamic?init_scale=8&growth_interval=100");
  const auto engine = LocalEngine(training, &log);
  LoadReport report;
  ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
  EXPECT_EQ(engine->loss_scale(), 32);
  EXPECT_EQ(engine->growth_tracker(), 0);
  EXPECT_NE(log.text().find("the good steps of the loss scale count from 0: "
                            "100 good steps"),
            std::string::npos)
      << log.text();
}

// A checkpoint of a run without dynamic loss scaling has no scale that a run in
// f16 could continue with.
TEST(CheckpointNumbersTest, WithoutLossScalingNoneIsSaved) {
  for (const char* saved : {"", "static?scale=4"}) {
    UnitTraining training = AwkwardTraining(1, 1);
    training.engine.loss_scaler = *LossScaler::Parse(saved);
    const testing::TempFolder folder;
    Log log;
    {
      const auto engine = LocalEngine(training, &log);
      UnitTrainer(training, engine.get()).Fill();
      ASSERT_OK(engine->Save(folder.path(), Quick()));
    }
    training.engine.loss_scaler = *LossScaler::Parse("dynamic?init_scale=64");
    const auto engine = LocalEngine(training, &log);
    LoadReport report;
    ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
    EXPECT_EQ(engine->loss_scale(), 64) << saved;
    EXPECT_EQ(log.text().find("loss scale"), std::string::npos) << log.text();
  }
}

// ---- Blobs -----------------------------------------------------------------

Status SetNumbers(Engine* engine, const std::string& name, BlobRule rule,
                  const std::vector<int64_t>& numbers) {
  return engine->checkpoints().SetBlob(name, rule, numbers.data(),
                                       numbers.size() * sizeof(int64_t));
}

std::vector<int64_t> NumbersOf(const Engine& engine, const std::string& name) {
  const HostBlob* const blob = engine.checkpoints().FindBlob(name);
  if (blob == nullptr) return {-1};
  std::vector<int64_t> numbers(blob->content.size() / sizeof(int64_t));
  if (!numbers.empty()) {
    std::memcpy(numbers.data(), blob->content.data(), blob->content.size());
  }
  return numbers;
}

TEST(CheckpointNumbersTest, LoadsBlobsOfEveryWorldSizeIntoEveryOther) {
  for (int n = 1; n <= 4; ++n) {
    const testing::TempFolder folder;
    RunWorld(AwkwardTraining(n, 1), 1, [&](Engine* engine, UnitTrainer*) {
      const int64_t rank = engine->comm()->rank();
      // The ranks' blobs have different lengths; rank 0's is empty.
      ASSERT_OK(SetNumbers(engine, "own", BlobRule::kPerRank,
                           std::vector<int64_t>(static_cast<size_t>(rank), 7)));
      ASSERT_OK(SetNumbers(engine, "same", BlobRule::kReplicated, {5, 6}));
      ASSERT_OK(
          SetNumbers(engine, "sum", BlobRule::kSummed, {rank + 1, -rank}));
      ASSERT_OK(SetNumbers(engine, "none", BlobRule::kReplicated, {}));
      ASSERT_OK(engine->Save(folder.path(), Quick()));
    });
    for (int m = 1; m <= 4; ++m) {
      std::mutex mutex;
      std::vector<int64_t> sums(2);
      RunWorld(AwkwardTraining(m, 2), 0, [&](Engine* engine, UnitTrainer*) {
        const int64_t rank = engine->comm()->rank();
        ASSERT_OK(SetNumbers(engine, "before", BlobRule::kReplicated, {1}));
        LoadReport report;
        ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
        EXPECT_EQ(NumbersOf(*engine, "same"), (std::vector<int64_t>{5, 6}));
        EXPECT_EQ(NumbersOf(*engine, "none"), (std::vector<int64_t>{}));
        EXPECT_EQ(NumbersOf(*engine, "own"),
                  n == m ? std::vector<int64_t>(static_cast<size_t>(rank), 7)
                         : std::vector<int64_t>{-1});
        // The load replaces the blobs that were set before.
        EXPECT_EQ(NumbersOf(*engine, "before"), (std::vector<int64_t>{-1}));
        const auto sum = NumbersOf(*engine, "sum");
        ASSERT_EQ(sum.size(), 2u);
        if (n == m) {
          EXPECT_EQ(sum, (std::vector<int64_t>{rank + 1, -rank}));
        }
        const std::lock_guard<std::mutex> lock(mutex);
        sums[0] += sum[0];
        sums[1] += sum[1];
      });
      EXPECT_EQ(sums,
                (std::vector<int64_t>{n * (n + 1) / 2, -(n - 1) * n / 2}));
    }
  }
}

// A manifest has 64 MiB for the names of all ranks' blobs.
TEST(CheckpointNumbersTest, RefusesMoreBlobsThanAManifestCanName) {
  const testing::TempFolder folder;
  RunWorld(AwkwardTraining(2, 1), 1, [&](Engine* engine, UnitTrainer*) {
    Checkpoints& checkpoints = engine->checkpoints();
    int count = 0;
    Status status;
    while ((status =
                checkpoints.SetBlob(StrCat(count, std::string(60000, 'n')),
                                    BlobRule::kPerRank, &count, sizeof(count)))
               .ok()) {
      ++count;
    }
    EXPECT_EQ(count, (64 << 20) / 2 / 60091);
    ExpectError(status, StatusCode::kResourceExhausted,
                {"2 ranks", "67108864", "fewer blobs"});
    // Setting a blob that exists already replaces it and takes no more space.
    EXPECT_OK(checkpoints.SetBlob(StrCat(0, std::string(60000, 'n')),
                                  BlobRule::kPerRank, &count, sizeof(count)));
    // A sanitizer reads the names, 64 MiB in all, for many seconds.
    if (!kSanitized) {
      EXPECT_OK(engine->Save(folder.path(), Quick()));
      LoadReport report;
      ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
    }
    ExpectError(checkpoints.SetBlob(std::string(60000, 'm'), BlobRule::kPerRank,
                                    nullptr, 0),
                StatusCode::kResourceExhausted, {"fewer blobs"});
  });
}

TEST(CheckpointNumbersTest, RefusesWrongBlobs) {
  const testing::TempFolder folder;
  RunWorld(AwkwardTraining(2, 1), 1, [&](Engine* engine, UnitTrainer*) {
    Checkpoints& checkpoints = engine->checkpoints();
    ExpectInvalid(checkpoints.SetBlob("", BlobRule::kPerRank, nullptr, 0),
                  {"empty"});
    ExpectInvalid(checkpoints.SetBlob("\xff", BlobRule::kPerRank, nullptr, 0),
                  {"UTF-8"});
    ExpectInvalid(checkpoints.SetBlob("a\n", BlobRule::kPerRank, nullptr, 0),
                  {"'a\\x0a'", "control character"});
    ExpectInvalid(checkpoints.SetBlob(std::string(65536, 'n'),
                                      BlobRule::kPerRank, nullptr, 0),
                  {"65536 bytes", "65535"});
    ExpectInvalid(
        checkpoints.SetBlob("a", static_cast<BlobRule>(4), nullptr, 0),
        {"rule 4"});
    ExpectInvalid(checkpoints.SetBlob("a", BlobRule::kSummed, "1234567", 7),
                  {"7 bytes"});
    // A difference between ranks is an error on all ranks, which names the
    // ranks and their values.
    const int64_t rank = engine->comm()->rank();
    ASSERT_OK(SetNumbers(engine, "same", BlobRule::kReplicated, {rank}));
    ExpectError(
        engine->Save(folder.path(), Quick()), StatusCode::kDesync,
        {"blobs: checksum of blob 'same': rank 0 has 0x", ", rank 1 has 0x"});
    ASSERT_OK(SetNumbers(engine, "same", BlobRule::kReplicated, {1}));
    ASSERT_OK(SetNumbers(engine, "sum", BlobRule::kSummed,
                         std::vector<int64_t>(static_cast<size_t>(rank))));
    ExpectError(engine->Save(folder.path(), Quick()), StatusCode::kDesync,
                {"bytes of blob 'sum': rank 0 has 0, rank 1 has 8"});
    ASSERT_OK(SetNumbers(engine, "sum", BlobRule::kSummed, {1}));
    ASSERT_OK(
        SetNumbers(engine, StrCat("of rank ", rank), BlobRule::kPerRank, {1}));
    ExpectError(engine->Save(folder.path(), Quick()), StatusCode::kDesync,
                {"rank 0 has 'of rank 0', rank 1 has 'of rank 1'"});
  });
}

}  // namespace
}  // namespace shard::checkpoint_numbers_test
