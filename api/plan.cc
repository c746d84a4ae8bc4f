// SPDX-License-Identifier: Apache-2.0

#include "core/flat/plan.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/error.h"
#include "api/handles.h"
#include "api/memory.h"
#include "api/options.h"
#include "api/plan_ids.h"
#include "api/text.h"
#include "core/base/host_array.h"
#include "core/base/strings.h"
#include "core/device/device.h"
#include "core/engine/transfer/collectives_memory.h"
#include "core/flat/check_matches_model.h"
#include "core/optim/groups.h"

namespace {

using shard::InvalidArgument;
using shard::Partition;
using shard::PlanOptions;
using shard::Status;
using shard::api::CheckId;
using shard::api::CheckStored;
using shard::api::Guard;
using shard::api::Placement;
using shard::api::ReadFlag;

Status ReadUnits(const shard_plan_options& read, PlanOptions* options) {
  SHARD_ASSIGN_OR_RETURN(
      options->wrap,
      shard::WrapPolicy::Parse(read.wrap == nullptr ? "" : read.wrap));
  if (read.wrap_predicate != nullptr) {
    options->wrap.SetPredicate(
        [call = read.wrap_predicate, user_data = read.wrap_user_data](
            shard::ModuleId module, int64_t nonwrapped_numel) {
          return call(module, nonwrapped_numel, user_data) != 0;
        });
  }
  if (read.param_dtype != 0) {
    options->param_dtype = static_cast<shard::DType>(read.param_dtype);
  }
  if (read.f32_classes != nullptr && *read.f32_classes != '\0') {
    for (const std::string_view name : shard::Split(read.f32_classes, ',')) {
      if (name.empty()) {
        return InvalidArgument("f32_classes '", read.f32_classes,
                               "' holds an empty class name");
      }
      options->f32_classes.emplace_back(name);
    }
  }
  if (read.buffer_bytes < 0) {
    return InvalidArgument("buffer_bytes ", read.buffer_bytes, " is negative");
  }
  if (read.buffer_bytes != 0) options->buffer_bytes = read.buffer_bytes;
  options->shard_group_size = read.shard_group_size;
  if (read.prefetch < -1) {
    return InvalidArgument("prefetch ", read.prefetch,
                           " is below -1, which means none");
  }
  if (read.prefetch != 0) options->prefetch = std::max(read.prefetch, 0);
  SHARD_ASSIGN_OR_RETURN(options->whole_grads,
                         ReadFlag("whole_grads", read.whole_grads));
  SHARD_ASSIGN_OR_RETURN(options->deterministic,
                         ReadFlag("deterministic", read.deterministic));
  SHARD_ASSIGN_OR_RETURN(
      options->keep_after_forward,
      ReadFlag("keep_after_forward", read.keep_after_forward));
  SHARD_ASSIGN_OR_RETURN(options->require_sharding,
                         ReadFlag("require_sharding", read.require_sharding));
  return Status();
}

shard::StatusOr<PlanOptions> ToPlanOptions(const shard::Model& model,
                                           const shard_plan_options* given) {
  shard_plan_options read;
  SHARD_RETURN_IF_ERROR(
      shard::api::ReadOptions("shard_plan_options", given, &read));
  SHARD_RETURN_IF_ERROR(
      shard::api::CheckReserved("shard_plan_options", read.reserved));
  if (read.partition < 0 || read.partition > SHARD_PARTITION_MANUAL) {
    return InvalidArgument("partition ", read.partition,
                           " is unknown; known: 1 (even), 2 (greedy), "
                           "3 (bucket), 4 (manual)");
  }
  if (read.bucket_bytes < 0) {
    return InvalidArgument("bucket_bytes ", read.bucket_bytes, " is negative");
  }
  const std::span owners(read.owners, read.num_owners);
  SHARD_RETURN_IF_ERROR(shard::CheckHostArray(
      "owners", owners, model.params().size(), "parameters"));

  PlanOptions options;
  options.stage = read.stage;
  options.world_size = read.world_size;
  if (read.partition != 0) {
    options.partition = static_cast<Partition>(read.partition);
  }
  options.manual_owners.assign(owners.begin(), owners.end());
  if (read.bucket_bytes != 0) options.bucket_bytes = read.bucket_bytes;
  SHARD_ASSIGN_OR_RETURN(options.shard_buckets,
                         ReadFlag("shard_buckets", read.shard_buckets));
  SHARD_ASSIGN_OR_RETURN(options.f32_grads,
                         ReadFlag("f32_grads", read.f32_grads));
  if (read.masters != 0) {
    options.masters = static_cast<shard::Masters>(read.masters);
  }
  options.seed = read.seed;
  SHARD_RETURN_IF_ERROR(ReadUnits(read, &options));
  SHARD_RETURN_IF_ERROR(shard::CheckMatchesModel(model, options));
  SHARD_ASSIGN_OR_RETURN(
      options.groups,
      shard::PlanGroups(model,
                        read.optimizer == nullptr ? "" : read.optimizer));
  return options;
}

shard::StatusOr<Placement> ToPlacement(const shard::Plan& plan,
                                       const shard_placement* given) {
  shard_placement read;
  SHARD_RETURN_IF_ERROR(
      shard::api::ReadOptions("shard_placement", given, &read));
  const int32_t ranks = plan.options().world_size;
  if (read.ranks_per_host < 0 || read.ranks_per_host > ranks) {
    return InvalidArgument("ranks_per_host ", read.ranks_per_host,
                           " is out of range; allowed: 1 to ", ranks,
                           ", the plan's world size, or 0 for all");
  }
  SHARD_ASSIGN_OR_RETURN(const bool separate,
                         ReadFlag("separate_memory", read.separate_memory));
  Placement placement;
  SHARD_ASSIGN_OR_RETURN(
      const shard::DeviceChoice device,
      shard::ReadDeviceSpec(read.device == nullptr ? "" : read.device));
  placement.device = device.kind;
  placement.offload = device.offload;
  placement.transport = device.transport;
  placement.one_kernel = device.one_kernel;
  placement.ranks_per_host =
      read.ranks_per_host == 0 ? ranks : read.ranks_per_host;
  placement.shares_memory = placement.ranks_per_host == ranks && !separate;
  // As SharesTensors of the engine.
  placement.shares_tensors =
      placement.shares_memory &&
      (placement.device == shard::DeviceId::Kind::kCpu || ranks == 1);
  const bool shares_host = placement.device == shard::DeviceId::Kind::kCpu &&
                           !separate && placement.ranks_per_host > 1;
  placement.shares_params =
      placement.shares_tensors || (shares_host && !plan.shards_params());
  placement.shares_slots =
      shares_host && !placement.shares_tensors && plan.shards_params() &&
      plan.ShardGroupSize() % placement.ranks_per_host == 0;
  return placement;
}

shard_plan_info InfoOf(const shard_plan& handle) {
  const shard::Plan& plan = *handle.plan;
  shard_plan_info info = SHARD_PLAN_INFO_INIT;
  info.fingerprint = plan.fingerprint();
  info.stage = plan.options().stage;
  info.shards_grads = plan.shards_grads() ? 1 : 0;
  info.shards_params = plan.shards_params() ? 1 : 0;
  info.world_size = plan.options().world_size;
  info.num_params = static_cast<int32_t>(plan.places().size());
  info.num_modules = static_cast<int32_t>(plan.model().modules().size());
  info.num_names = static_cast<int32_t>(handle.directory().names().size());
  info.num_groups = static_cast<int32_t>(plan.options().groups.size());
  info.num_units = static_cast<int32_t>(plan.units().size());
  info.num_buffers = static_cast<int32_t>(plan.buffers().size());
  info.shard_group_size = plan.ShardGroupSize();
  info.keep_after_forward = plan.options().keep_after_forward ? 1 : 0;
  info.num_model_buffers =
      static_cast<int32_t>(plan.model().host_tensors().size());
  return info;
}

}  // namespace

