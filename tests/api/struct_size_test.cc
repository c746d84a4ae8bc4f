// SPDX-License-Identifier: Apache-2.0
//
// Structs that carry their size, from hosts that are older and newer than the
// library.

#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"

namespace shard_api_testing::struct_size_test {
namespace {

constexpr size_t kLargest = 4096;

// Room for a struct of a host that is newer than any other.
template <typename T>
union Roomy {
  unsigned char bytes[2 * kLargest];
  T value;
  Roomy() { std::memset(bytes, 0, sizeof(bytes)); }
};

template <typename T>
using Call = std::function<shard_error*(T*)>;

// Tests the sizes of an options struct. `call` succeeds with `defaults`.
template <typename T>
void ExpectSizesOfOptions(const std::string& name, const T& defaults,
                          const Call<T>& call) {
  SCOPED_TRACE(name);
  const std::string field = name + ".struct_size";
  for (const size_t size : {size_t{0}, size_t{1}, sizeof(size_t) - 1,
                            sizeof(size_t) + 1, sizeof(T) - 4, sizeof(T) + 1,
                            kLargest + 1, std::numeric_limits<size_t>::max()}) {
    T options = defaults;
    options.struct_size = size;
    EXPECT_FAILS(call(&options), SHARD_INVALID_ARGUMENT, field,
                 std::to_string(size));
  }
  for (const size_t size : {sizeof(T) + 8, sizeof(T) + 64, kLargest}) {
    Roomy<T> newer;
    newer.value = defaults;
    newer.value.struct_size = size;
    EXPECT_OK(call(&newer.value));
    // The bytes behind the struct may have any value.
    newer.bytes[size] = 1;
    EXPECT_OK(call(&newer.value));
    for (const size_t at : {sizeof(T), size - 1}) {
      newer.bytes[at] = 1;
      EXPECT_FAILS(call(&newer.value), SHARD_INVALID_ARGUMENT, name,
                   "byte " + std::to_string(at));
      newer.bytes[at] = 0;
    }
  }
}

TEST(StructSizeTest, CommOptions) {
  ExpectSizesOfOptions<shard_comm_options>(
      "shard_comm_options", SHARD_COMM_OPTIONS_INIT,
      [](shard_comm_options* options) {
        shard_comm* comm = nullptr;
        shard_error* error = shard_comm_open("local:", options, &comm);
        shard_comm_free(comm);
        return error;
      });
}

TEST(StructSizeTest, PlanOptions) {
  const Model model = SmallModel();
  ExpectSizesOfOptions<shard_plan_options>(
      "shard_plan_options", PlanOptions(2), [&](shard_plan_options* options) {
        shard_plan* plan = nullptr;
        shard_error* error = shard_plan_create(model.get(), options, &plan);
        shard_plan_free(plan);
        return error;
      });
}

TEST(StructSizeTest, EngineOptions) {
  const Plan plan = SmallPlan(1);
  const Comm comm = OpenLocal();
  ExpectSizesOfOptions<shard_engine_options>(
      "shard_engine_options", SHARD_ENGINE_OPTIONS_INIT,
      [&](shard_engine_options* options) {
        shard_engine* engine = nullptr;
        shard_error* error =
            shard_engine_create(plan.get(), comm.get(), options, &engine);
        shard_engine_free(engine);
        return error;
      });
}

TEST(StructSizeTest, StepOptions) {
  const Comm comm = OpenLocal();
  const Engine engine = TrainingEngine(comm.get());
  ExpectSizesOfOptions<shard_step_options>(
      "shard_step_options", SHARD_STEP_OPTIONS_INIT,
      [&](shard_step_options* options) {
        return shard_engine_step(engine.get(), options, nullptr);
      });
}

// A reserved field can get a meaning only if no host sets it before.
TEST(StructSizeTest, ReservedFieldsAreZero) {
  shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
  options.reserved = 77;
  shard_comm* none = Garbage<shard_comm>();
  EXPECT_FAILS(shard_comm_open("local:", &options, &none),
               SHARD_INVALID_ARGUMENT, "shard_comm_options.reserved", "77");
  EXPECT_EQ(none, nullptr);
  const Comm comm = OpenLocal();
  const Engine engine = TrainingEngine(comm.get());
  shard_step_options step = SHARD_STEP_OPTIONS_INIT;
  step.average_active = 2;
  EXPECT_FAILS(shard_engine_step(engine.get(), &step, nullptr),
               SHARD_INVALID_ARGUMENT, "average_active", "2");
}

// The results of a call that fails are zero, as all of its outputs.
TEST(StructSizeTest, ResultsOfFailedCallsAreZero) {
  const Comm comm = OpenLocal();
  const Engine engine = TrainingEngine(comm.get());
  shard_step_options step = SHARD_STEP_OPTIONS_INIT;
  step.max_grad_norm = -1;
  shard_step_report report = SHARD_STEP_REPORT_INIT;
  report.step = 123;
  report.grad_norm = 5;
  EXPECT_FAILS(shard_engine_step(engine.get(), &step, &report),
               SHARD_INVALID_ARGUMENT, "max_grad_norm=-1");
  EXPECT_EQ(report.struct_size, sizeof(report));
  EXPECT_EQ(report.step, 0);
  EXPECT_EQ(report.grad_norm, 0);
  report.step = 123;
  EXPECT_FAILS(shard_engine_step(nullptr, nullptr, &report),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_EQ(report.step, 0);
}

// Fields that an older host does not know are not read, and have their
// defaults.
TEST(StructSizeTest, SmallerOptionsAreCompleted) {
  const Model model = SmallModel();
  shard_plan_options options = PlanOptions(2);
  const Plan full = MakePlan(model.get(), options);
  options.optimizer = "unread";
  options.struct_size = offsetof(shard_plan_options, optimizer);
  const Plan shorter = MakePlan(model.get(), options);
  options.optimizer = nullptr;
  options.struct_size = sizeof(options);
  EXPECT_EQ(InfoOf(shorter).fingerprint,
            InfoOf(MakePlan(model.get(), options)).fingerprint);
  EXPECT_NE(InfoOf(shorter).fingerprint, InfoOf(full).fingerprint);

  const Comm comm = OpenLocal();
  const Engine engine = TrainingEngine(comm.get());
  shard_step_options step = SHARD_STEP_OPTIONS_INIT;
  step.struct_size = sizeof(size_t);
  step.max_grad_norm = -1;  // It would be an error if it were read.
  EXPECT_OK(shard_engine_step(engine.get(), &step, nullptr));
}

// Tests that a report is written as far as the host knows it.
template <typename T>
void ExpectSizesOfResult(const std::string& name, size_t first_field,
                         const Call<T>& call) {
  SCOPED_TRACE(name);
  for (const size_t size : {size_t{0}, sizeof(size_t) - 1, sizeof(T) - 4,
                            kLargest + 1, std::numeric_limits<size_t>::max()}) {
    T result{};
    result.struct_size = size;
    EXPECT_FAILS(call(&result), SHARD_INVALID_ARGUMENT, name,
                 std::to_string(size));
  }
  Roomy<T> expected;
  expected.value.struct_size = sizeof(T);
  EXPECT_OK(call(&expected.value));
  for (const size_t size :
       {sizeof(size_t), first_field + 8, sizeof(T), sizeof(T) + 40, kLargest}) {
    Roomy<T> given;
    std::memset(given.bytes, 0x5a, sizeof(given.bytes));
    given.value.struct_size = size;
    EXPECT_OK(call(&given.value));
    EXPECT_EQ(given.value.struct_size, size);
    // The field was written, the bytes behind our struct are zeros, and those
    // behind the host's struct were not written.
    if (size >= first_field + 8) {
      EXPECT_NE(given.bytes[first_field + 7], 0x5a);
    }
    for (size_t at = sizeof(T); at < size; ++at) {
      ASSERT_EQ(given.bytes[at], 0) << at;
    }
    for (size_t at = size; at < sizeof(given.bytes); ++at) {
      ASSERT_EQ(given.bytes[at], 0x5a) << at;
    }
  }
}

TEST(StructSizeTest, PlanMemory) {
  const Plan plan = SmallPlan(1);
  ExpectSizesOfOptions<shard_placement>(
      "shard_placement", SHARD_PLACEMENT_INIT, [&](shard_placement* placement) {
        shard_memory memory = SHARD_MEMORY_INIT;
        return shard_plan_memory(plan.get(), placement, &memory);
      });
  ExpectSizesOfResult<shard_memory>(
      "shard_memory", offsetof(shard_memory, param_bytes),
      [&](shard_memory* memory) {
        return shard_plan_memory(plan.get(), nullptr, memory);
      });
}

// Names the struct, and the call that writes it.
#define EXPECT_SIZES_OF_RESULT(type, field, call)         \
  ExpectSizesOfResult<type>(#type, offsetof(type, field), \
                            [&](type* out) { return call; })

TEST(StructSizeTest, Layouts) {
  const Model model = SmallModel();
  int32_t id = 0;
  ASSERT_OK(shard_model_add_buffer(model.get(), 0, "buffer", SHARD_F32, nullptr,
                                   0, 1, &id));
  const Plan owner = MakePlan(model.get(), PlanOptions(1));
  const shard_plan* plan = owner.get();
  EXPECT_SIZES_OF_RESULT(shard_plan_info, fingerprint,
                         shard_plan_get_info(plan, out));
  EXPECT_SIZES_OF_RESULT(shard_param_info, begin,
                         shard_plan_param_info(plan, 0, out));
  EXPECT_SIZES_OF_RESULT(shard_buffer_info, full_numel,
                         shard_plan_buffer_info(plan, 0, out));
  EXPECT_SIZES_OF_RESULT(shard_range, begin,
                         shard_plan_rank_range(plan, 0, 0, out));
  EXPECT_SIZES_OF_RESULT(shard_name_info, param,
                         shard_plan_name_info(plan, 0, out));
  EXPECT_SIZES_OF_RESULT(shard_module_info, module,
                         shard_plan_module_info(plan, 0, out));
  EXPECT_SIZES_OF_RESULT(shard_model_buffer_info, numel,
                         shard_plan_model_buffer_info(plan, 0, out));
  size_t count = 0;
  EXPECT_SIZES_OF_RESULT(shard_slice, begin,
                         shard_plan_slices(plan, 0, 0, 1, out, 1, &count));
}

// A host for which a slice has another size has its slices that far apart.
TEST(StructSizeTest, SlicesAreAsFarApartAsTheHostSays) {
  const Plan plan = SmallPlan(1);
  constexpr int64_t kLast = kWeightNumel;  // The bias's first element.
  for (const size_t size : {sizeof(size_t) + 8, sizeof(shard_slice) + 16}) {
    SCOPED_TRACE(size);
    Roomy<shard_slice> given;
    std::memset(given.bytes, 0x5a, sizeof(given.bytes));
    given.value.struct_size = size;
    size_t count = 0;
    EXPECT_OK(shard_plan_slices(plan.get(), 0, 0, kLast + 1, &given.value, 2,
                                &count));
    ASSERT_EQ(count, 2u);
    for (const size_t at : {size_t{0}, size}) {
      size_t struct_size = 0;
      std::memcpy(&struct_size, given.bytes + at, sizeof(struct_size));
      EXPECT_EQ(struct_size, size);
      int64_t begin = -1;
      std::memcpy(&begin, given.bytes + at + offsetof(shard_slice, begin),
                  sizeof(begin));
      EXPECT_EQ(begin, at == 0 ? 0 : kLast);
    }
    for (size_t at = sizeof(shard_slice); at < size; ++at) {
      EXPECT_EQ(given.bytes[at], 0);
      EXPECT_EQ(given.bytes[size + at], 0);
    }
    EXPECT_EQ(given.bytes[2 * size], 0x5a);
  }
}

TEST(StructSizeTest, EngineMemory) {
  const Comm comm = OpenLocal();
  const Engine engine = TrainingEngine(comm.get());
  ExpectSizesOfResult<shard_memory>(
      "shard_memory", offsetof(shard_memory, param_bytes),
      [&](shard_memory* memory) {
        return shard_engine_memory(engine.get(), memory);
      });
}

// A checkpoint of an engine, in a folder of its own.
struct Saved {
  Comm comm = OpenLocal();
  Engine engine = TrainingEngine(comm.get());
  std::string root = ::testing::TempDir() + "/struct-size-XXXXXX";
  Checkpoint checkpoint;

  Saved() {
    EXPECT_NE(::mkdtemp(root.data()), nullptr);
    EXPECT_OK(
        shard_checkpoint_save(engine.get(), root.c_str(), nullptr, nullptr));
    shard_checkpoint* opened = nullptr;
    EXPECT_OK(shard_checkpoint_open(root.c_str(), &opened));
    checkpoint.reset(opened);
  }
};

TEST(StructSizeTest, CheckpointOptions) {
  const Saved saved;
  shard_engine* const engine = saved.engine.get();
  const char* const root = saved.root.c_str();
  shard_save_options save = SHARD_SAVE_OPTIONS_INIT;
  save.overwrite = 1;
  ExpectSizesOfOptions<shard_save_options>(
      "shard_save_options", save, [&](shard_save_options* options) {
        return shard_checkpoint_save(engine, root, options, nullptr);
      });
  ExpectSizesOfOptions<shard_load_options>(
      "shard_load_options", SHARD_LOAD_OPTIONS_INIT,
      [&](shard_load_options* options) {
        return shard_checkpoint_load(engine, root, options, nullptr);
      });
  ExpectSizesOfOptions<shard_state_dict_options>(
      "shard_state_dict_options", SHARD_STATE_DICT_OPTIONS_INIT,
      [&](shard_state_dict_options* options) {
        shard_state_dict* state = nullptr;
        shard_error* error = shard_state_dict_get(engine, options, &state);
        shard_state_dict_free(state);
        return error;
      });
  const std::string other = saved.root + "/other";
  shard_convert_options convert = SHARD_CONVERT_OPTIONS_INIT;
  convert.overwrite = 1;
  ExpectSizesOfOptions<shard_convert_options>(
      "shard_convert_options", convert, [&](shard_convert_options* options) {
        return shard_checkpoint_convert(saved.checkpoint.get(), other.c_str(),
                                        options);
      });
  ExpectSizesOfOptions<shard_verify_options>(
      "shard_verify_options", SHARD_VERIFY_OPTIONS_INIT,
      [&](shard_verify_options* options) {
        return shard_checkpoint_verify(saved.checkpoint.get(), options);
      });
  shard_verify_options verify = SHARD_VERIFY_OPTIONS_INIT;
  verify.reserved = 77;
  EXPECT_FAILS(shard_checkpoint_verify(saved.checkpoint.get(), &verify),
               SHARD_INVALID_ARGUMENT, "shard_verify_options.reserved", "77");
  shard_load_options reserved = SHARD_LOAD_OPTIONS_INIT;
  reserved.reserved = 77;
  EXPECT_FAILS(shard_checkpoint_load(engine, root, &reserved, nullptr),
               SHARD_INVALID_ARGUMENT, "shard_load_options.reserved", "77");
}

TEST(StructSizeTest, CheckpointResults) {
  const Saved saved;
  const shard_checkpoint* const checkpoint = saved.checkpoint.get();
  EXPECT_SIZES_OF_RESULT(
      shard_load_report, loaded,
      shard_checkpoint_load(saved.engine.get(), saved.root.c_str(), nullptr,
                            out));
  EXPECT_SIZES_OF_RESULT(shard_checkpoint_info, format,
                         shard_checkpoint_get_info(checkpoint, out));
  EXPECT_SIZES_OF_RESULT(shard_tensor_info, dtype,
                         shard_checkpoint_tensor(checkpoint, 0, out));
  EXPECT_SIZES_OF_RESULT(shard_tensor_slice, begin,
                         shard_checkpoint_slice(checkpoint, 0, 0, out));
}

TEST(StructSizeTest, StepReport) {
  const Comm comm = OpenLocal();
  const Engine engine = TrainingEngine(comm.get());
  ExpectSizesOfResult<shard_step_report>(
      "shard_step_report", offsetof(shard_step_report, step),
      [&](shard_step_report* report) {
        return shard_engine_step(engine.get(), nullptr, report);
      });
  // A report that cannot be written stops the step before it is done, so only
  // this step and the calls above that succeeded are counted.
  shard_step_report report = SHARD_STEP_REPORT_INIT;
  EXPECT_OK(shard_engine_step(engine.get(), nullptr, &report));
  EXPECT_EQ(report.step, 7);
}

#undef EXPECT_SIZES_OF_RESULT

}  // namespace
}  // namespace shard_api_testing::struct_size_test
