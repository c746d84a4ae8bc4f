// SPDX-License-Identifier: Apache-2.0
//
// Saves and loads of parts, of other types and plans, and of what is not
// tensors; and calls that are wrong.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/data_layout.h"
#include "core/checkpoint/directory.h"
#include "core/checkpoint/shard_store.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/forwarding_env.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/whole_state.h"
#include "tests/core/engine/worlds.h"

namespace shard {
namespace {

using testing::NoSyncEnv;
using Tensors = std::map<std::string, std::vector<unsigned char>>;

// Of AwkwardModel.
constexpr ModuleId kBlock = 1;
constexpr ModuleId kHead = 2;
constexpr ParamId kWeight = 2;
constexpr ParamId kBias = 3;
constexpr ParamId kFrozen = 4;
constexpr ParamId kBig = 5;

SaveOptions Quick() {
  SaveOptions options;
  options.env = NoSyncEnv::Get();
  return options;
}

// What `load` makes of a world that has done one step, with what another one
// saved after two.
struct Result {
  Tensors saved, before, after;
  LoadReport report;
  int64_t next_step = 0;  // Of the step after the load.
};

Result SaveAndLoad(const UnitTraining& from, const SaveOptions& save,
                   const UnitTraining& to, const LoadOptions& load) {
  const testing::TempFolder folder;
  Result result;
  WholeState saved, before, after;
  Params params;
  SaveWorld(from, 2, folder.path(), &saved, &params, save);
  RunWorld(to, 1, [&](Engine* engine, UnitTrainer* trainer) {
    before.Add(*engine);
    LoadReport report;
    ASSERT_OK(engine->Load(folder.path(), load, &report));
    after.Add(*engine);
    trainer->Forward();
    trainer->Backward(9, true);
    StepReport step;
    ASSERT_OK(trainer->Step(&step));
    if (engine->comm()->rank() != 0) return;
    result.report = report;
    result.next_step = step.step;
  });
  result.saved = saved.tensors();
  result.before = before.tensors();
  result.after = after.tensors();
  return result;
}

std::string NameOf(const UnitTraining& training, ParamId param,
                   const std::string& what) {
  return StrCat((*PlanOf(training))->positions()[static_cast<size_t>(param)],
                "/", what);
}

// `after` has of `saved` what `is_loaded` says, and else what was before.
template <typename IsLoaded>
void ExpectLoaded(const Result& result, IsLoaded is_loaded) {
  ASSERT_EQ(result.after.size(), result.before.size());
  int differ = 0;
  for (const auto& [name, bytes] : result.after) {
    const auto& expected = is_loaded(name) ? result.saved : result.before;
    ASSERT_EQ(expected.count(name), 1u) << name;
    EXPECT_TRUE(bytes == expected.at(name)) << name;
    differ += result.saved.at(name) != result.before.at(name);
  }
  EXPECT_GT(differ, 5) << "the test sees nothing";
}

TEST(CheckpointOptionsTest, Submodules) {
  for (const bool strip : {false, true}) {
    for (const std::vector<ModuleId>& modules :
         {std::vector<ModuleId>{kBlock}, {kHead}, {kBlock, kHead}}) {
      if (strip && modules.size() > 1) continue;
      SaveOptions save = Quick();
      save.state.submodules = modules;
      save.state.strip_prefix = strip;
      LoadOptions load;
      load.state = save.state;
      const UnitTraining to = AwkwardTraining(2, 7);
      const Result result = SaveAndLoad(AwkwardTraining(3, 5), save, to, load);
      std::set<std::string> positions;
      for (const ModuleId module : modules) {
        for (const ParamId param :
             module == kBlock ? std::vector<ParamId>{kBias, kFrozen, kBig}
                              : std::vector<ParamId>{kWeight}) {
          positions.insert(NameOf(to, param, ""));
        }
      }
      ExpectLoaded(result, [&](const std::string& name) {
        return positions.count(name.substr(0, name.find('/') + 1)) != 0;
      });
      // The engine's own step goes on.
      EXPECT_EQ(result.next_step, 2);
    }
  }
}

// One module's keys, saved without a prefix, do not fit another's.
TEST(CheckpointOptionsTest, PrefixesMustFit) {
  const testing::TempFolder folder;
  WholeState whole;
  Params params;
  SaveOptions save = Quick();
  save.state.submodules = {kBlock};
  SaveWorld(AwkwardTraining(2, 1), 1, folder.path(), &whole, &params, save);
  RunWorld(AwkwardTraining(2, 1), 1, [&](Engine* engine, UnitTrainer*) {
    LoadOptions load;
    load.state = save.state;
    load.state.strip_prefix = true;
    LoadReport report;
    const Status status = engine->Load(folder.path(), load, &report);
    ExpectError(status, StatusCode::kFailedPrecondition,
                {"missing: bias", "unexpected: block.bias"});
    EXPECT_NE(status.detail().find("\"block.big\""), std::string::npos);
    // Nothing was touched: it goes on.
    load.state.strip_prefix = false;
    EXPECT_OK(engine->Load(folder.path(), load, &report));
  });
}

TEST(CheckpointOptionsTest, FrozenLeftOut) {
  const UnitTraining training = AwkwardTraining(3, 2);
  SaveOptions save = Quick();
  save.state.ignore_frozen = true;
  LoadOptions load;
  load.state.ignore_frozen = true;
  const Result result = SaveAndLoad(training, save, training, load);
  const std::string frozen = NameOf(training, kFrozen, "param");
  ExpectLoaded(result, [&](const std::string& name) { return name != frozen; });
  EXPECT_EQ(result.next_step, 3);

  const testing::TempFolder folder;
  WholeState whole;
  Params params;
  SaveWorld(training, 1, folder.path(), &whole, &params, save);
  RunWorld(training, 0, [&](Engine* engine, UnitTrainer*) {
    LoadReport report;
    ExpectError(engine->Load(folder.path(), LoadOptions(), &report),
                StatusCode::kFailedPrecondition, {"1 missing: block.frozen"});
    // In FILLING, what is missing has no value.
    LoadOptions lax;
    lax.rules.strict = false;
    ExpectError(engine->Load(folder.path(), lax, &report),
                StatusCode::kFailedPrecondition, {"FILLING"});
  });
}

bool IsParam(const std::string& name) { return name.ends_with("/param"); }

TEST(CheckpointOptionsTest, OptimizerOnlyWithStepsAndHyperparameters) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    UnitTraining from = AwkwardTraining(3, 2);
    from.model = AwkwardModel(dtype);
    UnitTraining to = from;
    to.optimizer = "adamw?lr=0.5";
    SaveOptions save = Quick();
    save.state.content = StateContent::kOptimizer;
    LoadOptions load;
    load.state = save.state;
    const Result result = SaveAndLoad(from, save, to, load);
    ExpectLoaded(result,
                 [](const std::string& name) { return !IsParam(name); });
    EXPECT_EQ(result.next_step, 3);

