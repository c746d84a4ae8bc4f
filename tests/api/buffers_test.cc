// SPDX-License-Identifier: Apache-2.0
//
// Buffers of a model (torch's register_buffer) through the C interface: their
// declaration, their list in a plan, their memory, and broadcasts.

#include <cstdint>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"
#include "tests/api/norm_model.h"

namespace shard_api_testing::buffers_test {
namespace {

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
  WriteBuffers(engine, ValuesOfRank(3));
  ASSERT_OK(shard_engine_broadcast_params(engine.get(), 0));
  // Another plan keeps the pointers and the values.
  const int32_t frozen = kFrozen;
  ASSERT_OK(shard_engine_set_trainable(engine.get(), &frozen, 1, 1, 0));
  EXPECT_EQ(BufferOf<float>(engine, kMean, kFeatures), mean);
  EXPECT_EQ(ReadBuffers(engine), ValuesOfRank(3));
}

// Returns a plan made from the bytes of another one.
Plan Decoded(const Plan& plan) {
  size_t length = 0;
  EXPECT_OK(shard_plan_encode(plan.get(), nullptr, 0, &length));
  std::vector<char> bytes(length);
  EXPECT_OK(shard_plan_encode(plan.get(), bytes.data(), length, &length));
  shard_plan* decoded = nullptr;
  EXPECT_OK(shard_plan_decode(bytes.data(), length, &decoded));
  return Plan(decoded);
}

TEST(BuffersTest, APlanListsThem) {
  const Plan plan = MakePlan(NormModel().get(), PlanOptions(1));
  const Plan decoded = Decoded(plan);
  struct Row {
    int32_t buffer;
    const char* name;
    shard_dtype dtype;
    std::vector<int64_t> shape;
    int64_t numel;
    int32_t module, persistent;
  };
  const std::vector<Row> rows = {
      {kMean, "norm.running_mean", SHARD_F32, {kFeatures}, 5, kNorm, 1},
      {kTracked, "norm.num_batches_tracked", SHARD_I64, {}, 1, kNorm, 1},
      {kScratch, "scratch", SHARD_U8, {3}, 3, 0, 0},
      {kNothing, "norm.nothing", SHARD_BOOL, {0, 2}, 0, kNorm, 1},
  };
  for (const shard_plan* const listed : {plan.get(), decoded.get()}) {
    for (const Row& row : rows) {
      SCOPED_TRACE(row.name);
      shard_model_buffer_info info = SHARD_MODEL_BUFFER_INFO_INIT;
      ASSERT_OK(shard_plan_model_buffer_info(listed, row.buffer, &info));
      EXPECT_EQ(info.dtype, row.dtype);
      EXPECT_EQ(std::vector<int64_t>(info.shape, info.shape + info.ndim),
                row.shape);
      EXPECT_EQ(info.shape[SHARD_MAX_DIMS - 1], 0);
      EXPECT_EQ(info.numel, row.numel);
      EXPECT_EQ(info.module, row.module);
      EXPECT_EQ(info.persistent, row.persistent);
      EXPECT_EQ(TextOf(shard_plan_model_buffer_name, listed, row.buffer),
                row.name);
    }
  }
  EXPECT_EQ(InfoOf(decoded).num_model_buffers, kNumModelBuffers);
  EXPECT_EQ(InfoOf(SmallPlan(1)).num_model_buffers, 0);
}

TEST(BuffersTest, APlanRefusesWrongIds) {
  const Plan plan = MakePlan(NormModel().get(), PlanOptions(1));
  const auto fails = [](const shard_plan* of, int32_t id, shard_code code,
                        const std::string& text, const std::string& more) {
    shard_model_buffer_info info = SHARD_MODEL_BUFFER_INFO_INIT;
    info.numel = 9;
    EXPECT_FAILS(shard_plan_model_buffer_info(of, id, &info), code, text, more);
    EXPECT_EQ(info.numel, 0);
    const char* name = "stale";
    EXPECT_FAILS(shard_plan_model_buffer_name(of, id, &name), code, text, more);
    EXPECT_EQ(name, nullptr);
  };
  for (const int32_t id : {-1, int32_t{kNumModelBuffers}, INT32_MAX}) {
    fails(plan.get(), id, SHARD_INVALID_ARGUMENT,
          "buffer " + std::to_string(id), "has 5");
  }
  fails(plan.get(), kSkipped, SHARD_FAILED_PRECONDITION, "skipped.mean",
        "ignored");
  fails(nullptr, kMean, SHARD_INVALID_ARGUMENT, "plan is NULL", "");
  EXPECT_FAILS(shard_plan_model_buffer_info(plan.get(), kMean, nullptr),
               SHARD_INVALID_ARGUMENT, "info is NULL");
  EXPECT_FAILS(shard_plan_model_buffer_name(plan.get(), kMean, nullptr),
               SHARD_INVALID_ARGUMENT, "name is NULL");
}

TEST(BuffersTest, APlanCountsThemAndKeepsThemAsBytes) {
  const Comm comm = OpenLocal();
  const Plan plan = MakePlan(NormModel().get(), PlanOptions(1));
  EXPECT_NE(InfoOf(plan).fingerprint, InfoOf(SmallPlan(1)).fingerprint);
  const Plan decoded = Decoded(plan);
  EXPECT_EQ(InfoOf(decoded).fingerprint, InfoOf(plan).fingerprint);
  size_t length = 0;
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
  WriteBuffers(engine, ValuesOfRank(1));
  EXPECT_EQ(ReadBuffers(engine), ValuesOfRank(1));
}

TEST(BuffersTest, ABroadcastMakesThemTheSame) {
  RunRanks(3, [&](int rank, shard_comm* comm) {
    const Engine engine = EngineOf(NormModel(), comm);
    WriteBuffers(engine, ValuesOfRank(rank));
    ASSERT_OK(shard_engine_broadcast_buffers(engine.get(), 2, 0));
    EXPECT_EQ(ReadBuffers(engine), ValuesOfRank(2));
    ASSERT_OK(shard_engine_broadcast_params(engine.get(), 0));
    WriteBuffers(engine, ValuesOfRank(rank + 10));
    ASSERT_OK(shard_engine_broadcast_buffers(engine.get(), 0, 5));
    EXPECT_EQ(ReadBuffers(engine), ValuesOfRank(10));
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
    EXPECT_EQ(ReadBuffers(engine), ValuesOfRank(10));
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

}  // namespace
}  // namespace shard_api_testing::buffers_test
