// SPDX-License-Identifier: Apache-2.0
//
// A training on the device cuda whose optimizer states are offloaded to the
// host's memory, for tests on the fake of the driver: two units of two
// matrices, in any dtype.

#ifndef SHARD_TESTS_CORE_ENGINE_CUDA_OFFLOAD_TRAINING_H_
#define SHARD_TESTS_CORE_ENGINE_CUDA_OFFLOAD_TRAINING_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "core/base/offload.h"
#include "core/base/strings.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/device.h"
#include "core/device/offload/offloading_device.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/states.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::cuda_offload {

using cuda_training::OpenLocal;
using cuda_training::ParamsOf;

inline constexpr int64_t kElements = 5120;  // In a unit.
inline constexpr size_t kUnits = 2;
inline constexpr Offload kOffload = {.threads = 3, .window = 256};

struct Case {
  const char* name;
  const char* optimizer;
  DType dtype = DType::kF32;
  Masters masters = Masters::kF32;
  bool has_padding = false;
  bool f32_grads = false;
  bool deterministic = false;
  int stage = 1;
  size_t units = kUnits;
  // Per element, in a step: to the host, and back.
  uint64_t down;
  uint64_t up;
};

inline std::shared_ptr<const Plan> MakePlan(const Case& of,
                                            int world_size = 1) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  for (size_t u = 0; u < of.units; ++u) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("block", u), "Block");
    // Multiples of a block of 8-bit states leave no padding.
    const int64_t rows = of.has_padding ? 47 : 48;
    EXPECT_OK(training.model->AddParam(block, "weight", of.dtype, {rows, 64}));
    EXPECT_OK(training.model->AddParam(block, "other", of.dtype, {32, 64}));
  }
  training.optimizer = of.optimizer;
  training.wrap = "class?names=Block";
  training.plan.masters = of.masters;
  training.plan.f32_grads = of.f32_grads;
  training.plan.world_size = world_size;
  training.plan.deterministic = of.deterministic;
  training.plan.stage = of.stage;
  training.plan.prefetch = 0;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  EXPECT_TRUE(ShardsAsItsStage(**plan));
  return *plan;
}

// Sets the parameters to values of this dtype.
inline void FillWith(Engine* engine, DType dtype) {
  const auto& params = engine->plan().model().params();
  for (size_t p = 0; p < params.size(); ++p) {
    std::vector<float> values;
    for (int64_t i = 0; i < params[p].numel; ++i) {
      values.push_back(InitialValue(static_cast<int>(p), i));
    }
    std::vector<unsigned char> bytes(DTypeBytes(dtype, params[p].numel));
    Store(dtype, values, bytes.data());
    ASSERT_OK(
        engine->SetParam(static_cast<ParamId>(p), bytes.data(), bytes.size()));
  }
  ASSERT_OK(engine->BroadcastParams(0));
}

// Writes the gradients of a unit where they lie, which the fake lets the host
// do, while nobody uses them.
inline void WriteGrads(Engine* engine, int32_t unit, int step,
                       bool finite = true) {
  ASSERT_OK(engine->Synchronize(0));
  for (const ParamId param : ParamsOf(engine->plan(), unit)) {
    const auto grad = engine->Grad(param);
    ASSERT_OK(grad);
    std::vector<float> values;
    for (int64_t i = 0; i < grad->numel; ++i) {
      values.push_back(GradientValue(step, param, i));
    }
    if (!finite) values[7] = std::numeric_limits<float>::infinity();
    const Plan& plan = engine->plan();
    Store(plan.buffer(plan.place(param).buffer).grad_dtype, values, grad->data);
  }
}

inline void Train(Engine* engine, int step, const StepOptions& options,
                  bool finite = true, StepReport* report = nullptr) {
  for (int32_t unit = static_cast<int32_t>(engine->plan().units().size());
       unit-- > 0;) {
    WriteGrads(engine, unit, step, finite);
  }
  ASSERT_OK(engine->Step(options, report));
}

// As Train, in any stage; `begins`: the step is begun before its gradients.
inline void TrainUnits(Engine* engine, int step, const StepOptions& options,
                       bool begins) {
  if (begins) ASSERT_OK(engine->BeginStep(options));
  for (int32_t unit = static_cast<int32_t>(engine->plan().units().size());
       unit-- > 0;) {
    ASSERT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
    WriteGrads(engine, unit, step);
    ASSERT_OK(engine->MarkUnitGradsReady(unit));
    ASSERT_OK(engine->UnitRelease(unit));
  }
  ASSERT_OK(engine->Step(options, nullptr));
}

// The parameters and states of an engine, as bytes, with padding.
inline std::vector<std::vector<unsigned char>> BytesOf(Engine* engine) {
  EXPECT_OK(engine->Synchronize(0));
  auto all = StateBytes(*engine);
  for (const EngineBuffer& buffer : engine->memory().buffers()) {
    const size_t bytes =
        DTypeBytes(buffer.plan->dtype, buffer.plan->layout.padded_numel());
    all.emplace_back(buffer.params, buffer.params + bytes);
  }
  return all;
}

// Compares without a text of all bytes.
inline void ExpectSame(Engine* engine, Engine* expected) {
  EXPECT_TRUE(BytesOf(engine) == BytesOf(expected));
}

// Compares the memory of an engine with what its plan predicts, and returns it.
inline MemoryReport ExpectPlanned(const Engine& engine,
                                  const Offload* offload) {
  const MemoryReport planned =
      engine.plan().Memory(true, offload, Processor::kGpu);
  EXPECT_EQ(planned.DeviceTotal(), engine.Memory().DeviceTotal());
  EXPECT_EQ(planned.PinnedTotal(), engine.Memory().PinnedTotal());
  return planned;
}

// Makes an engine without a loss scale, which would need a norm.
inline StatusOr<std::unique_ptr<Engine>> MakeUnscaled(
    const std::shared_ptr<const Plan>& plan) {
  EngineOptions options;
  options.opened_device =
      OffloadStates(*cuda::OpenDevice("0"), *OpenDevice("cpu"), kOffload);
  return Engine::Create(plan, OpenLocal(), options);
}

inline constexpr Case kPlain = {
    .name = "f32", .optimizer = "adamw", .down = 8, .up = 4};
inline constexpr Case kBf16 = {.name = "bf16",
                               .optimizer = "adamw",
                               .dtype = DType::kBF16,
                               .down = 2,
                               .up = 2};

}  // namespace shard::cuda_offload

#endif  // SHARD_TESTS_CORE_ENGINE_CUDA_OFFLOAD_TRAINING_H_
