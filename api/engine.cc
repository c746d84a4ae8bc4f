// SPDX-License-Identifier: Apache-2.0

#include "core/engine/engine.h"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "api/collective.h"
#include "api/error.h"
#include "api/handles.h"
#include "api/memory.h"
#include "api/options.h"
#include "api/text.h"
#include "core/optim/loss_scaler.h"

namespace {

using shard::Engine;
using shard::EngineOptions;
using shard::HostCall;
using shard::Status;
using shard::StepOptions;
using shard::StepReport;
using shard::api::CommOf;
using shard::api::Guard;
using shard::api::GuardCollective;
using shard::api::GuardTraining;
using shard::api::HostCallOf;
using shard::api::ReadFlag;
using shard::api::ReadOptions;

// Returns the text of an optimizer, or the error of NULL, which the engine
// tells all ranks.
shard::StatusOr<std::string_view> ReadOptimizer(const char* optimizer) {
  SHARD_API_REQUIRE(optimizer);
  return std::string_view(optimizer);
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

}  // namespace

extern "C" {

shard_error* shard_engine_create(const shard_plan* plan, shard_comm* comm,
                                 const shard_engine_options* options,
                                 shard_engine** engine) noexcept {
  if (engine != nullptr) *engine = nullptr;
  return GuardCollective(CommOf(comm), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(comm);
    SHARD_ASSIGN_OR_RETURN(
        auto made,
        Engine::Create(plan == nullptr ? nullptr : plan->plan, comm->comm,
                       ToEngineOptions(plan, options, engine)));
    *engine = new shard_engine{std::move(made)};
    return Status();
  });
}

shard_error* shard_engine_set_hyper(shard_engine* engine, int32_t group,
                                    const char* key, double value) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    SHARD_API_REQUIRE(key);
    return engine->engine->SetHyper(group, key, value);
  });
}

shard_error* shard_engine_hyper(const shard_engine* engine, int32_t group,
                                const char* key, double* value) noexcept {
  if (value != nullptr) *value = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
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
    SHARD_API_REQUIRE_HANDLE(engine);
    SHARD_ASSIGN_OR_RETURN(const std::string text,
                           engine->engine->hypers().Text(group));
    return shard::api::CopyText(text, buffer, capacity, length);
  });
}

shard_error* shard_engine_set_state(shard_engine* engine, int32_t param,
                                    const char* state, const float* values,
                                    size_t count) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    SHARD_API_REQUIRE(state);
    if (count > 0) SHARD_API_REQUIRE(values);
    return engine->engine->SetState(param, state, values, count);
  });
}

shard_error* shard_engine_plan(const shard_engine* engine,
                               shard_plan** plan) noexcept {
  if (plan != nullptr) *plan = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    SHARD_API_REQUIRE(plan);
    *plan = new shard_plan{engine->engine->shared_plan()};
    return Status();
  });
}

shard_error* shard_engine_completed_steps(const shard_engine* engine,
                                          int64_t* step) noexcept {
  if (step != nullptr) *step = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    SHARD_API_REQUIRE(step);
    SHARD_RETURN_IF_ERROR(engine->engine->AwaitStep());
    *step = engine->engine->step();
    return Status();
  });
}

shard_error* shard_engine_set_completed_steps(shard_engine* engine,
                                              int64_t step) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->SetStep(step);
  });
}

shard_error* shard_engine_loss_scale(const shard_engine* engine,
                                     double* scale) noexcept {
  if (scale != nullptr) *scale = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    SHARD_API_REQUIRE(scale);
    SHARD_RETURN_IF_ERROR(engine->engine->AwaitStep());
    *scale = engine->engine->loss_scale();
    return Status();
  });
}

shard_error* shard_engine_growth_tracker(const shard_engine* engine,
                                         int64_t* good_steps) noexcept {
  if (good_steps != nullptr) *good_steps = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    SHARD_API_REQUIRE(good_steps);
    SHARD_RETURN_IF_ERROR(engine->engine->AwaitStep());
    *good_steps = engine->engine->growth_tracker();
    return Status();
  });
}

shard_error* shard_engine_set_loss_scale(shard_engine* engine, double scale,
                                         int64_t good_steps) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->SetLossScale({scale, good_steps});
  });
}

shard_error* shard_engine_step(shard_engine* engine,
                               const shard_step_options* options,
                               shard_step_report* report) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    shard::api::ClearWithoutHandle(CommOf(engine), "shard_step_report", report);
    SHARD_API_REQUIRE_HANDLE(engine);
    StepReport done;
    SHARD_RETURN_IF_ERROR(engine->engine->Step(
        ToStepOptions(options, report), report != nullptr ? &done : nullptr));
    if (report != nullptr) WriteReport(done, report);
    return Status();
  });
}