    const testing::TempFolder folder;
    RunWorld(from, 1, [&](Engine* engine, UnitTrainer*) {
      ASSERT_OK(engine->hypers().Set(0, "lr", 0.25));
      ASSERT_OK(engine->Save(folder.path(), save));
    });
    RunWorld(to, 1, [&](Engine* engine, UnitTrainer*) {
      LoadReport report;
      ASSERT_OK(engine->Load(folder.path(), load, &report));
      EXPECT_EQ(*engine->hypers().Get(0, "lr"), 0.25);
    });
  }
}

TEST(CheckpointOptionsTest, ModelOnly) {
  const UnitTraining training = AwkwardTraining(2, 3);
  SaveOptions save = Quick();
  save.state.content = StateContent::kModel;
  LoadOptions load;
  load.state = save.state;
  const Result result = SaveAndLoad(training, save, training, load);
  ExpectLoaded(result, IsParam);
  EXPECT_EQ(result.next_step, 2);
}

UnitTraining Typed(int world_size, int variant, DType dtype,
                   const std::string& optimizer = "adamw") {
  UnitTraining training = AwkwardTraining(world_size, variant);
  training.model = AwkwardModel(dtype);
  training.optimizer = optimizer;
  return training;
}

LoadOptions Converting() {
  LoadOptions load;
  load.rules.convert = true;
  return load;
}

