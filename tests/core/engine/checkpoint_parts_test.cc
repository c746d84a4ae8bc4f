// SPDX-License-Identifier: Apache-2.0
//
// Saves and loads of parts of the state, and loads into other dtypes and plans.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/data/data_layout.h"
#include "core/checkpoint/data/shard_store.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/checkpoint_options.h"
#include "tests/core/engine/whole_state.h"
#include "tests/core/engine/worlds.h"

namespace shard::checkpoint_parts_test {
namespace {

using Tensors = std::map<std::string, std::vector<unsigned char>>;

// The states of two worlds: one that saved after two steps, and one that took
// one step and then loaded that checkpoint.
struct Result {
  Tensors saved, before, after;
  LoadReport report;
  int64_t next_step = 0;  // The number of the step after the load.
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
  return StrCat((*PlanOf(training))->place(param).position, "/", what);
}

// Expects in `after` the saved bytes of the tensors for which `is_loaded` is
// true, and the bytes before the load of all others.
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

TEST(CheckpointPartsTest, LoadsOnlyTheSubmodules) {
  for (const bool strip : {false, true}) {
    for (const std::vector<ModuleId>& modules :
         {std::vector<ModuleId>{kBlock}, {kHead}, {kBlock, kHead}}) {
      if (strip && modules.size() > 1) continue;
      SaveOptions save = Quick();
      save.state.submodules = modules;
      save.state.strip_prefix = strip;
      const LoadOptions load = {.state = save.state};
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
      // A load of some submodules leaves the engine's own step number.
      EXPECT_EQ(result.next_step, 2);
    }
  }
}

// Keys that were saved with the prefix of a module do not fit a load that
// expects them without it.
TEST(CheckpointPartsTest, PrefixesMustFit) {
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
    // The refused load changed nothing, and the next one succeeds.
    load.state.strip_prefix = false;
    EXPECT_OK(engine->Load(folder.path(), load, &report));
  });
}

TEST(CheckpointPartsTest, FrozenParametersMayBeLeftOut) {
  const UnitTraining training = AwkwardTraining(3, 2);
  SaveOptions save = Quick();
  save.state.ignore_frozen = true;
  const LoadOptions load = {.state = {.ignore_frozen = true}};
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
    // An engine in FILLING has no values for the parameters that are missing.
    const LoadOptions lax = {.rules = {.strict = false}};
    ExpectError(engine->Load(folder.path(), lax, &report),
                StatusCode::kFailedPrecondition, {"FILLING"});
  });
}

bool IsParam(const std::string& name) { return name.ends_with("/param"); }

TEST(CheckpointPartsTest, LoadsOnlyTheOptimizerWithStepsAndHyperparameters) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    UnitTraining from = AwkwardTraining(3, 2);
    from.model = AwkwardModel(dtype);
    UnitTraining to = from;
    to.optimizer = "adamw?lr=0.5";
    SaveOptions save = Quick();
    save.state.content = StateContent::kOptimizer;
    const LoadOptions load = {.state = save.state};
    const Result result = SaveAndLoad(from, save, to, load);
    ExpectLoaded(result,
                 [](const std::string& name) { return !IsParam(name); });
    EXPECT_EQ(result.next_step, 3);

    const testing::TempFolder folder;
    RunWorld(from, 1, [&](Engine* engine, UnitTrainer*) {
      ASSERT_OK(engine->SetHyper(0, "lr", 0.25));
      ASSERT_OK(engine->Save(folder.path(), save));
    });
    RunWorld(to, 1, [&](Engine* engine, UnitTrainer*) {
      LoadReport report;
      ASSERT_OK(engine->Load(folder.path(), load, &report));
      EXPECT_EQ(*engine->hypers().Get(0, "lr"), 0.25);
    });
  }
}

TEST(CheckpointPartsTest, LoadsOnlyTheModel) {
  const UnitTraining training = AwkwardTraining(2, 3);
  SaveOptions save = Quick();
  save.state.content = StateContent::kModel;
  const LoadOptions load = {.state = save.state};
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
  const LoadOptions load = {.rules = {.convert = true}};
  return load;
}

TEST(CheckpointPartsTest, NarrowParametersGetMasters) {
  const UnitTraining from = Typed(3, 2, DType::kF32);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const Result result =
        SaveAndLoad(from, Quick(), Typed(2, 1, dtype), Converting());
    EXPECT_GT(result.report.match.converted, 3);
    for (const auto& [name, bytes] : result.after) {
      if (IsParam(name)) {
        // Parameters are rounded to nearest.
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

TEST(CheckpointPartsTest, WideParametersComeFromMasters) {
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

// 8-bit codes that are decoded and encoded again are the same.
TEST(CheckpointPartsTest, CodesSurviveDecodingAndEncoding) {
  const testing::TempFolder codes, floats;
  const UnitTraining q8 = Typed(3, 2, DType::kF32, "adamw?states=q8");
  WholeState saved, loaded;
  Params params;
  SaveWorld(q8, 2, codes.path(), &saved, &params, Quick());
  RunWorld(Typed(4, 1, DType::kF32), 0, [&](Engine* engine, UnitTrainer*) {
    LoadReport report;
    ExpectError(engine->Load(codes.path(), LoadOptions(), &report),
                StatusCode::kFailedPrecondition, {"q8", "set convert"});
    ASSERT_OK(engine->Load(codes.path(), Converting(), &report));
    ASSERT_OK(engine->Save(floats.path(), Quick()));
  });
  LoadWorld(Typed(2, 3, DType::kF32, "adamw?states=q8"), floats.path(), &loaded,
            params, Converting());
  EXPECT_TRUE(loaded == saved) << saved.Differences(loaded);
}

// Writes the contents of a checkpoint into one file, with codes in slices of
// 100 elements.
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

// Each block of codes has one scale, but slices may end within a block.
TEST(CheckpointPartsTest, DecodesCodesInSlicesThatEndWithinBlocks) {
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

}  // namespace
}  // namespace shard::checkpoint_parts_test
