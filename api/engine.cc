// SPDX-License-Identifier: Apache-2.0

#include "core/engine/engine.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/collective.h"
#include "api/error.h"
#include "api/handles.h"
#include "api/memory.h"
#include "api/options.h"
#include "api/plan_ids.h"
#include "api/text.h"
#include "core/optim/loss_scaler.h"

namespace {

using shard::Engine;
using shard::EngineOptions;
using shard::InvalidArgument;
using shard::Status;
using shard::StepOptions;
using shard::StepReport;
using shard::api::Guard;
using shard::api::GuardCollective;
using shard::api::GuardTraining;
using shard::api::ReadFlag;
using shard::api::ReadOptions;

// Returns `text`, or "" for NULL: the engine tells all ranks of a wrong
// argument.
std::string_view TextOf(const char* text) { return text ? text : ""; }

// Returns the communicator of an engine; NULL for a NULL engine.
shard::Communicator* CommOf(const shard_engine* engine) {
  return engine == nullptr ? nullptr : engine->engine->comm();
}

// Writes the tensor of `engine` that `get` returns; null and 0 on an error.
// `Data` is void* or const void*; `numel` may be null.
template <typename Data, typename Get>
shard_error* GetTensor(shard_engine* engine, Data* data, int64_t* numel,
                       const Get& get) {
  if (data != nullptr) *data = nullptr;
  if (numel != nullptr) *numel = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    SHARD_API_REQUIRE(data);
    SHARD_ASSIGN_OR_RETURN(const Engine::Tensor tensor, get());
    *data = tensor.data;
    if (numel != nullptr) *numel = tensor.numel;
    return Status();
  });
}

// Reads the options of an engine. The other ranks are about to enter the same
// collective, so the engine tells them of this rank's wrong arguments.
shard::StatusOr<EngineOptions> ToEngineOptions(
    const shard_plan* plan, const shard_engine_options* given,
    shard_engine** engine) {
  shard_engine_options read;
  SHARD_RETURN_IF_ERROR(ReadOptions("shard_engine_options", given, &read));
  SHARD_API_REQUIRE(plan);
  SHARD_API_REQUIRE(engine);
  EngineOptions options;
  options.timeout = read.timeout;
  options.missing_grads = static_cast<shard::MissingGrads>(read.missing_grads);
  SHARD_ASSIGN_OR_RETURN(options.overlap, ReadFlag("overlap", read.overlap));
  if (read.device != nullptr) options.device = read.device;
  SHARD_ASSIGN_OR_RETURN(options.loss_scaler,
                         shard::LossScaler::Parse(read.loss_scaling == nullptr
                                                      ? ""
                                                      : read.loss_scaling));
  return options;
}

shard::StatusOr<StepOptions> ToStepOptions(const shard_step_options* given,
                                           shard_step_report* report) {
  if (report != nullptr) {
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_step_report", report));
  }
  shard_step_options read;
  SHARD_RETURN_IF_ERROR(ReadOptions("shard_step_options", given, &read));
  StepOptions options;
  options.max_grad_norm = read.max_grad_norm;
  options.grad_norm_type = read.grad_norm_type;
  options.clip_value = read.clip_value;
  options.grad_divisor = read.grad_divisor;
  options.loss_scale = read.loss_scale;
  options.timeout = read.timeout;
  SHARD_ASSIGN_OR_RETURN(options.skip_nonfinite,
                         ReadFlag("skip_nonfinite", read.skip_nonfinite));
  SHARD_ASSIGN_OR_RETURN(options.average_active,
                         ReadFlag("average_active", read.average_active));
  return options;
}

