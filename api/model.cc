// SPDX-License-Identifier: Apache-2.0

#include "core/model/model.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/error.h"
#include "api/handles.h"
#include "api/options.h"
#include "core/model/names.h"

using shard::Status;
using shard::api::Guard;

namespace {

shard::StatusOr<std::vector<int64_t>> ReadShape(const char* what,
                                                const char* name,
                                                const int64_t* shape,
                                                size_t ndim) {
  if (ndim > SHARD_MAX_DIMS) {
    return shard::InvalidArgument(what, " '", name, "' has ndim ", ndim,
                                  "; allowed: 0 to ", SHARD_MAX_DIMS);
  }
  if (ndim > 0) SHARD_API_REQUIRE(shape);
  return std::vector<int64_t>(shape, shape + ndim);
}

}  // namespace

extern "C" {

shard_error* shard_model_create(const char* class_name,
                                shard_model** model) noexcept {
  if (model != nullptr) *model = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(model);
    const std::string_view root = class_name == nullptr ? "" : class_name;
    SHARD_RETURN_IF_ERROR(shard::CheckClassName(root));
    *model = new shard_model{shard::Model(std::string(root))};
    return Status();
  });
}

shard_error* shard_model_add_module(shard_model* model, int32_t parent,
                                    const char* name, const char* class_name,
                                    int32_t* module) noexcept {
  if (module != nullptr) *module = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(model);
    SHARD_API_REQUIRE(name);
    SHARD_ASSIGN_OR_RETURN(
        const int32_t id,
        model->model.AddModule(parent, name,
                               class_name == nullptr ? "" : class_name));
    if (module != nullptr) *module = id;
    return Status();
  });
}

shard_error* shard_model_add_param(shard_model* model, int32_t module,
                                   const char* name, int32_t dtype,
                                   const int64_t* shape, size_t ndim,
                                   int32_t* param) noexcept {
  if (param != nullptr) *param = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(model);
    SHARD_API_REQUIRE(name);
    SHARD_ASSIGN_OR_RETURN(const shard::DType type,
                           shard::DTypeFromValue(dtype));
    SHARD_ASSIGN_OR_RETURN(const std::vector<int64_t> dims,
                           ReadShape("parameter", name, shape, ndim));
    SHARD_ASSIGN_OR_RETURN(const int32_t id,
                           model->model.AddParam(module, name, type, dims));
    if (param != nullptr) *param = id;
    return Status();
  });
}

shard_error* shard_model_add_buffer(shard_model* model, int32_t module,
                                    const char* name, int32_t dtype,
                                    const int64_t* shape, size_t ndim,
                                    int32_t persistent,
                                    int32_t* buffer) noexcept {
  if (buffer != nullptr) *buffer = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(model);
    SHARD_API_REQUIRE(name);
    SHARD_ASSIGN_OR_RETURN(const std::vector<int64_t> dims,
                           ReadShape("buffer", name, shape, ndim));
    SHARD_ASSIGN_OR_RETURN(const bool is_persistent,
                           shard::api::ReadFlag("persistent", persistent));
    SHARD_ASSIGN_OR_RETURN(
        const int32_t id,
        model->model.AddHostTensor(module, name,
                                   static_cast<shard::ElementType>(dtype), dims,
                                   is_persistent));
    if (buffer != nullptr) *buffer = id;
    return Status();
  });
}

shard_error* shard_model_tie(shard_model* model, int32_t module,
                             const char* name, int32_t param) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(model);
    SHARD_API_REQUIRE(name);
    return model->model.Tie(module, name, param);
  });
}

shard_error* shard_model_freeze(shard_model* model, int32_t param) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(model);
    return model->model.SetTrainable(param, false);
  });
}

shard_error* shard_model_ignore_param(shard_model* model,
                                      int32_t param) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(model);
    return model->model.IgnoreParam(param);
  });
}

shard_error* shard_model_ignore_module(shard_model* model,
                                       int32_t module) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(model);
    return model->model.IgnoreModule(module);
  });
}

shard_error* shard_model_add_param_group(shard_model* model,
                                         const char* optimizer,
                                         const int32_t* params, size_t count,
                                         int32_t* group) noexcept {
  if (group != nullptr) *group = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(model);
    SHARD_API_REQUIRE(optimizer);
    SHARD_ASSIGN_OR_RETURN(
        const int32_t id,
        model->model.AddParamGroup(optimizer, std::span(params, count)));
    if (group != nullptr) *group = id;
    return Status();
  });
}

void shard_model_free(shard_model* model) noexcept { delete model; }

}  // extern "C"
