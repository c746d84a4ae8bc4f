// SPDX-License-Identifier: Apache-2.0
//
// The launches of steps with LAMB and Adafactor on the device cuda, over the
// fake of its driver. An update of a flat buffer is three launches with LAMB,
// and six with Adafactor, or three where none of its parameters is a matrix
// (kernels/cuda/update_tensors.h, adafactor.h). A rank has one such buffer for
// each unit, param group and dtype, however large: so neither the number of
// parameters nor their shapes add launches.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/device/cuda/cuda_device.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_tensor_launches_test {
namespace {

using cuda_training::HostsStream;
using cuda_training::MakeEngine;
using cuda_training::OpenLocal;
using testing::FakeCuda;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::RunAll;
using FakeCounters = testing::fake_cuda::Counters;
using Shapes = std::vector<std::vector<int64_t>>;
using Launches = std::map<std::string, uint64_t>;

constexpr const char* kOptimizers[] = {"lamb", "adafactor"};

// Adds the launches of an update of so many buffers.
void AddUpdates(const std::string& optimizer, uint64_t buffers,
                bool has_matrices, Launches* launches) {
  const auto add = [&](const char* kernel) { (*launches)[kernel] += buffers; };
  if (optimizer.starts_with("lamb")) {
    add("shard_lamb_moments");
    add("shard_sum_squares");
    add("shard_lamb_apply");
    return;
  }
  if (has_matrices) {
    add("shard_adafactor_sums");
    add("shard_adafactor_states");
    add("shard_adafactor_scales");
  }
  add("shard_adafactor_squares");
  add("shard_sum_squares");
  add("shard_adafactor_apply");
}

// Returns the launches of a step that clips, where all buffers have the same
// optimizer.
Launches StepOf(const std::string& optimizer, uint64_t buffers = 1,
                bool has_matrices = true) {
  Launches launches = {{"shard_add_to_norm", buffers},
                       {"shard_finish_norm", 1}};
  AddUpdates(optimizer, buffers, has_matrices, &launches);
  return launches;
}

// Ten parameters: one and no dimension, matrices, their batches, one row,
// one column, and one element.
const Shapes kMixed = {{1000},      {},     {37, 64}, {1},    {70, 300},
                       {2, 3, 100}, {1, 1}, {700, 1}, {1, 9}, {8, 4, 3, 3}};

Shapes Repeated(const Shapes& shapes, int times) {
  Shapes repeated;
  for (int i = 0; i < times; ++i) {
    repeated.insert(repeated.end(), shapes.begin(), shapes.end());
  }
  return repeated;
}

// A form of parameters.
struct Storage {
  const char* name;
  DType dtype;
  Masters masters;
  bool f32_grads;
};
constexpr Storage kF32 = {"f32", DType::kF32, Masters::kF32, false};
constexpr Storage kStorages[] = {
    kF32,
    {"bf16 with masters", DType::kBF16, Masters::kF32, false},
    {"bf16 with masters and f32 gradients", DType::kBF16, Masters::kF32, true},
    {"bf16, stochastic", DType::kBF16, Masters::kNoneStochastic, false}};

// Parameters that one optimizer steps.
struct Group {
  std::string optimizer;
  Shapes shapes;
  DType dtype = DType::kF32;
};

struct Form {
  // Each unit has the parameters of all groups, in turns. The first is the
  // default group, and so are others with its very text.
  std::vector<Group> groups;
  int units = 1;
  int world_size = 1;
  int stage = 1;
  Masters masters = Masters::kF32;
  bool f32_grads = false;
  // Far less than the parameters have: a buffer that could be cut would be
  // several.
  int64_t buffer_bytes = 4096;
};

Form FormOf(const std::string& optimizer, Shapes shapes,
            const Storage& storage = kF32) {
  return {.groups = {{optimizer, std::move(shapes), storage.dtype}},
          .masters = storage.masters,
          .f32_grads = storage.f32_grads};
}

std::shared_ptr<const Plan> PlanFor(const Form& form) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  training.optimizer = form.groups[0].optimizer;
  std::map<std::string, std::vector<ParamId>> others;
  for (int u = 0; u < form.units; ++u) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("block", u), "Block");
    bool has_more = true;
    for (size_t i = 0; has_more; ++i) {
      has_more = false;
      for (size_t g = 0; g < form.groups.size(); ++g) {
        const Group& group = form.groups[g];
        if (i >= group.shapes.size()) continue;
        has_more = true;
        const auto param = training.model->AddParam(
            block, StrCat("weight", g, "_", i), group.dtype, group.shapes[i]);
        EXPECT_OK(param);
        if (group.optimizer != training.optimizer) {
          others[group.optimizer].push_back(*param);
        }
      }
    }
  }
  for (const auto& [optimizer, params] : others) {
    EXPECT_OK(training.model->AddParamGroup(optimizer, params));
  }
  training.wrap = "class?names=Block";
  training.plan.world_size = form.world_size;
  training.plan.stage = form.stage;
  training.plan.masters = form.masters;
  training.plan.f32_grads = form.f32_grads;
  training.plan.buffer_bytes = form.buffer_bytes;
  training.plan.prefetch = 0;
  const auto plan = ::shard::PlanOf(training);
  EXPECT_OK(plan);
  return *plan;
}

