// SPDX-License-Identifier: Apache-2.0
//
// A short training run with threads as ranks, for tests that compare the
// results of two configurations.

#ifndef SHARD_TESTS_CORE_ENGINE_TRAINING_H_
#define SHARD_TESTS_CORE_ENGINE_TRAINING_H_

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/optim/groups.h"
#include "kernels/cpu/convert.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/thread_ranks.h"

namespace shard {

struct Training {
  std::shared_ptr<Model> model;
  std::string optimizer = "adamw";
  PlanOptions plan;  // Its groups are made from `optimizer`.
  EngineOptions engine;
  StepOptions step;
  int steps = 5;
  // The dtype to which initial values and gradients are rounded first, so that
  // it and wider ones hold the same values.
  DType values = DType::kF32;
  // If true, every rank has gradients, and the divisor is that of `step`.
  // Otherwise all gradients are on the last rank and are divided by 1, so that
  // their sum has the same bits at any world size.
  bool all_ranks = false;
  std::string link;            // Part of the communicator's URL: "direct=0".
  bool on_processors = false;  // CreateReferenceEngine makes the engine.
  // Called before and after each step, on every rank, while no rank steps.
  std::function<void(Engine* engine, int step)> before_step;
  std::function<void(Engine* engine, int step)> after_step;
};

// Returns a model of parameters of these shapes, named "p0", "p1", ...
inline std::shared_ptr<Model> ModelOf(
    const std::vector<std::vector<int64_t>>& shapes,
    DType dtype = DType::kF32) {
  auto model = std::make_shared<Model>("Test");
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto param =
        model->AddParam(kRootModule, StrCat("p", i), dtype, shapes[i]);
    EXPECT_TRUE(param.ok()) << param.status().ToString();
  }
  return model;
}

inline float InitialValue(int param, int64_t i) {
  return static_cast<float>(std::sin(param * 31 + i * 0.7));
}

inline float GradientValue(int step, int param, int64_t i) {
  // Tables: a third of the time of the engine's tests would be cosines.
  static const std::vector<double> cosines = [] {
    std::vector<double> values(1 << 14);
    for (size_t n = 0; n < values.size(); ++n) {
      values[n] = std::cos(static_cast<double>(n));
    }
    return values;
  }();
  static const std::array<double, 11> scales = [] {
    std::array<double, 11> values{};
    for (size_t n = 0; n < values.size(); ++n) {
      values[n] = std::exp(static_cast<double>(n) - 5.0);
    }
    return values;
  }();
  const auto n = static_cast<size_t>(step * 5 + param * 7 + i);
  const double cosine =
      n < cosines.size() ? cosines[n] : std::cos(static_cast<double>(n));
  return static_cast<float>(cosine * scales[static_cast<size_t>(i % 11)]);
}

// Rounds values and stores them in a tensor of `dtype`, as a host's kernel.
inline void Store(DType dtype, const std::vector<float>& values, void* tensor) {
  if (values.empty()) return;
  void* const data = testing::KernelView(tensor);
  if (dtype == DType::kF32) {
    std::memcpy(data, values.data(), values.size() * sizeof(float));
  } else {
    Narrow(dtype, values.data(), data, values.size(), nullptr);
  }
}

inline std::vector<float> Load(DType dtype, const void* tensor, int64_t numel) {
  std::vector<float> values(static_cast<size_t>(numel));
  if (values.empty()) return values;
  const void* const data = testing::KernelView(tensor);
  if (dtype == DType::kF32) {
    std::memcpy(values.data(), data, values.size() * sizeof(float));
  } else {
    Widen(dtype, data, values.data(), values.size());
  }
  return values;
}

inline std::vector<float> Rounded(DType dtype,
                                  const std::vector<float>& values) {
  std::vector<unsigned char> bytes(
      DTypeBytes(dtype, static_cast<int64_t>(values.size())));
  Store(dtype, values, bytes.data());
  return Load(dtype, bytes.data(), static_cast<int64_t>(values.size()));
}