shard_error* shard_engine_capture_begin(shard_engine* engine) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->CaptureBegin();
  });
}

shard_error* shard_engine_capture_end(shard_engine* engine) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->CaptureEnd();
  });
}

shard_error* shard_engine_before_replay(
    shard_engine* engine, const shard_step_options* options) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->BeforeReplay(ToStepOptions(options, nullptr));
  });
}

shard_error* shard_devices_json(char* buffer, size_t capacity,
                                size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&] {
    return shard::api::CopyText(shard::DescribeDevices(), buffer, capacity,
                                length);
  });
}

shard_error* shard_engine_device(const shard_engine* engine,
                                 shard_device_kind* kind,
                                 int32_t* ordinal) noexcept {
  return Guard([&]() -> Status {
    if (kind != nullptr) *kind = 0;
    if (ordinal != nullptr) *ordinal = 0;
    SHARD_API_REQUIRE(kind);
    SHARD_API_REQUIRE_HANDLE(engine);
    const shard::DeviceId device = engine->engine->device();
    *kind = static_cast<shard_device_kind>(device.kind);
    if (ordinal != nullptr) *ordinal = device.ordinal;
    return Status();
  });
}

shard_error* shard_engine_json(const shard_engine* engine, char* buffer,
                               size_t capacity, size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return shard::api::CopyText(engine->engine->ToJson(), buffer, capacity,
                                length);
  });
}

shard_error* shard_engine_set_stream(shard_engine* engine,
                                     void* stream) noexcept {
  const HostCall::Scope call(HostCallOf(CommOf(engine)), __func__);
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->SetStream(stream);
  });
}

shard_error* shard_engine_last_report(const shard_engine* engine,
                                      shard_step_report* report) noexcept {
  const HostCall::Scope call(HostCallOf(CommOf(engine)), __func__);
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(report);
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_step_report", report));
    SHARD_API_REQUIRE_HANDLE(engine);
    SHARD_ASSIGN_OR_RETURN(const StepReport last, engine->engine->LastReport());
    WriteReport(last, report);
    return Status();
  });
}

shard_error* shard_engine_synchronize(shard_engine* engine,
                                      double timeout) noexcept {
  const HostCall::Scope call(HostCallOf(CommOf(engine)), __func__);
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->Synchronize(timeout);
  });
}

shard_error* shard_engine_begin_step(
    shard_engine* engine, const shard_step_options* options) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->BeginStep(ToStepOptions(options, nullptr));
  });
}

shard_error* shard_engine_join(shard_engine* engine, double timeout,
                               int64_t* steps) noexcept {
  if (steps != nullptr) *steps = 0;
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    int64_t done = 0;
    const Status status = engine->engine->Join(timeout, &done);
    if (steps != nullptr) *steps = done;
    return status;
  });
}

shard_error* shard_engine_summon(shard_engine* engine, int32_t module,
                                 int32_t rank, double timeout) noexcept {
  return GuardCollective(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->Summon(module, rank, timeout);
  });
}

shard_error* shard_engine_summon_end(shard_engine* engine, int32_t write_back,
                                     double timeout) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
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
    SHARD_API_REQUIRE_HANDLE(engine);
    SHARD_ASSIGN_OR_RETURN(
        const int32_t added,
        engine->engine->AddParamGroup(ReadOptimizer(optimizer),
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
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->SetTrainable(
        std::span(params, count), ReadFlag("trainable", trainable), timeout);
  });
}

shard_error* shard_engine_memory(const shard_engine* engine,
                                 shard_memory* memory) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(memory);
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_memory", memory));
    SHARD_API_REQUIRE_HANDLE(engine);
    const shard::Engine& made = *engine->engine;
    const shard::Communicator& comm = *made.comm();
    shard::api::WriteMemory(
        made.Memory(), made.collectives_memory(),
        {comm.local_world_size(), comm.direct(), made.SharesTensors(),
         made.SharesParams(), made.SharesSlots(), made.device().kind},
        memory);
    return Status();
  });
}

void shard_engine_free(shard_engine* engine) noexcept {
  shard::Communicator* const comm = CommOf(engine);
  // The engine waits for its transfers; the communicator may end with it.
  const std::shared_ptr<HostCall> host =
      comm == nullptr ? nullptr : comm->host_waits()->family_call();
  const HostCall::Scope call(host.get(), __func__);
  delete engine;
}

}  // extern "C"
