// SPDX-License-Identifier: Apache-2.0
//
// One rank's training on a GPU of its own, with collectives by NCCL: an engine
// is made, filled, trained and read. Each call of the engine is timed, and
// returns its error. No two units have one size, so that NCCL's calls for one
// cannot be taken for those of another.

#ifndef SHARD_TESTS_CORE_ENGINE_NCCL_TRAINING_H_
#define SHARD_TESTS_CORE_ENGINE_NCCL_TRAINING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/cuda_device.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::nccl_training {

// The units of a form that says nothing else.
inline constexpr int32_t kUnits = 5;

struct Form {
  int world_size = 3;
  int stage = 1;
  int shard_group_size = 0;
  bool overlap = false;
  bool reports = false;  // Each step waits for its report.
  // Gradients are sent and received, else NCCL sums them.
  bool deterministic = false;
  DType dtype = DType::kF32;  // Of parameters, and of gradients unless f32.
  bool f32_grads = false;
  bool keep_after_forward = false;
  bool whole_grads = false;
  int prefetch = 0;
  int64_t buffer_bytes = PlanOptions().buffer_bytes;
  Partition partition = Partition::kEven;
  int64_t bucket_bytes = PlanOptions().bucket_bytes;
  // There are so many that sharding them saves memory. Unit u has parameter u,
  // unless a form has more of them.
  int units = kUnits;
  int passes = 1;         // All of a step but the last one accumulate.
  int params = 1;         // Of a unit and a dtype, no two of one size.
  bool has_bf16 = false;  // Each unit has parameters of bf16 besides.
  // Not -1: ranks may lack gradients, and this rank has none of every second
  // unit, from unit 1 on.
  int lacks = -1;
  // Of a dtype of the last two units, about, if not 0: one that is larger than
  // all others would not be sharded.
  int64_t large_numel = 0;
  // The last parameter, of the largest unit, is frozen.
  bool freezes_last = false;

  std::string Text() const {
    return StrCat(
        "stage ", stage, " of ", world_size, " ranks",
        shard_group_size > 0 ? StrCat(" in groups of ", shard_group_size) : "",
        overlap ? ", overlapped" : "", reports ? ", reported" : "",
        deterministic ? ", deterministic" : "");
  }
};

// Adds a unit's parameters of one dtype.
inline void AddParams(const Form& form, Model* model, ModuleId module, int unit,
                      DType dtype) {
  const int params = form.params;
  const bool is_large = form.large_numel > 0 && unit + 2 >= form.units;
  const int64_t all = (is_large ? form.large_numel : 4000) + 1100 * unit;
  const int parts = params * (params + 1) / 2;
  int64_t left = all;
  for (int p = 0; p < params; ++p) {
    const bool is_last = p + 1 == params;
    const int64_t numel = is_last ? left : all * (p + 1) / parts;
    left -= numel;
    const std::string name =
        params == 1 ? "weight" : StrCat(DTypeName(dtype), "_weight", p);
    EXPECT_OK(model->AddParam(module, name, dtype, {numel}));
  }
}

inline std::shared_ptr<const Plan> MakePlan(const Form& form) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  for (int u = 0; u < form.units; ++u) {
    const ModuleId module = u == 0
                                ? kRootModule
                                : *training.model->AddModule(
                                      kRootModule, StrCat("block", u), "Block");
    AddParams(form, training.model.get(), module, u, form.dtype);
    if (form.has_bf16) {
      AddParams(form, training.model.get(), module, u, DType::kBF16);
    }
  }
  if (form.freezes_last) {
    const size_t params = training.model->params().size();
    EXPECT_OK(
        training.model->SetTrainable(static_cast<ParamId>(params - 1), false));
  }
  training.wrap = "class?names=Block";
  training.plan.world_size = form.world_size;
  training.plan.stage = form.stage;
  training.plan.prefetch = form.prefetch;
  training.plan.buffer_bytes = form.buffer_bytes;
  training.plan.partition = form.partition;
  training.plan.bucket_bytes = form.bucket_bytes;
  training.plan.shard_group_size = form.shard_group_size;
  training.plan.deterministic = form.deterministic;
  training.plan.f32_grads = form.f32_grads;
  training.plan.keep_after_forward = form.keep_after_forward;
  training.plan.whole_grads = form.whole_grads;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  EXPECT_TRUE(form.stage == 0 || ShardsAsItsStage(**plan));
  return *plan;
}

