// SPDX-License-Identifier: Apache-2.0
//
// Helpers that the tests of the C API share: errors as values, handles that
// free themselves, a small model, and groups of threads as ranks. They include
// only the public header and link only libshard.so.0.

#ifndef SHARD_TESTS_API_API_TESTING_H_
#define SHARD_TESTS_API_API_TESTING_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shard/shard.h"

namespace shard_api_testing {

// The contents of a shard_error. The error itself has been freed.
struct Outcome {
  shard_code code = SHARD_OK;
  std::string message;
  int32_t rank = -1;
};

inline std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  return out << shard_code_name(outcome.code) << " '" << outcome.message << "'";
}

// Reads and frees `error`. Expects its message to be one line that is not
// empty.
inline Outcome Take(shard_error* error) {
  if (error == nullptr) return {};
  Outcome outcome{shard_error_code(error), shard_error_message(error),
                  shard_error_rank(error)};
  EXPECT_NE(outcome.code, SHARD_OK);
  EXPECT_NE(outcome.message, "");
  EXPECT_EQ(outcome.message.find('\n'), std::string::npos) << outcome.message;
  EXPECT_STRNE(shard_code_name(outcome.code), "UNKNOWN_CODE");
  shard_error_free(error);
  return outcome;
}

// Expects `code`, and every text of `texts` in the message.
inline void ExpectError(const Outcome& outcome, shard_code code,
                        const std::vector<std::string>& texts) {
  EXPECT_EQ(outcome.code, code) << outcome;
  for (const std::string& text : texts) {
    EXPECT_THAT(outcome.message, ::testing::HasSubstr(text));
  }
}

