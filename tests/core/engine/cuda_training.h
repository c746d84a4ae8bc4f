// SPDX-License-Identifier: Apache-2.0
//
// A short training on the device cuda, for tests on the fake of its driver:
// with clipping and dynamic loss scaling, in as many units and tensors as a
// test wants. Returns the errors that it meets.

#ifndef SHARD_TESTS_CORE_ENGINE_CUDA_TRAINING_H_
#define SHARD_TESTS_CORE_ENGINE_CUDA_TRAINING_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/driver.h"
#include "core/device/offload/offloading_device.h"
#include "core/engine/engine.h"
#include "core/optim/loss_scaler.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/unit_training.h"

namespace shard::cuda_training {

struct Form {
  int units = 1;
  int tensors_per_unit = 1;
  int world_size = 1;
  int stage = 1;
  // The host gives a stream of its own, so that calls return once their work is
  // enqueued.
  bool hosts_stream = false;
  int64_t elements_per_unit = 4000;
  std::string optimizer = "adamw";
  // Those of each unit, instead of its equal tensors.
  std::vector<std::vector<int64_t>> shapes = {};
  // Optimizer states lie in the host's memory; two threads step windows of 512
  // elements.
  bool offloads = false;
  bool deterministic = false;
  int shard_group_size = 0;
  Partition partition = Partition::kEven;
};

inline std::optional<Offload> OffloadOf(const Form& form) {
  if (!form.offloads) return std::nullopt;
  return Offload{.threads = 2, .window = 512};
}

// A training with Muon, of a wide and a tall matrix.
inline Form MuonForm() {
  return {.optimizer = "muon?ns_steps=2", .shapes = {{20, 25}, {25, 20}}};
}

inline std::shared_ptr<const Plan> MakePlan(const Form& form) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  for (int u = 0; u < form.units; ++u) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("block", u), "Block");
    auto shapes = form.shapes;
    if (shapes.empty()) {
      shapes.assign(static_cast<size_t>(form.tensors_per_unit),
                    {form.elements_per_unit / form.tensors_per_unit});
    }
    for (size_t t = 0; t < shapes.size(); ++t) {
      EXPECT_OK(training.model->AddParam(block, StrCat("weight", t),
                                         DType::kF32, shapes[t]));
    }
  }
  training.optimizer = form.optimizer;
  training.wrap = "class?names=Block";
  training.plan.world_size = form.world_size;
  training.plan.stage = form.stage;
  training.plan.deterministic = form.deterministic;
  training.plan.shard_group_size = form.shard_group_size;
  training.plan.partition = form.partition;
  training.plan.prefetch = 0;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  return *plan;
}

inline StatusOr<std::unique_ptr<Engine>> MakeEngine(
    const std::shared_ptr<const Plan>& plan,
    const std::shared_ptr<Communicator>& comm,
    std::optional<Offload> offload = std::nullopt) {
  EngineOptions options;
  SHARD_ASSIGN_OR_RETURN(options.loss_scaler,
                         LossScaler::Parse("dynamic?init_scale=8"));
  SHARD_ASSIGN_OR_RETURN(options.opened_device, cuda::OpenDevice("0"));
  if (offload) {
    SHARD_ASSIGN_OR_RETURN(auto host, OpenDevice("cpu"));
    options.opened_device = OffloadStates(std::move(options.opened_device),
                                          std::move(host), *offload);
  }
  return Engine::Create(plan, comm, options);
}

inline std::shared_ptr<Communicator> OpenLocal() {
  CommOptions options;
  options.world_size = 1;
  auto comm = OpenCommunicator("local:", options);
  EXPECT_OK(comm);
  return *comm;
}

inline StepOptions Clipped() {
  StepOptions options;
  options.max_grad_norm = 0.5;
  return options;
}