extern "C" {

shard_error* shard_plan_create(const shard_model* model,
                               const shard_plan_options* options,
                               shard_plan** plan) noexcept {
  if (plan != nullptr) *plan = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(model);
    SHARD_API_REQUIRE(plan);
    SHARD_ASSIGN_OR_RETURN(PlanOptions read,
                           ToPlanOptions(model->model, options));
    SHARD_ASSIGN_OR_RETURN(
        auto made,
        shard::Plan::Create(std::make_shared<const shard::Model>(model->model),
                            std::move(read)));
    *plan = new shard_plan{std::move(made)};
    return Status();
  });
}

shard_error* shard_plan_get_info(const shard_plan* plan,
                                 shard_plan_info* info) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(info);
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_plan_info", info));
    SHARD_API_REQUIRE(plan);
    shard::api::WriteResult(InfoOf(*plan), info);
    return Status();
  });
}

shard_error* shard_plan_unit_of(const shard_plan* plan, int32_t param,
                                int32_t* unit) noexcept {
  if (unit != nullptr) *unit = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(unit);
    SHARD_RETURN_IF_ERROR(CheckStored(*plan->plan, param));
    *unit = plan->plan->UnitOf(param);
    return Status();
  });
}

shard_error* shard_plan_unit_of_module(const shard_plan* plan, int32_t module,
                                       int32_t* unit) noexcept {
  if (unit != nullptr) *unit = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(unit);
    const shard::Model& model = plan->plan->model();
    SHARD_RETURN_IF_ERROR(CheckId("module", module, model.modules().size()));
    *unit = plan->plan->UnitAt(module);
    return Status();
  });
}