StatusOr<std::unique_ptr<Engine>> MakePlainEngine(
    const std::shared_ptr<const Plan>& plan) {
  EngineOptions options;
  SHARD_ASSIGN_OR_RETURN(options.opened_device, cuda::OpenDevice("0"));
  return Engine::Create(plan, OpenLocal(), options);
}

// Declares the gradients, which are zeros, of all units.
void Backward(Engine* engine) {
  for (auto unit = static_cast<int32_t>(engine->plan().units().size());
       unit-- > 0;) {
    ASSERT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
    ASSERT_OK(engine->MarkUnitGradsReady(unit));
    ASSERT_OK(engine->UnitRelease(unit));
  }
}

// An engine of one rank, which trains. `begins`: each step before its backward
// pass, so that there is no norm and no loss scaling.
struct Training {
  explicit Training(const Form& form, bool begins = false) : begins(begins) {
    auto made = begins ? MakePlainEngine(PlanFor(form))
                       : MakeEngine(PlanFor(form), OpenLocal());
    EXPECT_OK(made);
    engine = *std::move(made);
    EXPECT_OK(engine->SetStream(stream.get()));
    EXPECT_OK(cuda_training::Fill(engine.get()));
  }
  ~Training() { EXPECT_OK(engine->Synchronize(0)); }

  // Makes a step as a host that does not wait, and returns what it did.
  FakeCounters Step() {
    // Then each wait of the host is one query.
    RunAll();
    const FakeCounters before = Count();
    const StepOptions options =
        begins ? StepOptions() : cuda_training::Clipped();
    if (begins) EXPECT_OK(engine->BeginStep(options));
    Backward(engine.get());
    EXPECT_OK(engine->Step(options, nullptr));
    return CountSince(before);
  }

  const bool begins;
  HostsStream stream;
  std::unique_ptr<Engine> engine;
};

// Returns what a step does after so many others.
FakeCounters CountStep(const Form& form, int steps_before = 1) {
  const FakeCuda fake;
  Training training(form);
  for (int step = 1; step <= steps_before; ++step) training.Step();
  return training.Step();
}

TEST(TensorLaunchesTest, AreAsManyForAnyNumberOfParameters) {
  // Then events are used again, and all calls are those of a steady step.
  constexpr int kWarmSteps = 4;
  for (const char* const optimizer : kOptimizers) {
    for (const Storage& storage : kStorages) {
      SCOPED_TRACE(StrCat(optimizer, ", ", storage.name));
      const FakeCounters few =
          CountStep(FormOf(optimizer, kMixed, storage), kWarmSteps);
      EXPECT_EQ(few.launches, StepOf(optimizer));
      const FakeCounters many = CountStep(
          FormOf(optimizer, Repeated(kMixed, 20), storage), kWarmSteps);
      EXPECT_EQ(many.launches, few.launches);
      // Nor do copies, fills, events or any other calls become more.
      EXPECT_EQ(many.calls, few.calls);
      EXPECT_EQ(many.to_device, few.to_device);
      EXPECT_EQ(many.to_host, few.to_host);
      EXPECT_EQ(many.on_device, few.on_device);
      EXPECT_EQ(many.memsets, few.memsets);
    }
  }
}

TEST(TensorLaunchesTest, AreAsManyForAnyShapes) {
  const std::pair<const char*, Shapes> matrices[] = {
      {"a tiny one", {{1, 1}}},
      {"tiny ones", Repeated({{1, 1}}, 300)},
      {"one", {{40, 50}}},
      {"ones with a vector", {{40, 50}, {50}, {40, 50}, {50}}},
      {"a large one", {{1500, 2000}}},
      {"large and tiny ones", {{1100, 1200}, {1, 1}, {900, 1000}, {1}, {2, 1}}},
      {"batches", {{3, 5, 40, 50}, {2, 1, 1}, {7, 9, 11}}}};
  for (const char* const optimizer : kOptimizers) {
    for (const auto& [name, shapes] : matrices) {
      SCOPED_TRACE(StrCat(optimizer, ", ", name));
      EXPECT_EQ(CountStep(FormOf(optimizer, shapes)).launches,
                StepOf(optimizer));
    }
  }
}

TEST(TensorLaunchesTest, AreThreeWithoutMatrices) {
  const std::pair<const char*, Shapes> vectors[] = {
      {"one element", {{}}},
      {"one element each", Repeated({{1}, {}}, 150)},
      {"a large one", {{2000000}}},
      {"large and tiny ones", {{1}, {1000000}, {}, {3}, {900000}}}};
  for (const char* const optimizer : kOptimizers) {
    for (const auto& [name, shapes] : vectors) {
      SCOPED_TRACE(StrCat(optimizer, ", ", name));
      EXPECT_EQ(CountStep(FormOf(optimizer, shapes)).launches,
                StepOf(optimizer, 1, /*has_matrices=*/false));
    }
  }
}

