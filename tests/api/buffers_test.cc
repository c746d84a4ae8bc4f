// SPDX-License-Identifier: Apache-2.0
//
// Buffers of a model (torch's register_buffer) through the C interface: their
// declaration, memory, broadcasts, checkpoints and state dicts.

#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"
#include "tests/api/sharded_plans.h"

namespace shard_api_testing::buffers_test {
namespace {

// The buffers of NormModel, by id.
enum : int32_t { kMean, kTracked, kScratch, kSkipped, kNothing };
constexpr int64_t kFeatures = 5;

int32_t AddBuffer(shard_model* model, int32_t module, const char* name,
                  shard_dtype dtype, const std::vector<int64_t>& shape,
                  int32_t persistent = 1) {
  int32_t buffer = -1;
  EXPECT_OK(shard_model_add_buffer(model, module, name, dtype, shape.data(),
                                   shape.size(), persistent, &buffer));
  return buffer;
}

// Returns SmallModel with a batch norm.
Model NormModel(shard_dtype mean_dtype = SHARD_F32,
                int64_t features = kFeatures) {
  Model model = SmallModel();
  int32_t norm = 0;
  int32_t skipped = 0;
  EXPECT_OK(shard_model_add_module(model.get(), 0, "norm", NULL, &norm));
  EXPECT_OK(shard_model_add_module(model.get(), 0, "skipped", NULL, &skipped));
  EXPECT_OK(shard_model_ignore_module(model.get(), skipped));
  EXPECT_EQ(
      AddBuffer(model.get(), norm, "running_mean", mean_dtype, {features}),
      kMean);
  EXPECT_EQ(AddBuffer(model.get(), norm, "num_batches_tracked", SHARD_I64, {}),
            kTracked);
  EXPECT_EQ(AddBuffer(model.get(), 0, "scratch", SHARD_U8, {3}, 0), kScratch);
  EXPECT_EQ(AddBuffer(model.get(), skipped, "mean", SHARD_F32, {2}), kSkipped);
  EXPECT_EQ(AddBuffer(model.get(), norm, "nothing", SHARD_BOOL, {0, 2}),
            kNothing);
  return model;
}

Engine EngineOf(const Model& model, shard_comm* comm, int32_t stage = 1) {
  shard_plan_options options = PlanOptions(shard_comm_world_size(comm));
  options.stage = stage;
  return MakeEngine(MakePlan(model.get(), options).get(), comm);
}

template <typename T>
T* BufferOf(const Engine& engine, int32_t buffer, int64_t expected_numel) {
  void* data = nullptr;
  int64_t numel = -1;
  EXPECT_OK(shard_engine_buffer(engine.get(), buffer, &data, &numel));
  EXPECT_EQ(numel, expected_numel);
  return static_cast<T*>(data);
}

// The values of the buffers of a rank.
struct Values {
  std::vector<float> mean;
  int64_t tracked;
  std::vector<uint8_t> scratch;
  friend bool operator==(const Values&, const Values&) = default;
};

Values ValuesOf(const Engine& engine) {
  const float* const mean = BufferOf<float>(engine, kMean, kFeatures);
  const uint8_t* const scratch = BufferOf<uint8_t>(engine, kScratch, 3);
  return {{mean, mean + kFeatures},
          *BufferOf<int64_t>(engine, kTracked, 1),
          {scratch, scratch + 3}};
}

// Returns values that only `rank` has.
Values Of(int rank) {
  return {std::vector<float>(kFeatures, 0.5f + static_cast<float>(rank)),
          (int64_t{1} << 40) + rank,
          std::vector<uint8_t>(3, static_cast<uint8_t>(rank + 1))};
}

void Set(const Engine& engine, const Values& values) {
  std::memcpy(BufferOf<float>(engine, kMean, kFeatures), values.mean.data(),
              kFeatures * sizeof(float));
  *BufferOf<int64_t>(engine, kTracked, 1) = values.tracked;
  std::memcpy(BufferOf<uint8_t>(engine, kScratch, 3), values.scratch.data(), 3);
}

std::string NewFolder() {
  std::string name = ::testing::TempDir() + "/api-buffers-XXXXXX";
  EXPECT_NE(::mkdtemp(name.data()), nullptr);
  return name;
}

TEST(BuffersTest, WrongDeclarationsAreErrors) {
  const Model owned = SmallModel();
  shard_model* const model = owned.get();
  const int64_t shape[] = {4, -1};
  int32_t id = 7;
  const auto add = [&](const char* name, int32_t dtype, size_t ndim,
                       int32_t persistent = 1, int32_t module = 0) {
    return shard_model_add_buffer(model, module, name, dtype, shape, ndim,
                                  persistent, &id);
  };
  EXPECT_FAILS(
      shard_model_add_buffer(nullptr, 0, "b", SHARD_F32, shape, 1, 1, &id),
      SHARD_INVALID_ARGUMENT, "model");
  EXPECT_EQ(id, 0);
  EXPECT_FAILS(add(nullptr, SHARD_F32, 1), SHARD_INVALID_ARGUMENT, "name");
  EXPECT_FAILS(
      shard_model_add_buffer(model, 0, "b", SHARD_F32, nullptr, 1, 1, &id),
      SHARD_INVALID_ARGUMENT, "shape");
  EXPECT_FAILS(
      shard_model_add_buffer(model, 0, "b", SHARD_F32, shape, 1, 1, nullptr),
      SHARD_INVALID_ARGUMENT, "buffer");
  for (const int32_t dtype :
       {0, int{SHARD_Q8}, 15, 25, int{SHARD_OPAQUE}, -1}) {
    EXPECT_FAILS(add("b", dtype, 1), SHARD_INVALID_ARGUMENT, "buffer 'b'",
                 "unknown dtype " + std::to_string(dtype), "i64");
  }
  EXPECT_FAILS(add("b", SHARD_I64, 2), SHARD_INVALID_ARGUMENT, "[4, -1]");
  EXPECT_FAILS(add("b", SHARD_I64, 9), SHARD_INVALID_ARGUMENT, "ndim 9");
  EXPECT_FAILS(add("b", SHARD_I64, 1, 2), SHARD_INVALID_ARGUMENT,
               "persistent is 2");
  EXPECT_FAILS(add("b", SHARD_I64, 1, 1, 3), SHARD_INVALID_ARGUMENT,
               "no module has the id 3");
  EXPECT_FAILS(add("a.b", SHARD_I64, 1), SHARD_INVALID_ARGUMENT, "'.'");
  // Names are shared with parameters and modules.
  EXPECT_FAILS(add("weight", SHARD_I64, 1), SHARD_ALREADY_EXISTS,
               "parameter named 'weight'");
  ASSERT_OK(add("b", SHARD_I64, 1));
  EXPECT_EQ(id, 0);
  EXPECT_FAILS(add("b", SHARD_I64, 1), SHARD_ALREADY_EXISTS,
               "buffer named 'b'");
  EXPECT_FAILS(shard_model_add_param(model, 0, "b", SHARD_F32, shape, 1, &id),
               SHARD_ALREADY_EXISTS, "buffer named 'b'");
  EXPECT_FAILS(shard_model_add_module(model, 0, "b", nullptr, &id),
               SHARD_ALREADY_EXISTS, "buffer named 'b'");
  EXPECT_FAILS(shard_model_tie(model, 0, "b", kWeight), SHARD_ALREADY_EXISTS,
               "buffer named 'b'");
  // Integers stay out of parameters.
  EXPECT_FAILS(shard_model_add_param(model, 0, "i", SHARD_I64, shape, 1, &id),
               SHARD_INVALID_ARGUMENT, "unknown dtype 19");
  const int64_t huge[] = {int64_t{1} << 60};
  ASSERT_OK(shard_model_add_buffer(model, 0, "h", SHARD_U8, huge, 1, 1, &id));
  shard_plan_options options = PlanOptions(1);
  shard_plan* plan = nullptr;
  EXPECT_FAILS(shard_plan_create(model, &options, &plan),
               SHARD_INVALID_ARGUMENT, "buffer 'h'", "2^53 bytes");
}

TEST(BuffersTest, KeysThatCollideAreErrors) {
  const Model model = SmallModel();
  int32_t wrapper = 0;
  ASSERT_OK(
      shard_model_add_module(model.get(), 0, "_orig_mod", NULL, &wrapper));
  AddBuffer(model.get(), wrapper, "weight", SHARD_F32, {1});
  shard_plan_options options = PlanOptions(1);
  shard_plan* plan = nullptr;
  EXPECT_FAILS(shard_plan_create(model.get(), &options, &plan),
               SHARD_INVALID_ARGUMENT, "parameter 'weight'",
               "buffer '_orig_mod.weight'");
}

TEST(BuffersTest, TheHostHasThemInOnePlace) {
  const Comm comm = OpenLocal();
  const Engine engine = EngineOf(NormModel(), comm.get());
  void* data = Garbage<void>();
  EXPECT_FAILS(shard_engine_buffer(nullptr, kMean, &data, nullptr),
               SHARD_INVALID_ARGUMENT, "engine");
  EXPECT_EQ(data, nullptr);
  EXPECT_FAILS(shard_engine_buffer(engine.get(), kMean, nullptr, nullptr),
               SHARD_INVALID_ARGUMENT, "data");
  for (const int32_t id : {-1, 5}) {
    EXPECT_FAILS(shard_engine_buffer(engine.get(), id, &data, nullptr),
                 SHARD_INVALID_ARGUMENT, "buffer " + std::to_string(id),
                 "has 5");
  }
  EXPECT_FAILS(shard_engine_buffer(engine.get(), kSkipped, &data, nullptr),
               SHARD_FAILED_PRECONDITION, "skipped.mean", "ignored");
  BufferOf<uint8_t>(engine, kNothing, 0);
  float* const mean = BufferOf<float>(engine, kMean, kFeatures);
  EXPECT_FAILS(shard_engine_bind_param(engine.get(), kFrozen, mean,
                                       kFeatures * sizeof(float), nullptr, 0),
               SHARD_INVALID_ARGUMENT, "engine's own");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mean) % 64, 0u);
  EXPECT_EQ(mean[kFeatures - 1], 0.0f);
  Set(engine, Of(3));
  ASSERT_OK(shard_engine_broadcast_params(engine.get(), 0));
  // Another plan keeps the pointers and the values.
  const int32_t frozen = kFrozen;
  ASSERT_OK(shard_engine_set_trainable(engine.get(), &frozen, 1, 1, 0));
  EXPECT_EQ(BufferOf<float>(engine, kMean, kFeatures), mean);
  EXPECT_EQ(ValuesOf(engine), Of(3));
}