// Creates an engine on "cpu", or on the GPU of the rank with collectives by
// NCCL.
inline StatusOr<std::unique_ptr<Engine>> MakeEngineOn(
    std::string_view device, const std::shared_ptr<const Plan>& plan,
    const std::shared_ptr<Communicator>& comm, EngineOptions options = {}) {
  if (device != "cpu") {
    SHARD_ASSIGN_OR_RETURN(options.opened_device,
                           cuda::OpenDevice(StrCat(comm->rank())));
    options.transport = Transport::kNccl;
  }
  return Engine::Create(plan, comm, options);
}

class RankTraining {
 public:
  // A call of the engine, and how long it has taken.
  struct TimedCall {
    const char* name = "";
    double seconds = 0;
  };

  // `timeout`: seconds, the engine's. `device`: as MakeEngineOn has it.
  RankTraining(const Form& form, std::shared_ptr<const Plan> plan,
               std::shared_ptr<Communicator> comm, double timeout,
               std::string_view device = "cuda")
      : form_(form),
        plan_(std::move(plan)),
        comm_(std::move(comm)),
        device_(device) {
    options_.timeout = timeout;
    options_.overlap = form.overlap;
    if (form.lacks >= 0) options_.missing_grads = MissingGrads::kZero;
  }

  int rank() const { return comm_->rank(); }
  Communicator* comm() const { return comm_.get(); }
  Engine* engine() const { return engine_.get(); }
  // Return the last call, and how long it has taken.
  const char* call() const { return last_.name; }
  double seconds() const { return last_.seconds; }
  // Returns the call that has taken longest.
  const TimedCall& slowest() const { return slowest_; }

