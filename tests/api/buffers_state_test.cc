// SPDX-License-Identifier: Apache-2.0
//
// Buffers of a model in checkpoints and state dicts, whole and in parts.

#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"
#include "tests/api/norm_model.h"
#include "tests/api/sharded_plans.h"

namespace shard_api_testing::buffers_state_test {
namespace {

std::string NewFolder() {
  std::string name = ::testing::TempDir() + "/api-buffers-XXXXXX";
  EXPECT_NE(::mkdtemp(name.data()), nullptr);
  return name;
}

struct Loaded {
  shard_load_report report = SHARD_LOAD_REPORT_INIT;
  Outcome outcome;
};

Loaded Load(const Engine& engine, const std::string& path,
            bool mismatch = false, bool convert = false) {
  shard_load_options options = SHARD_LOAD_OPTIONS_INIT;
  options.allow_mismatch = mismatch ? 1 : 0;
  options.convert = convert ? 1 : 0;
  Loaded loaded;
  loaded.outcome = Take(shard_checkpoint_load(engine.get(), path.c_str(),
                                              &options, &loaded.report));
  return loaded;
}

// Saves the buffers of rank 0 of two, and returns the folder.
std::string SaveNorm(const Model& model) {
  const std::string root = NewFolder();
  RunRanks(2, [&](int rank, shard_comm* comm) {
    const Engine engine = EngineOf(model, comm);
    ASSERT_OK(shard_engine_broadcast_params(engine.get(), 0));
    WriteBuffers(engine, ValuesOfRank(rank + 7));
    shard_save* save = nullptr;
    ASSERT_OK(
        shard_checkpoint_save(engine.get(), root.c_str(), nullptr, &save));
    const Save owned(save);
    WriteBuffers(engine, ValuesOfRank(50));  // Later values are not saved.
    EXPECT_OK(shard_save_wait(save, 0));
  });
  return root;
}

TEST(BuffersStateTest, ACheckpointHasRankZerosForAnyWorld) {
  const Model model = NormModel();
  AddBlocks(model.get());
  const std::string root = SaveNorm(model);
  const std::string converted = NewFolder();
  const std::string exported = NewFolder() + "/model.safetensors";
  {
    shard_checkpoint* opened = nullptr;
    ASSERT_OK(shard_checkpoint_open(root.c_str(), &opened));
    const Checkpoint checkpoint(opened);
    int64_t tensor = -1;
    shard_tensor_info info = SHARD_TENSOR_INFO_INIT;
    ASSERT_OK(
        shard_checkpoint_find(opened, "norm.num_batches_tracked", &tensor));
    ASSERT_OK(shard_checkpoint_tensor(opened, tensor, &info));
    EXPECT_EQ(info.role, SHARD_ROLE_BUFFER);
    EXPECT_EQ(info.dtype, SHARD_I64);
    EXPECT_EQ(info.num_slices, 1);
    for (const char* key : {"scratch", "skipped.mean"}) {
      EXPECT_FAILS(shard_checkpoint_find(opened, key, &tensor), SHARD_NOT_FOUND,
                   key);
    }
    EXPECT_OK(shard_checkpoint_verify(opened, nullptr));
    shard_convert_options options = SHARD_CONVERT_OPTIONS_INIT;
    options.world_size = 3;
    ASSERT_OK(shard_checkpoint_convert(opened, converted.c_str(), &options));
    options = SHARD_CONVERT_OPTIONS_INIT;
    options.content = SHARD_CONTENT_MODEL;
    ASSERT_OK(shard_checkpoint_export(opened, exported.c_str(), &options));
  }
  for (const int world_size : {3, 1}) {
    for (const std::string& path : {root, converted, exported}) {
      RunRanks(world_size, [&](int rank, shard_comm* comm) {
        for (const int32_t stage : {1, 3}) {
          shard_plan_options options = PlanOptions(world_size);
          options.stage = stage;
          options.wrap = "class?names=Block";
          const Plan plan = MakePlan(model.get(), options);
          if (world_size > 1) ExpectShardsAsItsStage(plan);
          const Engine engine = MakeEngine(plan.get(), comm);
          WriteBuffers(engine, ValuesOfRank(rank));
          const float* const place = BufferOf<float>(engine, kMean, kFeatures);
          const Loaded loaded = Load(engine, path);
          EXPECT_EQ(loaded.outcome.code, SHARD_OK) << loaded.outcome;
          EXPECT_EQ(loaded.report.missing + loaded.report.unexpected, 0);
          BufferValues expected = ValuesOfRank(7);
          expected.scratch = ValuesOfRank(rank).scratch;  // Not persistent.
          EXPECT_EQ(ReadBuffers(engine), expected);
          EXPECT_EQ(BufferOf<float>(engine, kMean, kFeatures), place);
        }
      });
    }
  }
}

TEST(BuffersStateTest, CheckpointsThatDoNotFitAreErrorsAsForParameters) {
  const std::string without = NewFolder();
  const Comm comm = OpenLocal();
  {
    const Engine engine = TrainingEngine(comm.get());
    ASSERT_OK(
        shard_checkpoint_save(engine.get(), without.c_str(), nullptr, nullptr));
  }
  const std::string with = SaveNorm(NormModel());
  const auto fails = [&](const Model& model, const std::string& path,
                         bool convert, const std::string& text) {
    const Engine engine = EngineOf(model, comm.get());
    ExpectError(Load(engine, path, false, convert).outcome,
                SHARD_FAILED_PRECONDITION, {text});
  };
  fails(NormModel(), without, false, "3 missing: norm.running_mean");
  fails(SmallModel(), with, false, "3 unexpected: norm.running_mean");
  fails(NormModel(SHARD_F32, 6), with, false, "has shape [5]");
  fails(NormModel(SHARD_F64), with, false, "set convert to convert it");
  fails(NormModel(SHARD_I32), with, true, "is f32 in the store and i32 here");
  {
    const Engine engine = EngineOf(NormModel(SHARD_F64), comm.get());
    const Loaded loaded = Load(engine, with, false, true);
    EXPECT_EQ(loaded.outcome.code, SHARD_OK) << loaded.outcome;
    EXPECT_EQ(BufferOf<double>(engine, kMean, kFeatures)[4], 7.5);
  }
  // Buffers that the checkpoint lacks keep each rank's values.
  RunRanks(2, [&](int rank, shard_comm* ranks) {
    const Engine engine = EngineOf(NormModel(), ranks);
    WriteBuffers(engine, ValuesOfRank(rank));
    const Loaded loaded = Load(engine, without, true);
    EXPECT_EQ(loaded.outcome.code, SHARD_OK) << loaded.outcome;
    EXPECT_EQ(loaded.report.missing, 3);
    EXPECT_EQ(ReadBuffers(engine), ValuesOfRank(rank));
  });
}

TEST(BuffersStateTest, AFailedLoadLeavesNoMixture) {
  const std::string root = SaveNorm(NormModel());
  const std::string data = root + "/step-000000/data-00000.bin";
  {
    std::fstream file(data, std::ios::in | std::ios::out | std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(file), {});
    for (char& byte : bytes) byte = static_cast<char>(~byte);
    file.seekp(0);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(file.good());
  }
  RunRanks(2, [&](int rank, shard_comm* comm) {
    const Engine engine = EngineOf(NormModel(), comm);
    ASSERT_OK(shard_engine_broadcast_params(engine.get(), 0));
    WriteBuffers(engine, ValuesOfRank(rank));
    ExpectError(Load(engine, root).outcome, SHARD_CORRUPT, {"data-00000.bin"});
    EXPECT_EQ(ReadBuffers(engine),
              (BufferValues{std::vector<float>(kFeatures), 0,
                            ValuesOfRank(rank).scratch}));
  });
}

// The buffer that FilteredModel adds to those of NormModel.
constexpr int32_t kEpoch = kNumModelBuffers;

// Returns NormModel with a persistent buffer in the root, and with a parameter
// in the batch norm.
Model FilteredModel() {
  Model model = NormModel();
  EXPECT_EQ(AddBuffer(model.get(), 0, "epoch", SHARD_I64, {}), kEpoch);
  int32_t param = 0;
  EXPECT_OK(shard_model_add_param(model.get(), kNorm, "gain", SHARD_F32,
                                  &kFeatures, 1, &param));
  return model;
}

// Returns an engine of FilteredModel, whose parameters have states.
Engine FilteredEngine(shard_comm* comm) {
  shard_plan_options options = PlanOptions(shard_comm_world_size(comm));
  options.optimizer = "sgd?lr=0.5&momentum=0.9";
  Engine engine =
      MakeEngine(MakePlan(FilteredModel().get(), options).get(), comm);
  EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
  return engine;
}

void WriteAllBuffers(const Engine& engine, int rank) {
  WriteBuffers(engine, ValuesOfRank(rank));
  *BufferOf<int64_t>(engine, kEpoch, 1) = rank;
}

// A part of a state, and the buffers that are in it.
struct Part {
  const char* name;
  shard_state_filter filter;
  const char* mean;  // The key of kMean, null where the part lacks it.
  bool epoch;