TEST(BuffersTest, APlanCountsThemAndKeepsThemAsBytes) {
  const Comm comm = OpenLocal();
  const Plan plan = MakePlan(NormModel().get(), PlanOptions(1));
  EXPECT_NE(InfoOf(plan).fingerprint, InfoOf(SmallPlan(1)).fingerprint);
  size_t length = 0;
  ASSERT_OK(shard_plan_encode(plan.get(), nullptr, 0, &length));
  std::vector<char> bytes(length);
  ASSERT_OK(shard_plan_encode(plan.get(), bytes.data(), length, &length));
  shard_plan* made = nullptr;
  ASSERT_OK(shard_plan_decode(bytes.data(), length, &made));
  const Plan decoded(made);
  EXPECT_EQ(InfoOf(decoded).fingerprint, InfoOf(plan).fingerprint);
  char json[16384];
  ASSERT_OK(shard_plan_json(decoded.get(), json, sizeof(json), &length));
  EXPECT_THAT(json, ::testing::HasSubstr("\"norm.num_batches_tracked\""));
  EXPECT_THAT(json, ::testing::HasSubstr("\"model_buffers\""));

  shard_memory planned = SHARD_MEMORY_INIT;
  shard_memory without = SHARD_MEMORY_INIT;
  shard_memory measured = SHARD_MEMORY_INIT;
  ASSERT_OK(shard_plan_memory(decoded.get(), nullptr, &planned));
  ASSERT_OK(shard_plan_memory(SmallPlan(1).get(), nullptr, &without));
  const Engine engine = MakeEngine(decoded.get(), comm.get());
  ASSERT_OK(shard_engine_memory(engine.get(), &measured));
  EXPECT_EQ(planned.model_buffer_bytes, 4096u);
  EXPECT_EQ(without.model_buffer_bytes, 0u);
  EXPECT_EQ(planned.host_bytes, without.host_bytes + 4096);
  EXPECT_EQ(measured.model_buffer_bytes, planned.model_buffer_bytes);
  EXPECT_EQ(measured.host_bytes, planned.host_bytes);
  Set(engine, Of(1));
  EXPECT_EQ(ValuesOf(engine), Of(1));
}

