// SPDX-License-Identifier: Apache-2.0
//
// A model with buffers (torch's register_buffer) of every kind: floats and
// integers, persistent and not, ignored, empty; and their values on a rank.

#ifndef SHARD_TESTS_API_NORM_MODEL_H_
#define SHARD_TESTS_API_NORM_MODEL_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/api/api_testing.h"

namespace shard_api_testing {

// The buffers of NormModel, by id.
enum : int32_t {
  kMean,
  kTracked,
  kScratch,
  kSkipped,
  kNothing,
  kNumModelBuffers
};
// The module of its batch norm, and the elements of kMean.
inline constexpr int32_t kNorm = 1;
inline constexpr int64_t kFeatures = 5;

inline int32_t AddBuffer(shard_model* model, int32_t module, const char* name,
                         shard_dtype dtype, const std::vector<int64_t>& shape,
                         int32_t persistent = 1) {
  int32_t buffer = -1;
  EXPECT_OK(shard_model_add_buffer(model, module, name, dtype, shape.data(),
                                   shape.size(), persistent, &buffer));
  return buffer;
}

// Returns SmallModel with a batch norm.
inline Model NormModel(shard_dtype mean_dtype = SHARD_F32,
                       int64_t features = kFeatures) {
  Model model = SmallModel();
  int32_t norm = 0;
  int32_t skipped = 0;
  EXPECT_OK(shard_model_add_module(model.get(), 0, "norm", NULL, &norm));
  EXPECT_EQ(norm, kNorm);
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

inline Engine EngineOf(const Model& model, shard_comm* comm,
                       int32_t stage = 1) {
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
struct BufferValues {
  std::vector<float> mean;
  int64_t tracked;
  std::vector<uint8_t> scratch;
  friend bool operator==(const BufferValues&, const BufferValues&) = default;
};

inline BufferValues ReadBuffers(const Engine& engine) {
  const float* const mean = BufferOf<float>(engine, kMean, kFeatures);
  const uint8_t* const scratch = BufferOf<uint8_t>(engine, kScratch, 3);
  return {{mean, mean + kFeatures},
          *BufferOf<int64_t>(engine, kTracked, 1),
          {scratch, scratch + 3}};
}

// Returns values that only `rank` has.
inline BufferValues ValuesOfRank(int rank) {
  return {std::vector<float>(kFeatures, 0.5f + static_cast<float>(rank)),
          (int64_t{1} << 40) + rank,
          std::vector<uint8_t>(3, static_cast<uint8_t>(rank + 1))};
}

inline void WriteBuffers(const Engine& engine, const BufferValues& values) {
  std::memcpy(BufferOf<float>(engine, kMean, kFeatures), values.mean.data(),
              kFeatures * sizeof(float));
  *BufferOf<int64_t>(engine, kTracked, 1) = values.tracked;
  std::memcpy(BufferOf<uint8_t>(engine, kScratch, 3), values.scratch.data(), 3);
}

}  // namespace shard_api_testing

#endif  // SHARD_TESTS_API_NORM_MODEL_H_