void WriteReport(const StepReport& report, shard_step_report* out) {
  shard_step_report result = SHARD_STEP_REPORT_INIT;
  result.step = report.step;
  result.grad_norm = report.grad_norm;
  result.skipped = report.skipped ? 1 : 0;
  result.bytes_moved = report.bytes_moved;
  result.seconds_wait = report.seconds_wait;
  result.seconds_reduce = report.seconds_reduce;
  result.seconds_update = report.seconds_update;
  result.seconds_total = report.seconds_total;
  result.loss_scale = report.loss_scale;
  result.bytes_communicated = report.comm.bytes;
  result.bytes_overlapped = report.comm.bytes_overlapped;
  result.seconds_communication = report.comm.seconds;
  result.seconds_exposed = report.comm.seconds_exposed;
  result.active_ranks = report.active;
  shard::api::WriteResult(result, out);
}

struct UnitParam {
  int32_t param;
  const void* data = nullptr;
  void* grad = nullptr;
};

// Returns the parameters of a unit, by ascending id.
shard::StatusOr<std::vector<UnitParam>> UnitParams(const Engine& engine,
                                                   int32_t unit, bool with_data,
                                                   bool with_grads) {
  const shard::Plan& plan = engine.plan();
  SHARD_RETURN_IF_ERROR(shard::api::CheckId("unit", unit, plan.units().size()));
  std::vector<UnitParam> found;
  for (const int32_t b : plan.unit(unit).buffers) {
    const shard::FlatBufferPlan& buffer = plan.buffer(b);
    for (const shard::Slot& slot : buffer.layout.slots()) {
      UnitParam param{slot.param};
      if (with_data) {
        SHARD_ASSIGN_OR_RETURN(const auto tensor, engine.Param(slot.param));
        param.data = tensor.data;
      }
      if (with_grads && buffer.trainable) {
        SHARD_ASSIGN_OR_RETURN(const auto tensor, engine.Grad(slot.param));
        param.grad = tensor.data;
      }
      found.push_back(param);
    }
  }
  std::sort(
      found.begin(), found.end(),
      [](const UnitParam& a, const UnitParam& b) { return a.param < b.param; });
  return found;
}

}  // namespace

extern "C" {

shard_error* shard_engine_create(const shard_plan* plan, shard_comm* comm,
                                 const shard_engine_options* options,
                                 shard_engine** engine) noexcept {
  if (engine != nullptr) *engine = nullptr;
  return GuardCollective(
      comm == nullptr ? nullptr : comm->comm.get(), [&]() -> Status {
        SHARD_API_REQUIRE(comm);
        SHARD_ASSIGN_OR_RETURN(
            auto made,
            Engine::Create(plan == nullptr ? nullptr : plan->plan, comm->comm,
                           ToEngineOptions(plan, options, engine)));
        *engine = new shard_engine{std::move(made)};
        return Status();
      });
}

shard_error* shard_engine_writable_param(shard_engine* engine, int32_t param,
                                         void** data, int64_t* numel) noexcept {
  return GetTensor(engine, data, numel,
                   [&] { return engine->engine->WritableParam(param); });
}

shard_error* shard_engine_param(shard_engine* engine, int32_t param,
                                const void** data, int64_t* numel) noexcept {
  return GetTensor(engine, data, numel,
                   [&] { return engine->engine->Param(param); });
}

shard_error* shard_engine_grad(shard_engine* engine, int32_t param, void** data,
                               int64_t* numel) noexcept {
  return GetTensor(engine, data, numel,
                   [&] { return engine->engine->Grad(param); });
}

shard_error* shard_engine_buffer(shard_engine* engine, int32_t buffer,
                                 void** data, int64_t* numel) noexcept {
  return GetTensor(engine, data, numel,
                   [&] { return engine->engine->HostTensor(buffer); });
}

shard_error* shard_engine_broadcast_buffers(shard_engine* engine, int32_t root,
                                            double timeout) noexcept {
  return GuardCollective(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    return engine->engine->BroadcastHostTensors(root, timeout);
  });
}

shard_error* shard_engine_bind_param(shard_engine* engine, int32_t param,
                                     void* values, size_t values_bytes,
                                     void* grad, size_t grad_bytes) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    if (values_bytes > 0) SHARD_API_REQUIRE(values);
    if (grad_bytes > 0) SHARD_API_REQUIRE(grad);
    return engine->engine->Bind(
        param, {{static_cast<std::byte*>(values), values_bytes},
                {static_cast<std::byte*>(grad), grad_bytes}});
  });
}

