// SPDX-License-Identifier: Apache-2.0
//
// The tensors of an engine: parameters, gradients, buffers of the model, and
// memory of the host's own.

#include <cstddef>

#include "api/collective.h"
#include "api/error.h"
#include "api/handles.h"
#include "core/engine/engine.h"

namespace {

using shard::Engine;
using shard::HostCall;
using shard::Status;
using shard::api::CommOf;
using shard::api::Guard;
using shard::api::GuardCollective;
using shard::api::GuardTraining;
using shard::api::HostCallOf;

// Writes the tensor of `engine` that `get` returns; null and 0 on an error.
// `Data` is void* or const void*; `numel` may be null.
template <typename Data, typename Get>
shard_error* GetTensor(shard_engine* engine, Data* data, int64_t* numel,
                       const Get& get) {
  if (data != nullptr) *data = nullptr;
  if (numel != nullptr) *numel = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    SHARD_API_REQUIRE(data);
    SHARD_ASSIGN_OR_RETURN(const Engine::Tensor tensor, get());
    *data = tensor.data;
    if (numel != nullptr) *numel = tensor.numel;
    return Status();
  });
}

}  // namespace

extern "C" {

shard_error* shard_engine_param(shard_engine* engine, int32_t param,
                                const void** data, int64_t* numel) noexcept {
  return GetTensor(engine, data, numel,
                   [&] { return engine->engine->Param(param); });
}

shard_error* shard_engine_writable_param(shard_engine* engine, int32_t param,
                                         void** data, int64_t* numel) noexcept {
  return GetTensor(engine, data, numel,
                   [&] { return engine->engine->WritableParam(param); });
}

shard_error* shard_engine_set_param(shard_engine* engine, int32_t param,
                                    const void* data, size_t bytes) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    if (bytes > 0) SHARD_API_REQUIRE(data);
    return engine->engine->SetParam(param, data, bytes);
  });
}

shard_error* shard_engine_broadcast_params(shard_engine* engine,
                                           double timeout) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->BroadcastParams(timeout);
  });
}

shard_error* shard_engine_grad(shard_engine* engine, int32_t param, void** data,
                               int64_t* numel) noexcept {
  return GetTensor(engine, data, numel,
                   [&] { return engine->engine->Grad(param); });
}

shard_error* shard_engine_zero_grad(shard_engine* engine) noexcept {
  const HostCall::Scope call(HostCallOf(CommOf(engine)), __func__);
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->ZeroGrad();
  });
}

shard_error* shard_engine_bind_param(shard_engine* engine, int32_t param,
                                     void* values, size_t values_bytes,
                                     void* grad, size_t grad_bytes) noexcept {
  const HostCall::Scope call(HostCallOf(CommOf(engine)), __func__);
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    if (values_bytes > 0) SHARD_API_REQUIRE(values);
    if (grad_bytes > 0) SHARD_API_REQUIRE(grad);
    return engine->engine->Bind(
        param, {{static_cast<std::byte*>(values), values_bytes},
                {static_cast<std::byte*>(grad), grad_bytes}});
  });
}

shard_error* shard_engine_buffer(shard_engine* engine, int32_t buffer,
                                 void** data, int64_t* numel) noexcept {
  return GetTensor(engine, data, numel,
                   [&] { return engine->engine->HostTensor(buffer); });
}

shard_error* shard_engine_broadcast_buffers(shard_engine* engine, int32_t root,
                                            double timeout) noexcept {
  return GuardCollective(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return engine->engine->BroadcastHostTensors(root, timeout);
  });
}

}  // extern "C"
