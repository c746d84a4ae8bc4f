// SPDX-License-Identifier: Apache-2.0
//
// State dicts through the C interface.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"

namespace shard_api_testing::state_test {
namespace {

using Tensors = std::map<std::string, std::vector<float>>;

void StepOnce(shard_engine* engine) {
  FillGrad(engine, 1.0f);
  EXPECT_OK(shard_engine_step(engine, nullptr, nullptr));
  EXPECT_OK(shard_engine_zero_grad(engine));
}

// Returns an engine of `model` with momentum, after one step.
Engine SteppedEngine(shard_comm* comm, const char* url_optimizer,
                     const Model& model = SmallModel()) {
  shard_plan_options options = PlanOptions(shard_comm_world_size(comm));
  options.optimizer = url_optimizer;
  Engine engine = MakeEngine(MakePlan(model.get(), options).get(), comm);
  const std::vector<float> ones(kWeightNumel, 1.0f);
  EXPECT_OK(shard_engine_set_param(engine.get(), kWeight, ones.data(),
                                   ones.size() * sizeof(float)));
  EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
  StepOnce(engine.get());
  return engine;
}

State GetState(shard_engine* engine, const shard_state_dict_options* options) {
  shard_state_dict* state = nullptr;
  EXPECT_OK(shard_state_dict_get(engine, options, &state));
  return State(state);
}

std::string KeyOf(const shard_state_dict* state, int64_t tensor) {
  char key[256];
  size_t length = 0;
  EXPECT_OK(
      shard_state_dict_tensor_key(state, tensor, key, sizeof(key), &length));
  return std::string(key, length);
}

std::map<std::string, double> Numbers(const shard_state_dict* state) {
  std::map<std::string, double> numbers;
  for (int64_t n = 0; n < shard_state_dict_num_numbers(state); ++n) {
    char key[256];
    size_t length = 0;
    double value = 0;
    EXPECT_OK(
        shard_state_dict_number(state, n, &value, key, sizeof(key), &length));
    numbers[key] = value;
  }
  return numbers;
}

int32_t TakeTensor(const char* key, const shard_tensor_info* info,
                   const void* data, void* user_data) {
  auto* const tensors = static_cast<Tensors*>(user_data);
  const auto* const values = static_cast<const float*>(data);
  EXPECT_EQ(data == nullptr, info->numel == 0 || info->alias_of >= 0);
  std::vector<float>& into = (*tensors)[key];
  if (data != nullptr) into.assign(values, values + info->numel);
  return 0;
}

Tensors Gather(shard_engine* engine, int32_t rank) {
  Tensors tensors;
  EXPECT_OK(
      shard_state_dict_gather(engine, nullptr, rank, &TakeTensor, &tensors));
  return tensors;
}

TEST(StateApiTest, RanksOwnEveryElementOnceAndGatherThemAll) {
  for (const int world_size : {1, 2, 3}) {
    Tensors whole;
    std::vector<Tensors> gathered(static_cast<size_t>(world_size));
    std::mutex mutex;
    std::map<std::string, int64_t> owned;
    RunRanks(world_size, [&](int rank, shard_comm* comm) {
      const Engine engine = SteppedEngine(comm, "sgd?momentum=0.9");
      gathered[static_cast<size_t>(rank)] = Gather(engine.get(), -1);
      const Tensors on_last = Gather(engine.get(), world_size - 1);
      EXPECT_EQ(on_last.empty(), rank != world_size - 1);
      const State state = GetState(engine.get(), nullptr);
      const std::lock_guard<std::mutex> lock(mutex);
      if (rank == world_size - 1) whole = on_last;
      for (int64_t t = 0; t < shard_state_dict_num_tensors(state.get()); ++t) {
        int64_t begin = 0;
        int64_t numel = 0;
        const void* data = nullptr;
        ASSERT_OK(
            shard_state_dict_local(state.get(), t, &begin, &numel, &data));
        owned[KeyOf(state.get(), t)] += numel;
      }
    });
    EXPECT_EQ(whole.size(), 7u);  // 4 stored parameters and 3 states.
    EXPECT_EQ(whole.count("state.weight.momentum_buffer"), 1u);
    for (const Tensors& tensors : gathered) EXPECT_EQ(tensors, whole);
    for (const auto& [key, values] : whole) {
      EXPECT_EQ(owned[key], static_cast<int64_t>(values.size())) << key;
    }
  }
}

TEST(StateApiTest, AStateDictMovesARunToAnotherWorld) {
  Tensors whole;
  std::map<std::string, double> numbers;
  RunRanks(2, [&](int rank, shard_comm* comm) {
    const Engine engine = SteppedEngine(comm, "sgd?momentum=0.9&lr=0.25");
    const Tensors tensors = Gather(engine.get(), 0);
    if (rank != 0) return;
    whole = tensors;
    numbers = Numbers(GetState(engine.get(), nullptr).get());
  });
  EXPECT_EQ(numbers["state.weight.step"], 1);
  EXPECT_EQ(numbers["param_groups.weight.lr"], 0.25);
  for (const int32_t from_rank0 : {0, 1}) {
    RunRanks(3, [&](int rank, shard_comm* comm) {
      const Engine engine = SteppedEngine(comm, "sgd?momentum=0.9&lr=0.5");
      shard_state_dict* made = nullptr;
      ASSERT_OK(shard_state_dict_create(&made));
      const State state(made);
      for (const auto& [key, values] : whole) {
        const int64_t count = static_cast<int64_t>(values.size());
        std::vector<int64_t> shape = {count};
        if (key.find("weight") != std::string::npos) shape = {4, 3};
        if (key.find("empty") != std::string::npos) shape = {0, 2};
        ASSERT_OK(shard_state_dict_add(made, key.c_str(), SHARD_F32,
                                       shape.data(), shape.size(),
                                       values.data(), values.size() * 4));
      }
      for (const auto& [key, value] : numbers) {
        ASSERT_OK(shard_state_dict_add_number(made, key.c_str(), value));
      }
      shard_load_report report = SHARD_LOAD_REPORT_INIT;
      ASSERT_OK(shard_state_dict_load(
          engine.get(), from_rank0 == 1 && rank != 0 ? nullptr : made, nullptr,
          from_rank0, &report));
      EXPECT_EQ(report.step, 1);
      EXPECT_EQ(report.missing, 0);
      EXPECT_EQ(Gather(engine.get(), -1), whole);
      double lr = 0;
      ASSERT_OK(shard_engine_hyper(engine.get(), 0, "lr", &lr));
      EXPECT_EQ(lr, 0.25);
    });
  }
}

TEST(StateApiTest, ACopyStaysAndGoesBack) {
  RunRanks(2, [&](int, shard_comm* comm) {
    const Engine engine = SteppedEngine(comm, "sgd?momentum=0.9");
    shard_state_dict_options options = SHARD_STATE_DICT_OPTIONS_INIT;
    options.copy = 1;
    const State state = GetState(engine.get(), &options);
    const Tensors before = Gather(engine.get(), -1);
    StepOnce(engine.get());
    EXPECT_NE(Gather(engine.get(), -1), before);
    // Each rank loads the elements that it owns.
    ASSERT_OK(
        shard_state_dict_load(engine.get(), state.get(), nullptr, 0, nullptr));
    EXPECT_EQ(Gather(engine.get(), -1), before);
  });
}

TEST(StateApiTest, KeysThatDoNotFitAreListed) {
  RunRanks(2, [&](int, shard_comm* comm) {
    const Engine engine = SteppedEngine(comm, "sgd?lr=0.5");
    shard_state_dict* made = nullptr;
    ASSERT_OK(shard_state_dict_create(&made));
    const State state(made);
    const int64_t shape[] = {3};
    const float values[3] = {1, 2, 3};
    ASSERT_OK(
        shard_state_dict_add(made, "bias", SHARD_F32, shape, 1, values, 12));
    ASSERT_OK(
        shard_state_dict_add(made, "other", SHARD_F32, shape, 1, values, 12));
    shard_load_options options = SHARD_LOAD_OPTIONS_INIT;
    options.filter.content = SHARD_CONTENT_MODEL;
    shard_error* const error =
        shard_state_dict_load(engine.get(), made, &options, 0, nullptr);
    ASSERT_NE(error, nullptr);
    EXPECT_THAT(shard_error_detail(error), ::testing::HasSubstr("\"other\""));
    EXPECT_FAILS(error, SHARD_FAILED_PRECONDITION, "3 missing", "weight",
                 "1 unexpected: other");
    options.allow_mismatch = 1;
    shard_load_report report = SHARD_LOAD_REPORT_INIT;
    ASSERT_OK(shard_state_dict_load(engine.get(), made, &options, 0, &report));
    EXPECT_EQ(report.missing, 3);
    EXPECT_EQ(report.unexpected, 1);
    EXPECT_EQ(report.loaded, 1);
  });
}

TEST(StateApiTest, AMissingNumberKeepsItsValue) {
  RunRanks(2, [&](int, shard_comm* comm) {
    const Engine engine = SteppedEngine(comm, "sgd?momentum=0.9");
    StepOnce(engine.get());
    shard_state_dict* made = nullptr;
    ASSERT_OK(shard_state_dict_create(&made));
    const State state(made);
    const int64_t shape[] = {3};
    const float values[3] = {1, 2, 3};
    // The key is that of a program that wraps its modules.
    ASSERT_OK(shard_state_dict_add(made, "state.module.bias.momentum_buffer",
                                   SHARD_F32, shape, 1, values, 12));
    ASSERT_OK(shard_state_dict_add_number(made, "state.module.bias.step", 1));
    shard_load_options options = SHARD_LOAD_OPTIONS_INIT;
    options.filter.content = SHARD_CONTENT_OPTIMIZER;
    options.allow_mismatch = 1;
    options.strip_leading_module = 1;
    shard_load_report report = SHARD_LOAD_REPORT_INIT;
    ASSERT_OK(shard_state_dict_load(engine.get(), made, &options, 0, &report));
    EXPECT_EQ(report.loaded, 1);
    auto numbers = Numbers(GetState(engine.get(), nullptr).get());
    EXPECT_EQ(numbers["state.bias.step"], 1);
    EXPECT_EQ(numbers["state.weight.step"], 2);
  });
}

// As for its tensors, another program may know the parameter by another of its
// names.
TEST(StateApiTest, NumbersOfATiedParameterAreFoundUnderAnyName) {
  RunRanks(2, [&](int, shard_comm* comm) {
    const Model model = SmallModel();
    int32_t head = 0;
    ASSERT_OK(shard_model_add_module(model.get(), 0, "head", "Head", &head));
    ASSERT_OK(shard_model_tie(model.get(), head, "weight", kWeight));
    const Engine engine = SteppedEngine(comm, "sgd?momentum=0.9", model);
    shard_state_dict* made = nullptr;
    ASSERT_OK(shard_state_dict_create(&made));
    const State state(made);
    const int64_t shape[] = {4, 3};
    const float values[kWeightNumel] = {};
    ASSERT_OK(shard_state_dict_add(made, "state.head.weight.momentum_buffer",
                                   SHARD_F32, shape, 2, values,
                                   sizeof(values)));
    ASSERT_OK(shard_state_dict_add_number(made, "state.head.weight.step", 7));
    ASSERT_OK(shard_state_dict_add_number(made, "param_groups.head.weight.lr",
                                          0.125));
    shard_load_options options = SHARD_LOAD_OPTIONS_INIT;
    options.filter.content = SHARD_CONTENT_OPTIMIZER;
    options.allow_mismatch = 1;
    ASSERT_OK(shard_state_dict_load(engine.get(), made, &options, 0, nullptr));
    auto numbers = Numbers(GetState(engine.get(), nullptr).get());
    EXPECT_EQ(numbers["state.weight.step"], 7);
    EXPECT_EQ(numbers["state.bias.step"], 1);
    EXPECT_EQ(numbers["param_groups.weight.lr"], 0.125);
  });
}

// As for tensors, a key of this model comes before one that only matches
// without its wrapper.
TEST(StateApiTest, ANumberOfThisModelsKeyComesFirst) {
  RunRanks(2, [&](int, shard_comm* comm) {
    const Engine engine = SteppedEngine(comm, "sgd?momentum=0.9");
    shard_state_dict* made = nullptr;
    ASSERT_OK(shard_state_dict_create(&made));
    const State state(made);
    ASSERT_OK(
        shard_state_dict_add_number(made, "state._orig_mod.bias.step", 3));
    ASSERT_OK(shard_state_dict_add_number(made, "state.bias.step", 5));
    ASSERT_OK(shard_state_dict_add_number(made, "state.weight.step", 5));
    shard_load_options options = SHARD_LOAD_OPTIONS_INIT;
    options.filter.content = SHARD_CONTENT_OPTIMIZER;
    options.allow_mismatch = 1;
    ASSERT_OK(shard_state_dict_load(engine.get(), made, &options, 0, nullptr));
    auto numbers = Numbers(GetState(engine.get(), nullptr).get());
    EXPECT_EQ(numbers["state.bias.step"], 5);
  });
}

TEST(StateApiTest, ALoadThatFailsChangesNothing) {
  RunRanks(2, [&](int, shard_comm* comm) {
    const Model model = SmallModel();
    AddParam(model.get(), "large", {1000});
    const Engine engine = SteppedEngine(comm, "sgd?momentum=0.9", model);
    const Tensors before = Gather(engine.get(), -1);
    // A rank's part of the state is not the whole that rank 0 would send. Both
    // ranks own some of the large parameter.
    shard_state_dict_options copy = SHARD_STATE_DICT_OPTIONS_INIT;
    copy.copy = 1;
    const State part = GetState(engine.get(), &copy);
    EXPECT_FAILS(
        shard_state_dict_load(engine.get(), part.get(), nullptr, 1, nullptr),
        SHARD_OUT_OF_RANGE, "large", "has not all of the 1000 elements");
    EXPECT_EQ(Gather(engine.get(), -1), before);

    shard_state_dict* made = nullptr;
    ASSERT_OK(shard_state_dict_create(&made));
    const State state(made);
    const int64_t shape[] = {3};
    const int64_t one[] = {1};
    const uint8_t codes[12] = {};
    ASSERT_OK(shard_state_dict_add(made, "state.bias.momentum_buffer", SHARD_Q8,
                                   shape, 1, codes, 3));
    ASSERT_OK(shard_state_dict_add(made, "state.bias.momentum_buffer.q8_scale",
                                   SHARD_U8, one, 1, codes, 1));
    shard_load_options options = SHARD_LOAD_OPTIONS_INIT;
    options.filter.content = SHARD_CONTENT_OPTIMIZER;
    options.allow_mismatch = 1;
    options.convert = 1;
    EXPECT_FAILS(
        shard_state_dict_load(engine.get(), made, &options, 0, nullptr),
        SHARD_FAILED_PRECONDITION, "momentum_buffer");
    ASSERT_OK(shard_state_dict_add_number(made, "state.bias.step", -5));
    EXPECT_FAILS(
        shard_state_dict_load(engine.get(), made, &options, 0, nullptr),
        SHARD_INVALID_ARGUMENT, "state.bias.step", "-5");
    EXPECT_EQ(Gather(engine.get(), -1), before);
    StepOnce(engine.get());
  });
}

TEST(StateApiTest, WrongArguments) {
  EXPECT_FAILS(shard_state_dict_create(nullptr), SHARD_INVALID_ARGUMENT,
               "NULL");
  EXPECT_FAILS(shard_state_dict_get(nullptr, nullptr, nullptr),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_FAILS(
      shard_state_dict_gather(nullptr, nullptr, 0, &TakeTensor, nullptr),
      SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_FAILS(shard_state_dict_load(nullptr, nullptr, nullptr, 0, nullptr),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_EQ(shard_state_dict_num_tensors(nullptr), 0);
  EXPECT_EQ(shard_state_dict_num_numbers(nullptr), 0);
  shard_state_dict_free(nullptr);

  shard_state_dict* made = nullptr;
  ASSERT_OK(shard_state_dict_create(&made));
  const State state(made);
  const int64_t shape[] = {3, -1};
  const float values[3] = {};
  const auto add = [&](const char* key, int32_t dtype, size_t ndim,
                       const void* data, size_t bytes) {
    return shard_state_dict_add(made, key, dtype, shape, ndim, data, bytes);
  };
  EXPECT_FAILS(add(nullptr, SHARD_F32, 1, values, 12), SHARD_INVALID_ARGUMENT,
               "key is NULL");
  EXPECT_FAILS(add("", SHARD_F32, 1, values, 12), SHARD_INVALID_ARGUMENT,
               "empty");
  EXPECT_FAILS(add("x", 99, 1, values, 12), SHARD_INVALID_ARGUMENT, "dtype 99");
  EXPECT_FAILS(add("x", SHARD_F32, 9, values, 12), SHARD_INVALID_ARGUMENT,
               "9 dimensions");
  EXPECT_FAILS(add("x", SHARD_F32, 2, values, 12), SHARD_INVALID_ARGUMENT,
               "negative");
  EXPECT_FAILS(add("x", SHARD_F32, 1, values, 11), SHARD_INVALID_ARGUMENT,
               "12 bytes", "not 11");
  EXPECT_FAILS(add("x", SHARD_F32, 1, nullptr, 12), SHARD_INVALID_ARGUMENT,
               "data is NULL");
  EXPECT_OK(add("x", SHARD_F32, 1, values, 12));
  EXPECT_FAILS(add("x", SHARD_F32, 1, values, 12), SHARD_INVALID_ARGUMENT,
               "already");
  EXPECT_FAILS(shard_state_dict_add_number(made, "n", 1.0 / 0.0),
               SHARD_INVALID_ARGUMENT, "finite");
  EXPECT_FAILS(shard_state_dict_add_number(made, "x", 1),
               SHARD_INVALID_ARGUMENT, "'x' is a tensor", "already");
  EXPECT_OK(shard_state_dict_add_number(made, "n", 1));
  EXPECT_FAILS(add("n", SHARD_F32, 1, values, 12), SHARD_INVALID_ARGUMENT,
               "'n'", "already");
  int64_t tensor = 7;
  EXPECT_FAILS(shard_state_dict_find(made, "y", &tensor), SHARD_NOT_FOUND,
               "'y'");
  EXPECT_EQ(tensor, 0);
  shard_tensor_info info = SHARD_TENSOR_INFO_INIT;
  EXPECT_FAILS(shard_state_dict_tensor(made, 1, &info), SHARD_INVALID_ARGUMENT,
               "tensor 1", "has 1");
  EXPECT_FAILS(shard_state_dict_tensor(made, 0, nullptr),
               SHARD_INVALID_ARGUMENT, "info is NULL");
  int64_t begin = 1;
  EXPECT_OK(shard_state_dict_local(made, 0, &begin, nullptr, nullptr));
  EXPECT_EQ(begin, 0);
  EXPECT_OK(shard_state_dict_local(made, 0, nullptr, nullptr, nullptr));
  shard_device_kind kind = 7;
  int32_t ordinal = 7;
  EXPECT_FAILS(shard_state_dict_device(nullptr, 0, &kind, &ordinal),
               SHARD_INVALID_ARGUMENT, "state is NULL");
  EXPECT_EQ(kind, 0);
  EXPECT_EQ(ordinal, 0);
  EXPECT_FAILS(shard_state_dict_device(made, 1, &kind, &ordinal),
               SHARD_INVALID_ARGUMENT, "tensor 1", "has 1");
  EXPECT_FAILS(shard_state_dict_device(made, 0, nullptr, &ordinal),
               SHARD_INVALID_ARGUMENT, "kind is NULL");
  // Tensors that the host has added are in its memory.
  EXPECT_OK(shard_state_dict_device(made, 0, &kind, nullptr));
  EXPECT_EQ(kind, SHARD_DEVICE_CPU);
  size_t length = 1;
  EXPECT_FAILS(shard_state_dict_number(made, 1, nullptr, nullptr, 0, &length),
               SHARD_INVALID_ARGUMENT, "number 1");
  EXPECT_FAILS(shard_state_dict_tensor_key(made, -1, nullptr, 0, &length),
               SHARD_INVALID_ARGUMENT, "tensor -1");
}

}  // namespace
}  // namespace shard_api_testing::state_test