TEST(BuffersTest, ABroadcastMakesThemTheSame) {
  RunRanks(3, [&](int rank, shard_comm* comm) {
    const Engine engine = EngineOf(NormModel(), comm);
    Set(engine, Of(rank));
    ASSERT_OK(shard_engine_broadcast_buffers(engine.get(), 2, 0));
    EXPECT_EQ(ValuesOf(engine), Of(2));
    ASSERT_OK(shard_engine_broadcast_params(engine.get(), 0));
    Set(engine, Of(rank + 10));
    ASSERT_OK(shard_engine_broadcast_buffers(engine.get(), 0, 5));
    EXPECT_EQ(ValuesOf(engine), Of(10));
    // A wrong argument of one rank is the error of all, and changes nothing.
    for (const int32_t root : {-1, 3}) {
      EXPECT_FAILS(
          shard_engine_broadcast_buffers(engine.get(), rank == 1 ? root : 0, 0),
          SHARD_INVALID_ARGUMENT, "root " + std::to_string(root));
    }
    ASSERT_OK(
        shard_engine_unit_acquire(engine.get(), 0, SHARD_PASS_FORWARD, 0));
    EXPECT_FAILS(shard_engine_broadcast_buffers(engine.get(), 0, 0),
                 SHARD_FAILED_PRECONDITION, "broadcast_buffers");
    ASSERT_OK(shard_engine_unit_release(engine.get(), 0));
    EXPECT_EQ(ValuesOf(engine), Of(10));
    EXPECT_FAILS(shard_engine_broadcast_buffers(engine.get(), rank, 0),
                 SHARD_DESYNC, "root");
  });
}