TEST(CheckpointOptionsTest, NarrowParametersGetMasters) {
  const UnitTraining from = Typed(3, 2, DType::kF32);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const Result result =
        SaveAndLoad(from, Quick(), Typed(2, 1, dtype), Converting());
    EXPECT_GT(result.report.match.converted, 3);
    for (const auto& [name, bytes] : result.after) {
      if (IsParam(name)) {
        // Rounded to nearest.
        const auto& wide = result.saved.at(name);
        std::vector<float> values(wide.size() / sizeof(float));
        if (!wide.empty()) std::memcpy(values.data(), wide.data(), wide.size());
        std::vector<unsigned char> rounded(values.size() * 2);
        Store(dtype, values, rounded.data());
        EXPECT_TRUE(bytes == rounded) << name;
      } else if (name.ends_with("/master_param")) {
        EXPECT_TRUE(bytes ==
                    result.saved.at(name.substr(0, name.find('/')) + "/param"))
            << name;
      } else {
        EXPECT_TRUE(bytes == result.saved.at(name)) << name;
      }
    }
  }
}

TEST(CheckpointOptionsTest, WideParametersComeFromMasters) {
  const Result result = SaveAndLoad(Typed(2, 2, DType::kBF16), Quick(),
                                    Typed(3, 1, DType::kF32), Converting());
  int masters = 0;
  for (const auto& [name, bytes] : result.after) {
    const auto master =
        result.saved.find(name.substr(0, name.find('/')) + "/master_param");
    if (!IsParam(name)) {
      EXPECT_TRUE(bytes == result.saved.at(name)) << name;
    } else if (master != result.saved.end()) {
      ++masters;
      EXPECT_TRUE(bytes == master->second) << name;
    }
  }
  EXPECT_GE(masters, 4);
}

// Codes that were decoded and encoded again are the same.
TEST(CheckpointOptionsTest, CodesToFloatsAndBack) {
  const testing::TempFolder codes, floats;
  const UnitTraining q8 = Typed(3, 2, DType::kF32, "adamw?states=q8");
  WholeState saved, loaded;
  Params params;
  SaveWorld(q8, 2, codes.path(), &saved, &params, Quick());
  RunWorld(Typed(4, 1, DType::kF32), 0, [&](Engine* engine, UnitTrainer*) {
    LoadReport report;
    ExpectError(engine->Load(codes.path(), LoadOptions(), &report),
                StatusCode::kFailedPrecondition, {"q8", "'convert'"});
    ASSERT_OK(engine->Load(codes.path(), Converting(), &report));
    ASSERT_OK(engine->Save(floats.path(), Quick()));
  });
  LoadWorld(Typed(2, 3, DType::kF32, "adamw?states=q8"), floats.path(), &loaded,
            params, Converting());
  EXPECT_TRUE(loaded == saved) << saved.Differences(loaded);
}

StatusOr<std::shared_ptr<const ShardStore>> OpenIn(const std::string& root) {
  SHARD_ASSIGN_OR_RETURN(const OpenCheckpoint found,
                         ResolveCheckpoint(FileEnv::Posix(), root));
  return ShardStore::Open(found.directory);
}

// Writes what a checkpoint holds into one file, codes in slices of 100.
void CutCodes(const ShardStore& from, const std::string& folder) {
  const Manifest& manifest = *from.manifest();
  ManifestContents contents;
  contents.step = manifest.step();
  DataLayout layout;
  std::string file;
  for (size_t t = 0; t < from.num_tensors(); ++t) {
    const TensorInfo info = from.tensor(t);
    auto& tensor = contents.tensors.emplace_back();
    tensor.key = info.key;
    tensor.type = info.type;
    tensor.role = info.role;
    tensor.shape.assign(info.shape.begin(), info.shape.end());
    tensor.alias_of = info.alias_of;
    if (info.alias_of >= 0) continue;
    tensor.trainable = manifest.trainable(t);
    tensor.codebook = info.codebook;
    const size_t size = ElementSize(info.type);
    std::string bytes(static_cast<size_t>(info.numel) * size, '\0');
    const ReadRequest all = {t, 0, info.numel};
    ASSERT_OK(from.Read(
        {&all, 1}, {.threads = 1},
        [&](size_t, int64_t begin, int64_t numel, const std::byte* data) {
          std::memcpy(bytes.data() + static_cast<size_t>(begin) * size, data,
                      static_cast<size_t>(numel) * size);
          return Status();
        }));
    PlaceElements(0, info.numel, size, 0,
                  info.type == ElementType::kQ8 ? 100 : 1 << 20, &layout,
                  &tensor.slices);
    for (Slice& slice : tensor.slices) {
      const char* const data =
          bytes.data() + static_cast<size_t>(slice.begin) * size;
      slice.extent.checksum = ChecksumOf(data, slice.extent.bytes);
      file.resize(slice.extent.offset);
      file.append(data, slice.extent.bytes);
    }
  }
  file.resize(layout.file_bytes());
  contents.files = {{DataFileName(0), file.size()}};
  const auto encoded = EncodeManifest(contents);
  ASSERT_OK(encoded);
  testing::WriteText(folder + "/" + DataFileName(0), file);
  testing::WriteText(
      folder + "/" + kManifestName,
      {reinterpret_cast<const char*>(encoded->data()), encoded->size()});
}