shard_error* shard_engine_zero_grad(shard_engine* engine) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    return engine->engine->ZeroGrad();
  });
}

shard_error* shard_engine_set_hyper(shard_engine* engine, int32_t group,
                                    const char* key, double value) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    SHARD_API_REQUIRE(key);
    return engine->engine->SetHyper(group, key, value);
  });
}

shard_error* shard_engine_get_hyper(const shard_engine* engine, int32_t group,
                                    const char* key, double* value) noexcept {
  if (value != nullptr) *value = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    SHARD_API_REQUIRE(key);
    SHARD_API_REQUIRE(value);
    SHARD_ASSIGN_OR_RETURN(*value, engine->engine->hypers().Get(group, key));
    return Status();
  });
}

shard_error* shard_engine_group_text(const shard_engine* engine, int32_t group,
                                     char* buffer, size_t capacity,
                                     size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    SHARD_ASSIGN_OR_RETURN(const std::string text,
                           engine->engine->hypers().Text(group));
    return shard::api::CopyText(text, buffer, capacity, length);
  });
}

shard_error* shard_engine_set_state(shard_engine* engine, int32_t param,
                                    const char* state, const float* values,
                                    size_t count) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    SHARD_API_REQUIRE(state);
    if (count > 0) SHARD_API_REQUIRE(values);
    return engine->engine->SetState(param, state, values, count);
  });
}

shard_error* shard_engine_plan(const shard_engine* engine,
                               shard_plan** plan) noexcept {
  if (plan != nullptr) *plan = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    SHARD_API_REQUIRE(plan);
    *plan = new shard_plan{engine->engine->shared_plan()};
    return Status();
  });
}

shard_error* shard_engine_get_step(const shard_engine* engine,
                                   int64_t* step) noexcept {
  if (step != nullptr) *step = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    SHARD_API_REQUIRE(step);
    *step = engine->engine->step();
    return Status();
  });
}

shard_error* shard_engine_set_step(shard_engine* engine,
                                   int64_t step) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    return engine->engine->SetStep(step);
  });
}

shard_error* shard_engine_loss_scale(const shard_engine* engine,
                                     double* scale) noexcept {
  if (scale != nullptr) *scale = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    SHARD_API_REQUIRE(scale);
    *scale = engine->engine->loss_scale();
    return Status();
  });
}

shard_error* shard_engine_growth_tracker(const shard_engine* engine,
                                         int64_t* good_steps) noexcept {
  if (good_steps != nullptr) *good_steps = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    SHARD_API_REQUIRE(good_steps);
    *good_steps = engine->engine->growth_tracker();
    return Status();
  });
}

shard_error* shard_engine_set_loss_scale(shard_engine* engine, double scale,
                                         int64_t good_steps) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    return engine->engine->SetLossScale({scale, good_steps});
  });
}

shard_error* shard_engine_set_param(shard_engine* engine, int32_t param,
                                    const void* data, size_t bytes) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    if (bytes > 0) SHARD_API_REQUIRE(data);
    return engine->engine->SetParam(param, data, bytes);
  });
}

shard_error* shard_engine_broadcast_params(shard_engine* engine,
                                           double timeout) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    return engine->engine->BroadcastParams(timeout);
  });
}

shard_error* shard_engine_step(shard_engine* engine,
                               const shard_step_options* options,
                               shard_step_report* report) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    StepReport done;
    SHARD_RETURN_IF_ERROR(
        engine->engine->Step(ToStepOptions(options, report), &done));
    if (report != nullptr) WriteReport(done, report);
    return Status();
  });
}

shard_error* shard_engine_unit_acquire(shard_engine* engine, int32_t unit,
                                       int32_t pass, double timeout) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    return engine->engine->UnitAcquire(unit, static_cast<shard::Pass>(pass),
                                       timeout);
  });
}