TEST(BuffersTest, RanksThatDeclareOthersAreTold) {
  const auto create = [](const Model& zero, const Model& one,
                         const std::string& text) {
    RunRanks(2, [&](int rank, shard_comm* comm) {
      const Plan plan =
          MakePlan((rank == 0 ? zero : one).get(), PlanOptions(2));
      shard_engine* engine = nullptr;
      EXPECT_FAILS(shard_engine_create(plan.get(), comm, nullptr, &engine),
                   SHARD_DESYNC, text);
    });
  };
  create(NormModel(), NormModel(SHARD_F64), "norm.running_mean");
  create(NormModel(), NormModel(SHARD_F32, 6), "shape");
  create(NormModel(), SmallModel(), "norm");
  Model kept = SmallModel();
  Model lost = SmallModel();
  AddBuffer(kept.get(), 0, "b", SHARD_F32, {1}, 1);
  AddBuffer(lost.get(), 0, "b", SHARD_F32, {1}, 0);
  create(kept, lost, "persistent");
  create(SmallModel(), kept, "buffer 0 of the model");
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
    Set(engine, Of(rank + 7));
    shard_save* save = nullptr;
    ASSERT_OK(
        shard_checkpoint_save(engine.get(), root.c_str(), nullptr, &save));
    const Save owned(save);
    Set(engine, Of(50));  // Later values are not saved.
    EXPECT_OK(shard_save_wait(save, 0));
  });
  return root;
}