// Parameters of the groups alternate in the model.
TEST(TensorLaunchesTest, AreThoseOfEachGroup) {
  const std::pair<std::string, std::string> groups[] = {
      {"lamb", "lamb?weight_decay=0"},
      {"adafactor", "adafactor?lr=0.5"},
      {"lamb", "adafactor"}};
  for (const auto& [first, second] : groups) {
    Launches expected = {{"shard_add_to_norm", 2}, {"shard_finish_norm", 1}};
    AddUpdates(first, 1, true, &expected);
    AddUpdates(second, 1, true, &expected);
    for (const Storage& storage : kStorages) {
      for (const int times : {1, 8}) {
        SCOPED_TRACE(StrCat(first, " and ", second, ", ", storage.name, ", ",
                            times, " times"));
        Form form = FormOf(first, Repeated(kMixed, times), storage);
        form.groups.push_back(form.groups[0]);
        form.groups[1].optimizer = second;
        EXPECT_EQ(CountStep(form).launches, expected);
      }
    }
  }
}

TEST(TensorLaunchesTest, AreThoseOfEachUnitAndDType) {
  for (const char* const optimizer : kOptimizers) {
    for (const uint64_t units : {1, 3}) {
      for (const int times : {1, 10}) {
        SCOPED_TRACE(
            StrCat(optimizer, ", ", units, " units, ", times, " times"));
        const Shapes shapes = Repeated(kMixed, times);
        const Form form = {.groups = {{optimizer, shapes, DType::kF32},
                                      {optimizer, shapes, DType::kBF16}},
                           .units = static_cast<int>(units)};
        EXPECT_EQ(CountStep(form).launches, StepOf(optimizer, 2 * units));
      }
    }
  }
}

// Its units are updated one by one.
TEST(TensorLaunchesTest, OfABegunStepAreThoseOfItsUnits) {
  constexpr int kUnits = 3;
  for (const char* const optimizer : kOptimizers) {
    Launches expected;
    AddUpdates(optimizer, kUnits, true, &expected);
    for (const int times : {1, 10}) {
      SCOPED_TRACE(StrCat(optimizer, ", ", times, " times"));
      const FakeCuda fake;
      Form form = FormOf(optimizer, Repeated(kMixed, times));
      form.units = kUnits;
      Training training(form, /*begins=*/true);
      training.Step();
      EXPECT_EQ(training.Step().launches, expected);
    }
  }
}

// Their values of the step are others, and come by one more copy.
TEST(TensorLaunchesTest, AreAsManyWhereParametersHaveMadeOtherSteps) {
  for (const char* const optimizer : kOptimizers) {
    SCOPED_TRACE(optimizer);
    const FakeCuda fake;
    Training training(FormOf(optimizer, Repeated(kMixed, 6)));
    training.Step();
    Launches expected = StepOf(optimizer);
    for (ParamId param = 0; param < 60; param += 20) {
      const std::vector<ParamId> frozen = {param, param + 3, param + 4};
      ASSERT_OK(training.engine->SetTrainable(frozen, false, 0));
      EXPECT_EQ(training.Step().launches, expected);
      ASSERT_OK(training.engine->SetTrainable(frozen, true, 0));
      expected["shard_fill"] = 1;
      EXPECT_EQ(training.Step().launches, expected);
    }
  }
}

// Each rank steps the parameters that it owns. Units are so many that sharding
// gradients and parameters saves memory.
TEST(TensorLaunchesTest, OfRanksAreThoseOfEachRank) {
  constexpr int kUnits = 6;
  for (const char* const optimizer : kOptimizers) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const uint64_t ranks : {2, 3}) {
        SCOPED_TRACE(
            StrCat(optimizer, ", stage ", stage, ", ", ranks, " ranks"));
        const FakeCuda fake;
        Form form = FormOf(optimizer, Repeated(kMixed, 4));
        form.world_size = static_cast<int>(ranks);
        form.stage = stage;
        form.units = kUnits;
        const auto plan = PlanFor(form);
        EXPECT_TRUE(ShardsAsItsStage(*plan));
        FakeCounters before;
        RunThreadRanks(form.world_size, [&](const auto& comm) {
          const auto engine = MakeEngine(plan, comm);
          ASSERT_OK(engine);
          ASSERT_OK(cuda_training::Fill(engine->get()));
          ASSERT_OK((*engine)->Synchronize(0));
          ASSERT_OK(comm->Barrier("filled", Deadline::After(30)));
          if (comm->rank() == 0) before = Count();
          ASSERT_OK(comm->Barrier("counted", Deadline::After(30)));
          Backward(engine->get());
          ASSERT_OK((*engine)->Step(cuda_training::Clipped(), nullptr));
          ASSERT_OK((*engine)->Synchronize(0));
        });
        Launches made = CountSince(before).launches;
        // Tensors pass through the host in pieces of some bytes.
        made.erase("shard_fill");
        Launches expected = StepOf(optimizer, ranks * kUnits);
        expected["shard_finish_norm"] = ranks;
        EXPECT_EQ(made, expected);
      }
    }
  }
}

}  // namespace
}  // namespace shard::cuda_tensor_launches_test
