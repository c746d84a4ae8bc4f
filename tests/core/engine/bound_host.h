// SPDX-License-Identifier: Apache-2.0
//
// A host that binds tensors of its own to the parameters and gradients of an
// engine, and forms of training with them.

#ifndef SHARD_TESTS_CORE_ENGINE_BOUND_HOST_H_
#define SHARD_TESTS_CORE_ENGINE_BOUND_HOST_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "core/optim/loss_scaler.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/engine/worlds.h"
#include "tests/core/flat/sharding.h"

namespace shard {

inline constexpr int kBoundRanks = 2;
// Bytes of memory that the engine has not written: NaN in every dtype.
inline constexpr std::byte kGarbage{0xff};

inline Status BindTo(Engine* engine, ParamId param, std::span<std::byte> values,
                     std::span<std::byte> grad) {
  return engine->Bind(param, {values, grad});
}

// Tensors of a host's own, for the parameters of one rank. A rank binds, in
// turn: nothing, values, the gradient, both; each rank another way.
class BoundHost {
 public:
  void Bind(Engine* engine, bool all = false) {
    engine_ = engine;
    const Plan& plan = engine->plan();
    const int rank = engine->comm()->rank();
    tensors_.resize(plan.places().size());
    for (size_t p = 0; p < tensors_.size(); ++p) {
      const FlatBufferPlan& buffer = BufferOf(p);
      const int64_t numel = plan.model().params()[p].numel;
      const int way = all ? 3 : (static_cast<int>(p) + rank) % 4;
      Tensor& tensor = tensors_[p];
      if (way % 2 == 1) {
        tensor.values.assign(DTypeBytes(buffer.dtype, numel), kGarbage);
      }
      if (way >= 2 && buffer.trainable) {
        tensor.grad.assign(DTypeBytes(buffer.grad_dtype, numel), kGarbage);
      }
      ASSERT_OK(
          BindTo(engine, static_cast<ParamId>(p), tensor.values, tensor.grad));
      if (tensor.grad.empty()) continue;
      EXPECT_EQ(tensor.grad[0], kGarbage);  // Left as it was.
      if (plan.shards_grads()) continue;
      const auto grad = engine->Grad(static_cast<ParamId>(p));
      ASSERT_OK(grad);
      EXPECT_EQ(grad->data, tensor.grad.data());
    }
  }

  // Expects the bound values of the parameters in `unit` to be the engine's; -1
  // stands for all units.
  void ExpectValues(int32_t unit = -1) const {
    int compared = 0;
    for (size_t p = 0; p < tensors_.size(); ++p) {
      const auto& values = tensors_[p].values;
      if (values.empty() || (unit >= 0 && BufferOf(p).unit != unit)) continue;
      const auto param = engine_->Param(static_cast<ParamId>(p));
      ASSERT_OK(param);
      EXPECT_EQ(std::memcmp(values.data(), testing::KernelView(param->data),
                            values.size()),
                0)
          << "parameter " << p;
      ++compared;
    }
    EXPECT_TRUE(compared > 0 || unit >= 0);
  }

  // Expects every element of the bound gradients to be zero.
  void ExpectZeroGrads() const {
    int compared = 0;
    for (const Tensor& tensor : tensors_) {
      if (tensor.grad.empty()) continue;
      EXPECT_EQ(tensor.grad,
                std::vector<std::byte>(tensor.grad.size(), std::byte{0}));
      ++compared;
    }
    EXPECT_GT(compared, 0);
  }

  struct Tensor {
    std::vector<std::byte> values, grad;
    bool operator==(const Tensor&) const = default;
  };
  std::vector<Tensor>& tensors() { return tensors_; }

 private:
  const FlatBufferPlan& BufferOf(size_t p) const {
    const Plan& plan = engine_->plan();
    return plan.buffers()[static_cast<size_t>(plan.places()[p].buffer)];
  }