// Returns the initial values of parameter `p`, before the parameter's dtype
// rounds them.
inline std::vector<float> InitialValues(const Training& training, size_t p) {
  std::vector<float> values;
  for (int64_t i = 0; i < training.model->params()[p].numel; ++i) {
    values.push_back(InitialValue(static_cast<int>(p), i));
  }
  return Rounded(training.values, values);
}

// Returns the gradient of parameter `p` on `rank`, before the gradient's dtype
// rounds it.
inline std::vector<float> GradientValues(const Training& training, int rank,
                                         int step, size_t p) {
  const auto numel = static_cast<size_t>(training.model->params()[p].numel);
  const int last = training.plan.world_size - 1;
  if (!training.all_ranks && rank != last) return std::vector<float>(numel);
  std::vector<float> values;
  for (size_t i = 0; i < numel; ++i) {
    values.push_back(GradientValue(step,
                                   static_cast<int>(p) + 3 * (last - rank),
                                   static_cast<int64_t>(i)));
  }
  return Rounded(training.values, values);
}

// Returns the parameters after the last step, by ParamId, in fp32.
inline std::vector<std::vector<float>> Train(const Training& training,
                                             StepReport* last = nullptr) {
  std::vector<std::vector<float>> result(training.model->params().size());
  PlanOptions options = training.plan;
  auto groups = PlanGroups(*training.model, training.optimizer);
  EXPECT_TRUE(groups.ok()) << groups.status().ToString();
  if (!groups.ok()) return result;
  options.groups = *std::move(groups);
  const auto plan = Plan::Create(training.model, options);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  if (!plan.ok()) return result;

  const auto train = [&](const std::shared_ptr<Communicator>& comm) {
    auto made = training.on_processors
                    ? CreateReferenceEngine(*plan, comm, training.engine)
                    : CreateEngine(*plan, comm, training.engine);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    Engine& engine = **made;
    const auto& params = training.model->params();
    for (size_t p = 0; p < params.size(); ++p) {
      std::vector<unsigned char> bytes(
          DTypeBytes(params[p].dtype, params[p].numel));
      Store(params[p].dtype, InitialValues(training, p), bytes.data());
      const Status set =
          engine.SetParam(static_cast<ParamId>(p), bytes.data(), bytes.size());
      ASSERT_TRUE(set.ok()) << set.ToString();
    }
    ASSERT_TRUE(engine.BroadcastParams(0).ok());
    for (int step = 1; step <= training.steps; ++step) {
      if (training.before_step) training.before_step(&engine, step);
      for (size_t p = 0; p < params.size(); ++p) {
        if (!params[p].trainable) continue;
        const DType dtype = options.f32_grads ? DType::kF32 : params[p].dtype;
        std::vector<float> values =
            GradientValues(training, comm->rank(), step, p);
        // Scales the gradients, as a host does by scaling its loss.
        for (float& value : values) {
          value *= static_cast<float>(engine.loss_scale());
        }
        Store(dtype, values, engine.Grad(static_cast<ParamId>(p))->data);
      }
      StepOptions step_options = training.step;
      if (!training.all_ranks) step_options.grad_divisor = 1;
      StepReport report;
      const Status stepped = engine.Step(step_options, &report);
      ASSERT_TRUE(stepped.ok()) << stepped.ToString();
      // A clipped step leaves sums in place of gradients.
      EXPECT_TRUE(engine.ZeroGrad().ok());
      if (last != nullptr && comm->rank() == 0) *last = report;
      if (training.after_step) training.after_step(&engine, step);
    }
    if (comm->rank() != 0) return;
    for (size_t p = 0; p < params.size(); ++p) {
      const auto tensor = engine.Param(static_cast<ParamId>(p));
      result[p] = Load(params[p].dtype, tensor->data, tensor->numel);
    }
  };
  RunThreadRanks(options.world_size, train, 30, training.link);
  return result;
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_TRAINING_H_
