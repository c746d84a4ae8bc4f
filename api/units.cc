// SPDX-License-Identifier: Apache-2.0
//
// The units of an engine, in forward and backward passes.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "api/collective.h"
#include "api/error.h"
#include "api/handles.h"
#include "api/options.h"
#include "api/plan_ids.h"
#include "core/engine/engine.h"

namespace {

using shard::Engine;
using shard::Status;
using shard::api::CommOf;
using shard::api::Guard;
using shard::api::GuardTraining;
using shard::api::ReadFlag;

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

shard_error* shard_engine_unit_acquire(shard_engine* engine, int32_t unit,
                                       int32_t pass, double timeout) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
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
    SHARD_API_REQUIRE_HANDLE(engine);
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
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->UnitRelease(unit);
  });
}

shard_error* shard_engine_mark_unit_grads_ready(shard_engine* engine,
                                                int32_t unit) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->MarkUnitGradsReady(unit);
  });
}

shard_error* shard_engine_mark_param_grad_ready(shard_engine* engine,
                                                int32_t param) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->MarkParamGradReady(param);
  });
}

shard_error* shard_engine_set_accumulate(shard_engine* engine,
                                         int32_t accumulate) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    SHARD_ASSIGN_OR_RETURN(const bool read, ReadFlag("accumulate", accumulate));
    return engine->engine->SetAccumulate(read);
  });
}

}  // extern "C"