  Engine* engine_ = nullptr;
  std::vector<Tensor> tensors_;
};

// One way to train.
struct BoundForm {
  const char* name;
  int stage;
  const char* link = "";
  const char* device = "cpu";
  DType dtype = DType::kF32;
  bool f32_grads = false;
  bool units = true;  // Else the simple loop, without units.
  bool begin_step = false;
  bool overlap = false;
  int passes = 1;
  double max_grad_norm = 0;
  MissingGrads missing = MissingGrads::kError;
  bool whole_grads = false;
  bool skip_nonfinite = false;
  const char* loss_scaling = "";
};

inline UnitTraining TrainingOf(const BoundForm& form) {
  UnitTraining training;
  training.model = AwkwardModel(form.dtype);
  training.wrap = "class?names=Block";
  training.plan.world_size = kBoundRanks;
  training.plan.stage = form.stage;
  training.plan.prefetch = 0;
  training.plan.f32_grads = form.f32_grads;
  training.plan.whole_grads = form.whole_grads;
  training.engine.device = form.device;
  training.engine.overlap = form.overlap;
  training.engine.missing_grads = form.missing;
  training.engine.loss_scaler = *LossScaler::Parse(form.loss_scaling);
  training.step.max_grad_norm = form.max_grad_norm;
  training.step.skip_nonfinite = form.skip_nonfinite;
  training.link = form.link;
  return training;
}

// Writes gradients that depend on the parameters, in the simple loop.
inline void WriteAllGrads(Engine* engine, int step) {
  const Plan& plan = engine->plan();
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    if (!buffer.trainable) continue;
    for (const Slot& slot : buffer.layout.slots()) {
      const auto grad = engine->Grad(slot.param);
      const auto param = engine->Param(slot.param);
      ASSERT_OK(grad);
      ASSERT_OK(param);
      std::vector<float> values = Load(buffer.dtype, param->data, slot.numel);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = 0.125f * values[i] +
                    GradientValue(step, slot.param + engine->comm()->rank(),
                                  static_cast<int64_t>(i));
      }
      Store(buffer.grad_dtype, values, grad->data);
    }
  }
}

// Makes steps first to last; `host`, if any, is compared after each.
inline void MakeSteps(const BoundForm& form, const UnitTraining& training,
                      int first, int last, Engine* engine, UnitTrainer* trainer,
                      BoundHost* host) {
  for (int step = first; step <= last; ++step) {
    if (form.begin_step) ASSERT_OK(engine->BeginStep(training.step));
    for (int pass = 1; pass <= form.passes; ++pass) {
      if (form.units) {
        trainer->Forward();
        trainer->Backward(10 * step + pass, pass == form.passes);
      } else {
        WriteAllGrads(engine, step);
      }
    }
    auto before = host == nullptr ? BoundHost() : *host;
    StepReport report;
    ASSERT_OK(engine->Step(training.step, &report));
    if (host != nullptr) {
      // A step changes no bound gradient.
      for (size_t p = 0; p < before.tensors().size(); ++p) {
        EXPECT_EQ(before.tensors()[p].grad, host->tensors()[p].grad);
      }
      if (form.overlap) {
        for (size_t u = 0; u < engine->plan().units().size(); ++u) {
          const auto unit = static_cast<int32_t>(u);
          ASSERT_OK(engine->UnitAcquire(unit, Pass::kForward, 0));
          host->ExpectValues(unit);
          ASSERT_OK(engine->UnitRelease(unit));
        }
      }
      host->ExpectValues();
    }
    ASSERT_OK(engine->ZeroGrad());
    if (host != nullptr && !engine->plan().shards_grads()) {
      host->ExpectZeroGrads();
    }
  }
}

// Runs `body` on all ranks of an engine of the form.
inline void RunBound(const BoundForm& form,
                     const std::function<void(const UnitTraining&, Engine*,
                                              UnitTrainer*)>& body) {
  const UnitTraining training = TrainingOf(form);
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  ASSERT_TRUE(ShardsAsItsStage(**plan));
  RunThreadRanks(
      kBoundRanks,
      [&](const auto& comm) {
        auto engine = CreateEngine(*plan, comm, training.engine);
        ASSERT_OK(engine);
        UnitTrainer trainer(training, engine->get());
        body(training, engine->get(), &trainer);
      },
      30, form.link);
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_BOUND_HOST_H_