TEST(BuffersTest, ACheckpointHasRankZerosForAnyWorld) {
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
    EXPECT_OK(shard_checkpoint_verify(opened, 1, nullptr, nullptr));
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
          Set(engine, Of(rank));
          const float* const place = BufferOf<float>(engine, kMean, kFeatures);
          const Loaded loaded = Load(engine, path);
          EXPECT_EQ(loaded.outcome.code, SHARD_OK) << loaded.outcome;
          EXPECT_EQ(loaded.report.missing + loaded.report.unexpected, 0);
          Values expected = Of(7);
          expected.scratch = Of(rank).scratch;  // Not persistent.
          EXPECT_EQ(ValuesOf(engine), expected);
          EXPECT_EQ(BufferOf<float>(engine, kMean, kFeatures), place);
        }
      });
    }
  }
}

TEST(BuffersTest, CheckpointsThatDoNotFitAreErrorsAsForParameters) {
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
  fails(NormModel(SHARD_F64), with, false, "'convert' would convert it");
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
    Set(engine, Of(rank));
    const Loaded loaded = Load(engine, without, true);
    EXPECT_EQ(loaded.outcome.code, SHARD_OK) << loaded.outcome;
    EXPECT_EQ(loaded.report.missing, 3);
    EXPECT_EQ(ValuesOf(engine), Of(rank));
  });
}

TEST(BuffersTest, AFailedLoadLeavesNoMixture) {
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
    Set(engine, Of(rank));
    ExpectError(Load(engine, root).outcome, SHARD_CORRUPT, {"data-00000.bin"});
    EXPECT_EQ(ValuesOf(engine),
              (Values{std::vector<float>(kFeatures), 0, Of(rank).scratch}));
  });
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

TEST(BuffersTest, StateDictsHaveThemOnce) {
  for (const int32_t from_rank0 : {0, 1}) {
    RunRanks(2, [&](int rank, shard_comm* comm) {
      const Engine engine = EngineOf(NormModel(), comm);
      ASSERT_OK(shard_engine_broadcast_params(engine.get(), 0));
      Set(engine, Of(rank));
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
      EXPECT_EQ(tracked, Of(0).tracked);
      EXPECT_EQ(whole.infos["norm.num_batches_tracked"].dtype, SHARD_I64);
      EXPECT_EQ(whole.infos["norm.running_mean"].role, SHARD_ROLE_BUFFER);

      // The part of each rank, and the whole, restore them on all ranks.
      Values expected = Of(0);
      expected.scratch = Of(9).scratch;
      Set(engine, Of(9));
      ASSERT_OK(shard_state_dict_load(engine.get(), made, nullptr, 0, nullptr));
      EXPECT_EQ(ValuesOf(engine), expected);
      shard_state_dict* filled = nullptr;
      ASSERT_OK(shard_state_dict_create(&filled));
      const State state(filled);
      for (const auto& [key, bytes] : whole.bytes) {
        const shard_tensor_info& info = whole.infos[key];
        ASSERT_OK(shard_state_dict_add(
            filled, key.c_str(), info.dtype, info.shape,
            static_cast<size_t>(info.ndim), bytes.data(), bytes.size()));
      }
      Set(engine, Of(9));
      ASSERT_OK(shard_state_dict_load(engine.get(), filled, nullptr, from_rank0,
                                      nullptr));
      EXPECT_EQ(ValuesOf(engine), expected);
    });
  }
}

}  // namespace
}  // namespace shard_api_testing::buffers_test