inline Status Fill(Engine* engine) {
  const auto& params = engine->plan().model().params();
  for (size_t p = 0; p < params.size(); ++p) {
    const std::vector<float> values(static_cast<size_t>(params[p].numel), 1.0f);
    std::vector<std::byte> bytes(DTypeBytes(params[p].dtype, params[p].numel));
    Store(params[p].dtype, values, bytes.data());
    SHARD_RETURN_IF_ERROR(
        engine->SetParam(static_cast<ParamId>(p), bytes.data(), bytes.size()));
  }
  return engine->BroadcastParams(0);
}

inline std::vector<ParamId> ParamsOf(const Plan& plan, int32_t unit) {
  std::vector<ParamId> params;
  for (size_t p = 0; p < plan.places().size(); ++p) {
    const auto param = static_cast<ParamId>(p);
    if (plan.buffer(plan.place(param).buffer).unit == unit) {
      params.push_back(param);
    }
  }
  return params;
}

// Writes the gradients where they lie, when nobody uses them, and steps.
inline Status TrainOneStep(Engine* engine, int step,
                           const StepOptions& options = Clipped()) {
  SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
  const auto units = static_cast<int32_t>(engine->plan().units().size());
  for (int32_t unit = units; unit-- > 0;) {
    SHARD_RETURN_IF_ERROR(engine->UnitAcquire(unit, Pass::kBackward, 0));
    for (const ParamId param : ParamsOf(engine->plan(), unit)) {
      SHARD_ASSIGN_OR_RETURN(const Engine::Tensor grad, engine->Grad(param));
      auto* const values = static_cast<float*>(grad.data);
      SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
      for (int64_t i = 0; i < grad.numel; ++i) {
        values[i] = GradientValue(step, param, i);
      }
    }
    SHARD_RETURN_IF_ERROR(engine->MarkUnitGradsReady(unit));
    SHARD_RETURN_IF_ERROR(engine->UnitRelease(unit));
  }
  return engine->Step(options, nullptr);
}

// Returns the elements of parameter 0.
inline StatusOr<std::vector<float>> ReadParam(Engine* engine) {
  SHARD_RETURN_IF_ERROR(engine->Summon(0, -1, 0));
  SHARD_ASSIGN_OR_RETURN(const Engine::Tensor param, engine->Param(0));
  SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
  const auto* const values = static_cast<const float*>(param.data);
  std::vector<float> result(values, values + param.numel);
  SHARD_RETURN_IF_ERROR(engine->EndSummon(false, 0));
  return result;
}

// A stream of the host's. A failure of the driver in here is the stream's, too:
// get() is null.
class HostsStream {
 public:
  explicit HostsStream(int device = 0)
      : api_((*cuda::Driver::Load())->api()), device_(device) {
    if (api_.DevicePrimaryCtxRetain(&context_, device_) !=
        cuda::CuResult::kSuccess) {
      return;
    }
    is_retained_ = true;
    if (api_.CtxPushCurrent(context_) != cuda::CuResult::kSuccess) return;
    is_pushed_ = true;
    if (api_.StreamCreate(&stream_, cuda::kStreamNonBlocking) !=
        cuda::CuResult::kSuccess) {
      stream_ = nullptr;
    }
  }
  ~HostsStream() {
    if (stream_ != nullptr) api_.StreamDestroy(stream_);
    if (is_pushed_) api_.CtxPopCurrent(&context_);
    if (is_retained_) api_.DevicePrimaryCtxRelease(device_);
  }
  HostsStream(const HostsStream&) = delete;
  HostsStream& operator=(const HostsStream&) = delete;

  cuda::CuStream get() const { return stream_; }

 private:
  const cuda::DriverApi& api_;
  const int device_;
  cuda::CuContext context_ = nullptr;
  cuda::CuStream stream_ = nullptr;
  bool is_retained_ = false;
  bool is_pushed_ = false;
};

}  // namespace shard::cuda_training

#endif  // SHARD_TESTS_CORE_ENGINE_CUDA_TRAINING_H_