  // Expects the buffers of the part to be those of `loaded_rank`, and all
  // others to be those of `rank`.
  void Expect(const Engine& engine, int rank, int loaded_rank) const {
    BufferValues expected = ValuesOfRank(mean != nullptr ? loaded_rank : rank);
    expected.scratch = ValuesOfRank(rank).scratch;  // Not persistent.
    EXPECT_EQ(ReadBuffers(engine), expected);
    EXPECT_EQ(*BufferOf<int64_t>(engine, kEpoch, 1),
              epoch ? loaded_rank : rank);
  }
};

constexpr int32_t kOnlyNorm[] = {kNorm};
constexpr Part kParts[] = {
    {"a submodule",
     {.submodules = kOnlyNorm, .num_submodules = 1},
     "norm.running_mean",
     false},
    {"a submodule without its prefix",
     {.submodules = kOnlyNorm, .num_submodules = 1, .strip_prefix = 1},
     "running_mean",
     false},
    // Buffers are no frozen parameters.
    {"without frozen ones", {.ignore_frozen = 1}, "norm.running_mean", true},
    {"the model", {.content = SHARD_CONTENT_MODEL}, "norm.running_mean", true},
    {"optimizer states", {.content = SHARD_CONTENT_OPTIMIZER}, nullptr, false},
};

// Expects `has(key)` to be true for the keys of a part, and for no others.
template <typename Has>
void ExpectKeys(const Part& part, const Has& has) {
  for (const std::string key : {"norm.running_mean", "running_mean"}) {
    EXPECT_EQ(has(key.c_str()), part.mean != nullptr && part.mean == key)
        << key;
  }
  EXPECT_EQ(has("epoch"), part.epoch);
}

TEST(BuffersStateTest, CheckpointsOfParts) {
  for (const Part& part : kParts) {
    SCOPED_TRACE(part.name);
    const std::string root = NewFolder();
    RunRanks(2, [&](int rank, shard_comm* comm) {
      const Engine engine = FilteredEngine(comm);
      WriteAllBuffers(engine, rank + 7);
      shard_save_options save = SHARD_SAVE_OPTIONS_INIT;
      save.filter = part.filter;
      ASSERT_OK(
          shard_checkpoint_save(engine.get(), root.c_str(), &save, nullptr));
      WriteAllBuffers(engine, rank);
      shard_load_options load = SHARD_LOAD_OPTIONS_INIT;
      load.filter = part.filter;
      shard_load_report report = SHARD_LOAD_REPORT_INIT;
      ASSERT_OK(
          shard_checkpoint_load(engine.get(), root.c_str(), &load, &report));
      EXPECT_EQ(report.missing + report.unexpected, 0);
      part.Expect(engine, rank, 7);
    });
    shard_checkpoint* opened = nullptr;
    ASSERT_OK(shard_checkpoint_open(root.c_str(), &opened));
    const Checkpoint checkpoint(opened);
    ExpectKeys(part, [&](const char* key) {
      int64_t tensor = -1;
      const auto found = Take(shard_checkpoint_find(opened, key, &tensor));
      return found.code == SHARD_OK;
    });
  }
}

struct Gathered {
  std::map<std::string, std::string> bytes;
  std::map<std::string, shard_tensor_info> infos;
};

int32_t TakeTensor(const char* key, const shard_tensor_info* info,
                   const void* data, void* user_data) {
  auto* const gathered = static_cast<Gathered*>(user_data);
  gathered->infos[key] = *info;
  const auto* const bytes = static_cast<const char*>(data);
  gathered->bytes[key] =
      data == nullptr ? "" : std::string(bytes, bytes + info->bytes);
  return 0;
}

TEST(BuffersStateTest, StateDictsHaveThemOnce) {
  for (const int32_t from_rank0 : {0, 1}) {
    RunRanks(2, [&](int rank, shard_comm* comm) {
      const Engine engine = EngineOf(NormModel(), comm);
      ASSERT_OK(shard_engine_broadcast_params(engine.get(), 0));
      WriteBuffers(engine, ValuesOfRank(rank));
      shard_state_dict* made = nullptr;
      shard_state_dict_options copy = SHARD_STATE_DICT_OPTIONS_INIT;
      copy.copy = 1;
      ASSERT_OK(shard_state_dict_get(engine.get(), &copy, &made));
      const State part(made);
      int64_t tensor = -1;
      int64_t numel = -1;
      ASSERT_OK(shard_state_dict_find(made, "norm.running_mean", &tensor));
      ASSERT_OK(shard_state_dict_local(made, tensor, nullptr, &numel, nullptr));
      EXPECT_EQ(numel, rank == 0 ? kFeatures : 0);
      EXPECT_FAILS(shard_state_dict_find(made, "scratch", &tensor),
                   SHARD_NOT_FOUND, "scratch");

      Gathered whole;
      ASSERT_OK(shard_state_dict_gather(engine.get(), nullptr, -1, TakeTensor,
                                        &whole));
      int64_t tracked = 0;
      ASSERT_EQ(whole.bytes["norm.num_batches_tracked"].size(), 8u);
      std::memcpy(&tracked, whole.bytes["norm.num_batches_tracked"].data(), 8);
      EXPECT_EQ(tracked, ValuesOfRank(0).tracked);
      EXPECT_EQ(whole.infos["norm.num_batches_tracked"].dtype, SHARD_I64);
      EXPECT_EQ(whole.infos["norm.running_mean"].role, SHARD_ROLE_BUFFER);

      // The part of each rank, and the whole, restore them on all ranks.
      BufferValues expected = ValuesOfRank(0);
      expected.scratch = ValuesOfRank(9).scratch;
      WriteBuffers(engine, ValuesOfRank(9));
      ASSERT_OK(shard_state_dict_load(engine.get(), made, nullptr, 0, nullptr));
      EXPECT_EQ(ReadBuffers(engine), expected);
      shard_state_dict* filled = nullptr;
      ASSERT_OK(shard_state_dict_create(&filled));
      const State state(filled);
      for (const auto& [key, bytes] : whole.bytes) {
        const shard_tensor_info& info = whole.infos[key];
        ASSERT_OK(shard_state_dict_add(
            filled, key.c_str(), info.dtype, info.shape,
            static_cast<size_t>(info.ndim), bytes.data(), bytes.size()));
      }
      WriteBuffers(engine, ValuesOfRank(9));
      ASSERT_OK(shard_state_dict_load(engine.get(), filled, nullptr, from_rank0,
                                      nullptr));
      EXPECT_EQ(ReadBuffers(engine), expected);
    });
  }
}

TEST(BuffersStateTest, StateDictsOfParts) {
  for (const Part& part : kParts) {
    SCOPED_TRACE(part.name);
    RunRanks(2, [&](int rank, shard_comm* comm) {
      const Engine engine = FilteredEngine(comm);
      WriteAllBuffers(engine, rank + 7);
      shard_state_dict_options options = SHARD_STATE_DICT_OPTIONS_INIT;
      options.filter = part.filter;
      options.copy = 1;
      shard_state_dict* made = nullptr;
      ASSERT_OK(shard_state_dict_get(engine.get(), &options, &made));
      const State state(made);
      ExpectKeys(part, [&](const char* key) {
        int64_t tensor = -1;
        const auto found = Take(shard_state_dict_find(made, key, &tensor));
        return found.code == SHARD_OK;
      });
      options.copy = 0;
      Gathered whole;
      ASSERT_OK(shard_state_dict_gather(engine.get(), &options, -1, TakeTensor,
                                        &whole));
      ExpectKeys(part,
                 [&](const char* key) { return whole.bytes.count(key) == 1; });

      WriteAllBuffers(engine, rank);
      shard_load_options load = SHARD_LOAD_OPTIONS_INIT;
      load.filter = part.filter;
      shard_load_report report = SHARD_LOAD_REPORT_INIT;
      ASSERT_OK(shard_state_dict_load(engine.get(), made, &load, 0, &report));
      EXPECT_EQ(report.missing + report.unexpected, 0);
      part.Expect(engine, rank, 7);
    });
  }
}

}  // namespace
}  // namespace shard_api_testing::buffers_state_test