shard_error* shard_plan_unit_module(const shard_plan* plan, int32_t unit,
                                    int32_t* module) noexcept {
  if (module != nullptr) *module = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(module);
    SHARD_RETURN_IF_ERROR(CheckId("unit", unit, plan->plan->units().size()));
    *module = plan->plan->unit(unit).module;
    return Status();
  });
}

shard_error* shard_plan_memory(const shard_plan* plan,
                               const shard_placement* placement,
                               shard_memory* memory) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(memory);
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_memory", memory));
    SHARD_API_REQUIRE(plan);
    SHARD_ASSIGN_OR_RETURN(const Placement read,
                           ToPlacement(*plan->plan, placement));
    shard::CollectivesMemory collectives =
        shard::CollectivesMemoryOf(*plan->plan, read.transport);
    if (read.one_kernel) {
      collectives += shard::MeetingsMemory(plan->plan->options().world_size,
                                           read.transport);
    }
    shard::api::WriteMemory(
        plan->plan->Memory(read.shares_tensors,
                           read.offload ? &*read.offload : nullptr,
                           read.device == shard::DeviceId::Kind::kCpu
                               ? shard::Processor::kCpu
                               : shard::Processor::kGpu),
        collectives, read, memory);
    return Status();
  });
}

shard_error* shard_plan_text(const shard_plan* plan, char* buffer,
                             size_t capacity, size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    return shard::api::CopyText(plan->plan->ToText(), buffer, capacity, length);
  });
}

shard_error* shard_plan_json(const shard_plan* plan, char* buffer,
                             size_t capacity, size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    return shard::api::CopyText(plan->plan->ToJson(), buffer, capacity, length);
  });
}

shard_error* shard_plan_warnings(const shard_plan* plan,
                                 const char** warnings) noexcept {
  if (warnings != nullptr) *warnings = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(warnings);
    *warnings = plan->texts.Get(shard::api::TextKind::kWarnings, 0, [&] {
      std::string text;
      for (const std::string& warning : plan->plan->Warnings()) {
        shard::StrAppend(&text, warning, "\n");
      }
      return text;
    });
    return Status();
  });
}

void shard_plan_free(shard_plan* plan) noexcept { delete plan; }

}  // extern "C"
