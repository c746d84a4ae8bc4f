// SPDX-License-Identifier: Apache-2.0

#include "core/engine/params/replan.h"

#include <utility>

#include "core/base/host_array.h"
#include "core/engine/memory/param_place.h"
#include "core/engine/params/initial_params.h"
#include "core/engine/params/log_warnings.h"
#include "core/engine/params/migrate.h"
#include "core/engine/step/supported.h"
#include "core/optim/groups.h"

namespace shard {

namespace {

// Returns a change that leaves the plan as it is.
PlanChange UnchangedPlan(const Plan& plan, const Hypers& hypers) {
  PlanChange change;
  change.model = std::make_shared<Model>(plan.model());
  for (const Optimizer& optimizer : hypers.optimizers()) {
    change.groups.push_back(PlanGroup(optimizer));
  }
  return change;
}

Status SetTrainable(const Plan& plan, std::span<const ParamId> params,
                    bool trainable, Model* model) {
  SHARD_RETURN_IF_ERROR(
      CheckHostArray("params", params, model->params().size(), "parameters"));
  for (const ParamId param : params) {
    SHARD_RETURN_IF_ERROR(PlaceOf(plan, param).status());
    SHARD_RETURN_IF_ERROR(model->SetTrainable(param, trainable));
  }
  return Status();
}

}  // namespace

PlanChange NewParamGroup(const Plan& plan, const Hypers& hypers,
                         const StatusOr<std::string_view>& optimizer,
                         std::span<const ParamId> params) {
  PlanChange change = UnchangedPlan(plan, hypers);
  const auto make = [&]() -> Status {
    SHARD_RETURN_IF_ERROR(optimizer.status());
    SHARD_RETURN_IF_ERROR(
        change.model->AddParamGroup(*optimizer, params).status());
    SHARD_RETURN_IF_ERROR(SetTrainable(plan, params, true, change.model.get()));
    SHARD_ASSIGN_OR_RETURN(
        const Optimizer parsed,
        Optimizer::Parse(*optimizer, &hypers.optimizers().front()));
    change.groups.push_back(PlanGroup(parsed));
    return Status();
  };
  change.status = make().WithContext("add_param_group");
  return change;
}

PlanChange NewTrainable(const Plan& plan, const Hypers& hypers,
                        std::span<const ParamId> params,
                        const StatusOr<bool>& trainable) {
  PlanChange change = UnchangedPlan(plan, hypers);
  const auto make = [&]() -> Status {
    SHARD_RETURN_IF_ERROR(trainable.status());
    if (params.empty()) return InvalidArgument("no parameters were given");
    return SetTrainable(plan, params, *trainable, change.model.get());
  };
  change.status = make().WithContext("set_trainable");
  return change;
}

StatusOr<Replanned> Replan(const EngineRuntime& from, const Status& known,
                           PlanChange change,
                           const EngineRuntime::Options& options,
                           Communicator* comm, Device* device,
                           const Deadline& deadline) {
  const Plan& before = *from.plan();
  const ReplacedPlan replaced = {&before, from.reduce_memory()};
  const RankPlacement placement =
      PlacementOf(*comm, *device, options.transport, options.allow_missing,
                  options.one_kernel);
  std::shared_ptr<const Plan> next;
  const auto make = [&]() -> Status {
    SHARD_RETURN_IF_ERROR(known);
    SHARD_RETURN_IF_ERROR(change.status);
    PlanOptions changed = before.options();
    changed.groups = std::move(change.groups);
    changed.wrap = before.UnitsAsPolicy();
    SHARD_ASSIGN_OR_RETURN(next,
                           Plan::Create(std::move(change.model), changed));
    return CheckSupported(*next, *comm, placement, &replaced, deadline);
  };
  const Status local = make();
  Arguments arguments;
  if (local.ok()) {
    arguments = {"the changed plan", next->fingerprint(),
                 [&](FactSink* sink) { next->Describe(sink); }};
  }
  SHARD_RETURN_IF_ERROR(
      from.units().EnterChange(Activity::kReplan, local, arguments, deadline));
  SHARD_RETURN_IF_ERROR(
      CheckDeviceMemory(*next, comm, device, placement, &replaced, deadline));
  Replanned replanned;
  SHARD_ASSIGN_OR_RETURN(replanned.hypers, Hypers::Create(*next));
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(
      comm, "find a BLAS", FindBlas(*next, replanned.hypers, device).status(),
      deadline));
  SHARD_ASSIGN_OR_RETURN(
      replanned.runtime,
      EngineRuntime::Create(next, comm, device, options, &from, deadline));
  const EngineRuntime& to = *replanned.runtime;
  SHARD_RETURN_IF_ERROR(MigrateParams(from, to, comm, deadline));
  SHARD_RETURN_IF_ERROR(FillMasters(to, comm, deadline));
  SHARD_RETURN_IF_ERROR(MigrateStates(from, to, comm, device, deadline));
  to.units().ContinueFrom(from.units());
  replanned.warnings = NewWarnings(*next, &before);
  return replanned;
}

}  // namespace shard