#define EXPECT_OK(call) EXPECT_EQ(::shard_api_testing::Take(call).message, "")
#define ASSERT_OK(call) ASSERT_EQ(::shard_api_testing::Take(call).message, "")
// EXPECT_FAILS(call, code, texts...) expects a call to fail as ExpectError
// does.
#define EXPECT_FAILS(call, code, ...)                                       \
  do {                                                                      \
    SCOPED_TRACE(#call);                                                    \
    ::shard_api_testing::ExpectError(::shard_api_testing::Take(call), code, \
                                     {__VA_ARGS__});                        \
  } while (false)

// Returns a pointer that a failed call must overwrite.
template <typename T>
T* Garbage() {
  return reinterpret_cast<T*>(uintptr_t{0x5a5a5a5a});
}

template <typename T, void (*kFree)(T*)>
struct Free {
  void operator()(T* handle) const { kFree(handle); }
};
using Comm = std::unique_ptr<shard_comm, Free<shard_comm, shard_comm_free>>;
using Model = std::unique_ptr<shard_model, Free<shard_model, shard_model_free>>;
using Plan = std::unique_ptr<shard_plan, Free<shard_plan, shard_plan_free>>;
using Engine =
    std::unique_ptr<shard_engine, Free<shard_engine, shard_engine_free>>;
using Checkpoint =
    std::unique_ptr<shard_checkpoint,
                    Free<shard_checkpoint, shard_checkpoint_free>>;
using State = std::unique_ptr<shard_state_dict,
                              Free<shard_state_dict, shard_state_dict_free>>;
using Save = std::unique_ptr<shard_save, Free<shard_save, shard_save_free>>;

// Returns the text that `get` writes as its last argument; "" on errors.
template <typename Get, typename... Arguments>
std::string TextOf(const Get& get, Arguments... arguments) {
  const char* text = nullptr;
  EXPECT_OK(get(arguments..., &text));
  return text == nullptr ? "" : text;
}

// Adds a parameter to the root module. Returns -1 when that failed.
inline int32_t AddParam(shard_model* model, const std::string& name,
                        const std::vector<int64_t>& shape,
                        int32_t dtype = SHARD_F32) {
  int32_t param = -1;
  const Outcome outcome = Take(shard_model_add_param(
      model, 0, name.c_str(), dtype, shape.data(), shape.size(), &param));
  EXPECT_EQ(outcome.code, SHARD_OK) << outcome;
  return outcome.code == SHARD_OK ? param : -1;
}

inline Model EmptyModel() {
  shard_model* model = nullptr;
  EXPECT_OK(shard_model_create(nullptr, &model));
  return Model(model);
}

// The parameters of SmallModel, by id.
enum : int32_t { kWeight, kBias, kFrozen, kIgnored, kEmpty, kNumParams };
inline constexpr int64_t kWeightNumel = 12;

inline Model SmallModel() {
  Model model = EmptyModel();
  AddParam(model.get(), "weight", {4, 3});
  AddParam(model.get(), "bias", {3});
  AddParam(model.get(), "frozen", {5});
  AddParam(model.get(), "ignored", {7});
  AddParam(model.get(), "empty", {0, 2});
  EXPECT_OK(shard_model_freeze(model.get(), kFrozen));
  EXPECT_OK(shard_model_ignore_param(model.get(), kIgnored));
  return model;
}

inline shard_plan_options PlanOptions(int32_t world_size) {
  shard_plan_options options = SHARD_PLAN_OPTIONS_INIT;
  options.stage = 1;
  options.world_size = world_size;
  options.optimizer = "sgd?lr=0.5";
  return options;
}

inline Plan MakePlan(const shard_model* model,
                     const shard_plan_options& options) {
  shard_plan* plan = nullptr;
  EXPECT_OK(shard_plan_create(model, &options, &plan));
  return Plan(plan);
}

inline shard_plan_info InfoOf(const Plan& plan) {
  shard_plan_info info = SHARD_PLAN_INFO_INIT;
  EXPECT_OK(shard_plan_get_info(plan.get(), &info));
  return info;
}

inline Plan SmallPlan(int32_t world_size) {
  return MakePlan(SmallModel().get(), PlanOptions(world_size));
}

inline Comm OpenLocal() {
  shard_comm* comm = nullptr;
  EXPECT_OK(shard_comm_open("local:", nullptr, &comm));
  return Comm(comm);
}

// Returns "threads:N?name=..." with a name that no other group of this process
// has.
inline std::string UniqueUrl(int world_size) {
  static std::atomic<int> count{0};
  return "threads:" + std::to_string(world_size) + "?name=api-" +
         std::to_string(++count);
}

// Runs `body` as the ranks of a group of threads. `query`: further parameters
// of the communicator's URL, such as "direct=0".
inline void RunRanks(int world_size,
                     const std::function<void(int rank, shard_comm*)>& body,
                     const std::string& query = "") {
  const std::string url =
      UniqueUrl(world_size) + (query.empty() ? "" : "&" + query);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
      options.rank = rank;
      options.world_size = world_size;
      options.timeout = 30;
      shard_comm* comm = nullptr;
      ASSERT_OK(shard_comm_open(url.c_str(), &options, &comm));
      const Comm owned(comm);
      body(rank, comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline Engine MakeEngine(const shard_plan* plan, shard_comm* comm) {
  shard_engine* engine = nullptr;
  EXPECT_OK(shard_engine_create(plan, comm, nullptr, &engine));
  return Engine(engine);
}

// Returns an engine of the small model whose weights are 1, ready to step.
inline Engine TrainingEngine(shard_comm* comm) {
  Engine engine =
      MakeEngine(SmallPlan(shard_comm_world_size(comm)).get(), comm);
  const std::vector<float> ones(kWeightNumel, 1.0f);
  EXPECT_OK(shard_engine_set_param(engine.get(), kWeight, ones.data(),
                                   ones.size() * sizeof(float)));
  EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
  return engine;
}

inline const float* WeightOf(shard_engine* engine) {
  const void* data = nullptr;
  int64_t numel = 0;
  EXPECT_OK(shard_engine_param(engine, kWeight, &data, &numel));
  EXPECT_EQ(numel, kWeightNumel);
  return static_cast<const float*>(data);
}

// Sets all of this rank's gradients of the weight to `value`.
inline void FillGrad(shard_engine* engine, float value) {
  void* data = nullptr;
  int64_t numel = 0;
  ASSERT_OK(shard_engine_grad(engine, kWeight, &data, &numel));
  std::fill_n(static_cast<float*>(data), numel, value);
}

}  // namespace shard_api_testing

#endif  // SHARD_TESTS_API_API_TESTING_H_