shard_error* shard_engine_unit_params(shard_engine* engine, int32_t unit,
                                      int32_t* params, const void** data,
                                      void** grads, size_t capacity,
                                      size_t* count) noexcept {
  if (count != nullptr) *count = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    // No more than a unit could fill: the capacity may be garbage.
    const size_t cleared =
        std::min(capacity, engine->engine->plan().places().size());
    if (params != nullptr) std::fill_n(params, cleared, 0);
    if (data != nullptr) std::fill_n(data, cleared, nullptr);
    if (grads != nullptr) std::fill_n(grads, cleared, nullptr);
    SHARD_ASSIGN_OR_RETURN(
        const std::vector<UnitParam> found,
        UnitParams(*engine->engine, unit, data != nullptr, grads != nullptr));
    for (size_t i = 0; i < std::min(capacity, found.size()); ++i) {
      if (params != nullptr) params[i] = found[i].param;
      if (data != nullptr) data[i] = found[i].data;
      if (grads != nullptr) grads[i] = found[i].grad;
    }
    if (count != nullptr) *count = found.size();
    return Status();
  });
}

shard_error* shard_engine_unit_release(shard_engine* engine,
                                       int32_t unit) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    return engine->engine->UnitRelease(unit);
  });
}

shard_error* shard_engine_mark_unit_grads_ready(shard_engine* engine,
                                                int32_t unit) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    return engine->engine->MarkUnitGradsReady(unit);
  });
}

shard_error* shard_engine_mark_param_grad_ready(shard_engine* engine,
                                                int32_t param) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    return engine->engine->MarkParamGradReady(param);
  });
}

shard_error* shard_engine_set_accumulate(shard_engine* engine,
                                         int32_t accumulate) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    SHARD_ASSIGN_OR_RETURN(const bool read, ReadFlag("accumulate", accumulate));
    return engine->engine->SetAccumulate(read);
  });
}

shard_error* shard_engine_begin_step(
    shard_engine* engine, const shard_step_options* options) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    return engine->engine->BeginStep(ToStepOptions(options, nullptr));
  });
}

shard_error* shard_engine_join(shard_engine* engine, double timeout,
                               int64_t* steps) noexcept {
  if (steps != nullptr) *steps = 0;
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    int64_t done = 0;
    const Status status = engine->engine->Join(timeout, &done);
    if (steps != nullptr) *steps = done;
    return status;
  });
}

shard_error* shard_engine_summon(shard_engine* engine, int32_t module,
                                 int32_t rank, double timeout) noexcept {
  return GuardCollective(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    return engine->engine->Summon(module, rank, timeout);
  });
}

shard_error* shard_engine_summon_end(shard_engine* engine, int32_t write_back,
                                     double timeout) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    return engine->engine->EndSummon(ReadFlag("write_back", write_back),
                                     timeout);
  });
}

shard_error* shard_engine_add_param_group(shard_engine* engine,
                                          const char* optimizer,
                                          const int32_t* params, size_t count,
                                          double timeout,
                                          int32_t* group) noexcept {
  if (group != nullptr) *group = 0;
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    SHARD_ASSIGN_OR_RETURN(
        const int32_t added,
        engine->engine->AddParamGroup(TextOf(optimizer),
                                      std::span(params, count), timeout));
    if (group != nullptr) *group = added;
    return Status();
  });
}

shard_error* shard_engine_set_trainable(shard_engine* engine,
                                        const int32_t* params, size_t count,
                                        int32_t trainable,
                                        double timeout) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    return engine->engine->SetTrainable(
        std::span(params, count), ReadFlag("trainable", trainable), timeout);
  });
}

shard_error* shard_engine_memory(const shard_engine* engine,
                                 shard_memory* memory) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(memory);
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_memory", memory));
    SHARD_API_REQUIRE(engine);
    const shard::Communicator& comm = *engine->engine->comm();
    shard::api::WriteMemory(engine->engine->Memory(), comm.world_size(),
                            comm.direct(), memory);
    return Status();
  });
}

void shard_engine_free(shard_engine* engine) noexcept { delete engine; }

}  // extern "C"