  Status Create() {
    return Timed("create", [&]() -> Status {
      SHARD_ASSIGN_OR_RETURN(engine_,
                             MakeEngineOn(device_, plan_, comm_, options_));
      return Status();
    });
  }
  Status Fill() {
    return Timed("fill", [&] { return cuda_training::Fill(engine_.get()); });
  }
  // Makes one step, whose backward passes go through the units in an order:
  // from the last one, unless a test says another.
  Status Step(int step, const std::vector<int32_t>& units = {}) {
    for (int pass = 1; pass <= form_.passes; ++pass) {
      SHARD_RETURN_IF_ERROR(MakePass(step, pass, units));
    }
    return EndStep(step);
  }
  // Make the parts of a step: passes 1 to Form::passes, and the step itself.
  Status MakePass(int step, int pass, std::vector<int32_t> units = {}) {
    if (units.empty()) {
      for (int32_t unit = form_.units; unit-- > 0;) units.push_back(unit);
    }
    SHARD_RETURN_IF_ERROR(Synchronize());
    if (form_.passes > 1) {
      SHARD_RETURN_IF_ERROR(Timed("accumulate", [&] {
        return engine_->SetAccumulate(pass < form_.passes);
      }));
    }
    for (int32_t unit = 0; unit < form_.units; ++unit) {
      SHARD_RETURN_IF_ERROR(Acquire(unit, Pass::kForward));
      SHARD_RETURN_IF_ERROR(Release(unit));
    }
    for (const int32_t unit : units) {
      if (!IsTrained(unit)) continue;
      SHARD_RETURN_IF_ERROR(Acquire(unit, Pass::kBackward));
      if (form_.lacks != rank() || unit % 2 == 0) {
        SHARD_RETURN_IF_ERROR(WriteGrads(unit, step));
        SHARD_RETURN_IF_ERROR(
            Timed("mark", [&] { return engine_->MarkUnitGradsReady(unit); }));
      }
      SHARD_RETURN_IF_ERROR(Release(unit));
    }
    return Status();
  }
  Status EndStep(int step) {
    StepReport report;
    return Timed("step", [&] {
      return engine_->Step(
          step % 2 == 0 ? cuda_training::Clipped() : StepOptions(),
          form_.reports ? &report : nullptr);
    });
  }
  // Trains parameters from here on, or freezes them: with another plan.
  Status SetTrainable(const std::vector<ParamId>& params, bool trainable) {
    return Timed("set_trainable",
                 [&] { return engine_->SetTrainable(params, trainable, 0); });
  }
  // Takes part in the steps of the others.
  Status Join(int64_t* steps) {
    return Timed("join", [&] { return engine_->Join(0, steps); });
  }
  // Updates with the gradients that are there.
  Status Update() {
    return Timed("step", [&] { return engine_->Step(StepOptions(), nullptr); });
  }
  // Waits for all ranks.
  Status Meet(std::string_view what) {
    return Timed("meet", [&] {
      return comm_->Barrier(what, Deadline::After(3 * options_.timeout));
    });
  }
  // Returns all parameters, which are of f32. Every rank must do so.
  StatusOr<std::vector<float>> Read() {
    SHARD_RETURN_IF_ERROR(
        Timed("summon", [&] { return engine_->Summon(kRootModule, -1, 0); }));
    SHARD_RETURN_IF_ERROR(Synchronize());
    std::vector<float> all;
    for (size_t p = 0; p < plan_->places().size(); ++p) {
      SHARD_ASSIGN_OR_RETURN(const Engine::Tensor tensor,
                             engine_->Param(static_cast<ParamId>(p)));
      const auto* const values = static_cast<const float*>(tensor.data);
      all.insert(all.end(), values, values + tensor.numel);
    }
    SHARD_RETURN_IF_ERROR(
        Timed("summon_end", [&] { return engine_->EndSummon(false, 0); }));
    return all;
  }
  // Waits longer than a collective may take, which then has its own error: one
  // of a host that gives up names no rank, and ends nothing.
  Status Synchronize() {
    return Timed("synchronize",
                 [&] { return engine_->Synchronize(3 * options_.timeout); });
  }
  // Ends the engine.
  void End() {
    static_cast<void>(Timed("free", [&] {
      engine_.reset();
      return Status();
    }));
  }

 private:
  template <typename Call>
  auto Timed(const char* name, Call&& call) -> decltype(call()) {
    last_ = {name, 0};
    const auto begin = std::chrono::steady_clock::now();
    auto result = call();
    last_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
    if (last_.seconds > slowest_.seconds) slowest_ = last_;
    return result;
  }
  bool IsTrained(int32_t unit) const {
    const auto own = cuda_training::ParamsOf(*plan_, unit);
    return std::any_of(own.begin(), own.end(), [this](ParamId param) {
      const auto& params = engine_->plan().model().params();
      return params[static_cast<size_t>(param)].trainable;
    });
  }
  Status WriteGrads(int32_t unit, int step) {
    for (const ParamId param : cuda_training::ParamsOf(*plan_, unit)) {
      SHARD_ASSIGN_OR_RETURN(const Engine::Tensor grad, engine_->Grad(param));
      SHARD_RETURN_IF_ERROR(Synchronize());
      std::vector<float> values(static_cast<size_t>(grad.numel));
      for (int64_t i = 0; i < grad.numel; ++i) {
        values[static_cast<size_t>(i)] =
            GradientValue(step, param + 3 * rank(), i);
      }
      Store(plan_->buffer(plan_->place(param).buffer).grad_dtype, values,
            grad.data);
    }
    return Status();
  }
  Status Acquire(int32_t unit, Pass pass) {
    return Timed("acquire",
                 [&] { return engine_->UnitAcquire(unit, pass, 0); });
  }
  Status Release(int32_t unit) {
    return Timed("release", [&] { return engine_->UnitRelease(unit); });
  }

  const Form form_;
  const std::shared_ptr<const Plan> plan_;
  const std::shared_ptr<Communicator> comm_;
  const std::string device_;
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
  TimedCall last_;
  TimedCall slowest_;
};

}  // namespace shard::nccl_training

#endif  // SHARD_TESTS_CORE_ENGINE_NCCL_TRAINING_H_