// Blocks of codes have a scale each; who wrote the file may have cut it
// anywhere.
TEST(CheckpointOptionsTest, CodesInSlicesThatAreNoBlocks) {
  const testing::TempFolder folder, cut;
  WholeState saved, whole, pieces;
  Params params;
  SaveWorld(Typed(2, 2, DType::kF32, "adamw?states=q8"), 2, folder.path(),
            &saved, &params, Quick());
  const auto store = OpenIn(folder.path());
  ASSERT_OK(store);
  CutCodes(**store, cut.path());
  const UnitTraining floats = Typed(3, 1, DType::kF32);
  LoadWorld(floats, folder.path(), &whole, params, Converting());
  LoadWorld(floats, cut.path(), &pieces, params, Converting());
  EXPECT_TRUE(pieces == whole) << whole.Differences(pieces);
}

// The steps that a checkpoint of this engine would tell of.
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

TEST(CheckpointOptionsTest, MoreAndLessTrainable) {
  const UnitTraining less = AwkwardTraining(2, 2);
  UnitTraining more = less;
  more.model = AwkwardModel();
  ASSERT_OK(more.model->SetTrainable(kFrozen, true));
  LoadOptions lax;
  lax.rules.strict = false;

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
    // It has no state yet, so it counts from 0.
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

// A step in which only `params` have gradients.
void StepSome(Engine* engine, const std::set<ParamId>& params) {
  for (const ParamId param : params) {
    const int32_t unit = engine->plan().UnitOf(param);
    ASSERT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
    const auto grad = engine->Grad(param);
    ASSERT_OK(grad);
    for (int64_t i = 0; i < grad->numel; ++i) {
      static_cast<float*>(grad->data)[i] = 0.5f;
    }
    ASSERT_OK(engine->ParamGradReady(param));
    ASSERT_OK(engine->UnitRelease(unit));
  }
  StepReport report;
  ASSERT_OK(engine->Step(StepOptions(), &report));
  ASSERT_OK(engine->ZeroGrad());
}

TEST(CheckpointOptionsTest, EachParameterGoesOnCounting) {
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

// Keeps what is logged.
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
  CommOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.logger = log->logger();
  const auto comm = OpenCommunicator("local:", options);
  EXPECT_OK(comm);
  auto engine = Engine::Create(*PlanOf(training), *comm, training.engine);
  EXPECT_OK(engine);
  return *std::move(engine);
}

TEST(CheckpointOptionsTest, HyperparametersAndLossScale) {
  for (const char* optimizer : {"adamw", "sgd"}) {
    UnitTraining training = AwkwardTraining(1, 1);
    training.optimizer = optimizer;
    training.engine.loss_scaler = *LossScaler::Parse("dynamic?init_scale=64");
    const testing::TempFolder folder;
    Log log;
    {
      const auto engine = LocalEngine(training, &log);
      UnitTrainer(training, engine.get()).Fill();
      ASSERT_OK(engine->hypers().Set(0, "lr", 0.0625));
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

    // Another optimizer, and a scale that this scaler never has.
    training.optimizer = "lion?lr=0.5";
    training.engine.loss_scaler = *LossScaler::Parse("static?scale=2");
    const auto other = LocalEngine(training, &log);
    LoadOptions lax;
    lax.rules.strict = false;
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

// A scale goes on where its count of good steps is one that the run's
// growth_interval does not reach.
TEST(CheckpointOptionsTest, LossScaleWithoutItsCount) {
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

// A run in f32 has no loss scale to go on from in f16.
TEST(CheckpointOptionsTest, WithoutLossScalingNoneIsSaved) {
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

TEST(CheckpointOptionsTest, BlobsOfEveryWorldSizeIntoEveryOther) {
  for (int n = 1; n <= 4; ++n) {
    const testing::TempFolder folder;
    RunWorld(AwkwardTraining(n, 1), 1, [&](Engine* engine, UnitTrainer*) {
      const int64_t rank = engine->comm()->rank();
      // Some are empty, and none are of the same length.
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
        // In place of what was set.
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

// Each rank's blobs are named in the manifest, which has 64 MiB for that.
TEST(CheckpointOptionsTest, AsManyBlobsAsAManifestNames) {
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
    // One that is there already is only replaced.
    EXPECT_OK(checkpoints.SetBlob(StrCat(0, std::string(60000, 'n')),
                                  BlobRule::kPerRank, &count, sizeof(count)));
    EXPECT_OK(engine->Save(folder.path(), Quick()));
    LoadReport report;
    ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
    ExpectError(checkpoints.SetBlob(std::string(60000, 'm'), BlobRule::kPerRank,
                                    nullptr, 0),
                StatusCode::kResourceExhausted, {"fewer blobs"});
  });
}

TEST(CheckpointOptionsTest, BlobsThatAreWrong) {
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
    // What differs between ranks is an error of all, which says who has what.
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

// ---- Wrong calls -----------------------------------------------------------

TEST(CheckpointOptionsTest, CallsInTheWrongState) {
  const testing::TempFolder folder;
  const UnitTraining training = AwkwardTraining(2, 3);
  WholeState whole;
  Params params;
  SaveWorld(training, 1, folder.path(), &whole, &params, Quick());
  RunWorld(training, 0, [&](Engine* engine, UnitTrainer* trainer) {
    const auto load = [&](StateContent content, std::vector<ModuleId> modules,
                          bool ignore_frozen) {
      LoadOptions options;
      options.state.content = content;
      options.state.submodules = std::move(modules);
      options.state.ignore_frozen = ignore_frozen;
      LoadReport report;
      return engine->Load(folder.path(), options, &report);
    };
    ExpectError(engine->Save(folder.path(), Quick()),
                StatusCode::kFailedPrecondition, {"FILLING"});
    ExpectError(load(StateContent::kOptimizer, {}, false),
                StatusCode::kFailedPrecondition, {"FILLING"});
    ExpectError(load(StateContent::kAll, {kBlock}, false),
                StatusCode::kFailedPrecondition, {"FILLING"});
    ExpectError(load(StateContent::kModel, {}, true),
                StatusCode::kFailedPrecondition, {"FILLING"});
    ASSERT_OK(load(StateContent::kModel, {}, false));
    ASSERT_OK(load(StateContent::kOptimizer, {}, false));

    ASSERT_OK(engine->UnitAcquire(0, Pass::kForward, 0));
    ExpectError(engine->Save(folder.path(), Quick()),
                StatusCode::kFailedPrecondition, {"save"});
    ExpectError(load(StateContent::kAll, {}, false),
                StatusCode::kFailedPrecondition, {"load"});
    ASSERT_OK(engine->UnitRelease(0));
    trainer->Forward();
    trainer->Backward(2, true);
    ExpectError(engine->Save(folder.path(), Quick()),
                StatusCode::kFailedPrecondition, {"gradients", "step first"});
    StepReport report;
    ASSERT_OK(trainer->Step(&report));
    ASSERT_OK(engine->ZeroGrad());
    ASSERT_OK(engine->Summon(kRootModule, -1, 0));
    ExpectError(engine->Save(folder.path(), Quick()),
                StatusCode::kFailedPrecondition, {});
    ASSERT_OK(engine->EndSummon(false, 0));
    ASSERT_OK(engine->Save(folder.path(), Quick()));
    TrainSteps(3, 3, engine, trainer);
  });
}

// What one rank has otherwise is an error of all that says so, and everything
// goes on.
TEST(CheckpointOptionsTest, OptionsThatDifferBetweenRanks) {
  const testing::TempFolder folder;
  RunWorld(AwkwardTraining(3, 2), 1, [&](Engine* engine, UnitTrainer* trainer) {
    const bool odd = engine->comm()->rank() == 1;
    const auto save = [&](void (*change)(SaveOptions*)) {
      SaveOptions options = Quick();
      if (odd) change(&options);
      return engine->Save(folder.path(), options);
    };
    const auto differ = [&](void (*change)(SaveOptions*),
                            std::string_view difference) {
      ExpectError(save(change), StatusCode::kDesync,
                  {StrCat("how to save: ", difference)});
    };
    differ([](SaveOptions* o) { o->async = true; },
           "async: rank 0 has false, rank 1 has true");
    differ([](SaveOptions* o) { o->overwrite = true; },
           "overwrite: rank 0 has false, rank 1 has true");
    differ([](SaveOptions* o) { o->timeout = 7; },
           "timeout: rank 0 has 1800, rank 1 has 7");
    differ([](SaveOptions* o) { o->state.content = StateContent::kModel; },
           "content: rank 0 has all, rank 1 has model");
    differ([](SaveOptions* o) { o->state.ignore_frozen = true; },
           "ignore_frozen: rank 0 has false, rank 1 has true");
    differ([](SaveOptions* o) { o->state.submodules = {kBlock}; },
           "rank 0 has number of submodules 0, rank 1 has submodule 0 '");
    differ(
        [](SaveOptions* o) {
          o->state.submodules = {kBlock};
          o->state.strip_prefix = true;
        },
        "strip_prefix: rank 0 has false, rank 1 has true");
    const auto wrong = [&](void (*change)(SaveOptions*),
                           std::string_view part) {
      ExpectInvalid(save(change), {"rank 1", part});
    };
    wrong([](SaveOptions* o) { o->threads = 0; }, "threads 0");
    wrong([](SaveOptions* o) { o->threads = 257; }, "threads 257");
    wrong([](SaveOptions* o) { o->keep_last = -1; }, "keep_last -1");
    wrong([](SaveOptions* o) { o->keep_every = 5; }, "keep_every 5");
    ExpectInvalid(
        engine->Save(
            folder.path(),
            odd ? StatusOr<SaveOptions>(InvalidArgument("unread")) : Quick()),
        {"rank 1", "unread"});
    SaveOptions unknown = Quick();
    unknown.state.content = static_cast<StateContent>(9);
    ExpectInvalid(engine->Save(folder.path(), unknown), {"content 9"});
    unknown = Quick();
    unknown.state.strip_prefix = true;
    ExpectInvalid(engine->Save(folder.path(), unknown), {"one submodule"});
    ASSERT_OK(save([](SaveOptions*) {}));

    const auto load = [&](void (*change)(LoadOptions*)) {
      LoadOptions options;
      if (odd) change(&options);
      LoadReport report;
      return engine->Load(folder.path(), options, &report);
    };
    ExpectError(load([](LoadOptions* o) { o->rules.strict = false; }),
                StatusCode::kDesync,
                {"how to load: strict: rank 0 has true, rank 1 has false"});
    ExpectError(load([](LoadOptions* o) { o->rules.convert = true; }),
                StatusCode::kDesync,
                {"convert: rank 0 has false, rank 1 has true"});
    ExpectError(
        load([](LoadOptions* o) { o->rules.strip_leading_module = true; }),
        StatusCode::kDesync,
        {"strip_leading_module: rank 0 has false, rank 1 has true"});
    ExpectError(load([](LoadOptions* o) { o->from_rank0 = true; }),
                StatusCode::kDesync,
                {"from_rank0: rank 0 has false, rank 1 has true"});
    ExpectInvalid(load([](LoadOptions* o) { o->threads = -1; }),
                  {"rank 1", "threads -1"});
    // Ranks that see another checkpoint at their path.
    const testing::TempFolder none;
    LoadReport report;
    ExpectError(
        engine->Load(odd ? none.path() : folder.path(), LoadOptions(), &report),
        StatusCode::kNotFound, {"rank 1"});
    ASSERT_OK(load([](LoadOptions*) {}));
    TrainSteps(2, 2, engine, trainer);
  });
}

}  // namespace
}  // namespace shard
