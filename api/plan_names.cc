// SPDX-License-Identifier: Apache-2.0
//
// The names of parameters, the modules and the buffers of a plan's model.

#include <algorithm>
#include <cstddef>
#include <span>

#include "api/error.h"
#include "api/handles.h"
#include "api/options.h"
#include "api/plan_ids.h"
#include "api/text.h"
#include "core/flat/check_host_tensor.h"
#include "core/model/directory.h"
#include "core/model/model.h"
#include "core/model/names.h"

namespace {

using shard::InvalidArgument;
using shard::Model;
using shard::ModelDirectory;
using shard::Status;
using shard::api::CheckId;
using shard::api::CheckStored;
using shard::api::CopyText;
using shard::api::Guard;
using shard::api::TextKind;

}  // namespace

extern "C" {

shard_error* shard_plan_name_info(const shard_plan* plan, int32_t index,
                                  shard_name_info* info) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(info);
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_name_info", info));
    SHARD_API_REQUIRE(plan);
    const ModelDirectory& directory = plan->directory();
    SHARD_RETURN_IF_ERROR(CheckId("name", index, directory.names().size()));
    const int32_t reference = directory.names()[static_cast<size_t>(index)];
    const Model::Reference& name =
        plan->plan->model().references()[static_cast<size_t>(reference)];
    const std::span<const int32_t> all = directory.NamesOf(name.param);
    shard_name_info out = SHARD_NAME_INFO_INIT;
    out.param = name.param;
    out.module = name.module;
    out.index = static_cast<int32_t>(
        std::lower_bound(all.begin(), all.end(), index) - all.begin());
    shard::api::WriteResult(out, info);
    return Status();
  });
}

shard_error* shard_plan_param_name(const shard_plan* plan, int32_t param,
                                   int32_t index, const char** name) noexcept {
  if (name != nullptr) *name = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(name);
    SHARD_RETURN_IF_ERROR(CheckStored(*plan->plan, param));
    const ModelDirectory& directory = plan->directory();
    const Model& model = plan->plan->model();
    const std::span<const int32_t> names = directory.NamesOf(param);
    const auto fqn = [&](int32_t number) {
      return model.ReferenceFqn(directory.names()[static_cast<size_t>(number)]);
    };
    if (index < 0 || static_cast<size_t>(index) >= names.size()) {
      return InvalidArgument("parameter '", fqn(names[0]), "' has no name ",
                             index, "; it has ", names.size());
    }
    const int32_t number = names[static_cast<size_t>(index)];
    *name = plan->texts.Get(TextKind::kParamName, number,
                            [&] { return fqn(number); });
    return Status();
  });
}

shard_error* shard_plan_find_param(const shard_plan* plan, const char* fqn,
                                   int32_t* param) noexcept {
  if (param != nullptr) *param = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(fqn);
    SHARD_API_REQUIRE(param);
    SHARD_ASSIGN_OR_RETURN(*param, plan->plan->model().FindParam(fqn));
    return Status();
  });
}

shard_error* shard_plan_module_info(const shard_plan* plan, int32_t index,
                                    shard_module_info* info) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(info);
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_module_info", info));
    SHARD_API_REQUIRE(plan);
    const auto& modules = plan->directory().modules();
    SHARD_RETURN_IF_ERROR(CheckId("module", index, modules.size()));
    const ModelDirectory::Module& module = modules[static_cast<size_t>(index)];
    shard_module_info out = SHARD_MODULE_INFO_INIT;
    out.module = module.id;
    out.parent =
        plan->plan->model().modules()[static_cast<size_t>(module.id)].parent;
    out.depth = module.depth;
    out.ignored = module.ignored ? 1 : 0;
    out.first_name = module.first_name;
    out.num_names = module.num_names;
    shard::api::WriteResult(out, info);
    return Status();
  });
}

shard_error* shard_plan_module_name(const shard_plan* plan, int32_t module,
                                    const char** name) noexcept {
  if (name != nullptr) *name = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(name);
    const Model& model = plan->plan->model();
    SHARD_RETURN_IF_ERROR(CheckId("module", module, model.modules().size()));
    *name = plan->texts.Get(TextKind::kModuleName, module,
                            [&] { return model.ModuleFqn(module); });
    return Status();
  });
}

shard_error* shard_plan_module_class(const shard_plan* plan, int32_t module,
                                     const char** class_name) noexcept {
  if (class_name != nullptr) *class_name = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(class_name);
    const auto& modules = plan->plan->model().modules();
    SHARD_RETURN_IF_ERROR(CheckId("module", module, modules.size()));
    *class_name = modules[static_cast<size_t>(module)].class_name.c_str();
    return Status();
  });
}

shard_error* shard_plan_model_buffer_info(
    const shard_plan* plan, int32_t buffer,
    shard_model_buffer_info* info) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(info);
    SHARD_RETURN_IF_ERROR(
        shard::api::ClearResult("shard_model_buffer_info", info));
    SHARD_API_REQUIRE(plan);
    SHARD_RETURN_IF_ERROR(shard::CheckHostTensor(*plan->plan, buffer));
    const Model::HostTensor& tensor =
        plan->plan->model().host_tensors()[static_cast<size_t>(buffer)];
    shard_model_buffer_info out = SHARD_MODEL_BUFFER_INFO_INIT;
    out.numel = tensor.numel;
    std::copy(tensor.shape.begin(), tensor.shape.end(), out.shape);
    out.ndim = static_cast<int32_t>(tensor.shape.size());
    out.dtype = static_cast<int32_t>(tensor.type);
    out.module = tensor.module;
    out.persistent = tensor.persistent ? 1 : 0;
    shard::api::WriteResult(out, info);
    return Status();
  });
}

shard_error* shard_plan_model_buffer_name(const shard_plan* plan,
                                          int32_t buffer,
                                          const char** name) noexcept {
  if (name != nullptr) *name = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(name);
    SHARD_RETURN_IF_ERROR(shard::CheckHostTensor(*plan->plan, buffer));
    *name = plan->texts.Get(TextKind::kModelBufferName, buffer, [&] {
      return plan->plan->model().HostTensorFqn(buffer);
    });
    return Status();
  });
}

shard_error* shard_clean_tensor_name(const char* name,
                                     int32_t strip_leading_module, char* buffer,
                                     size_t capacity, size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(name);
    SHARD_ASSIGN_OR_RETURN(
        const bool strip,
        shard::api::ReadFlag("strip_leading_module", strip_leading_module));
    return CopyText(shard::CleanTensorName(name, strip), buffer, capacity,
                    length);
  });
}

}  // extern "C"
