// SPDX-License-Identifier: Apache-2.0
//
// The engine's changes at run time: another plan over the same parameters.

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/agreement.h"
#include "core/engine/engine.h"
#include "core/engine/state/log_warnings.h"
#include "core/engine/state/migrate.h"
#include "core/optim/groups.h"

namespace shard {

StatusOr<GroupId> Engine::AddParamGroup(std::string_view optimizer,
                                        const std::vector<ParamId>& params,
                                        double timeout) {
  auto model = std::make_shared<Model>(plan().model());
  std::vector<GroupOptions> groups = CurrentGroups();
  const auto change = [&]() -> Status {
    SHARD_RETURN_IF_ERROR(model->AddParamGroup(optimizer, params).status());
    for (const ParamId param : params) {
      SHARD_RETURN_IF_ERROR(PlaceOf(param).status());
      SHARD_RETURN_IF_ERROR(model->SetTrainable(param, true));
    }
    SHARD_ASSIGN_OR_RETURN(
        const Optimizer parsed,
        Optimizer::Parse(optimizer, &hypers_.optimizers().front()));
    groups.push_back(PlanGroup(parsed));
    return Status();
  };
  const Status changed = change().WithContext("add_param_group");
  SHARD_RETURN_IF_ERROR(
      Replan(changed, std::move(model), std::move(groups), timeout));
  return static_cast<GroupId>(plan().options().groups.size() - 1);
}

Status Engine::SetTrainable(const std::vector<ParamId>& params,
                            const StatusOr<bool>& trainable, double timeout) {
  auto model = std::make_shared<Model>(plan().model());
  const auto change = [&]() -> Status {
    SHARD_RETURN_IF_ERROR(trainable.status());
    if (params.empty()) return InvalidArgument("no parameters were given");
    for (const ParamId param : params) {
      SHARD_RETURN_IF_ERROR(PlaceOf(param).status());
      SHARD_RETURN_IF_ERROR(model->SetTrainable(param, *trainable));
    }
    return Status();
  };
  const Status changed = change().WithContext("set_trainable");
  return Replan(changed, std::move(model), CurrentGroups(), timeout);
}

std::vector<GroupOptions> Engine::CurrentGroups() const {
  std::vector<GroupOptions> groups;
  for (const Optimizer& optimizer : hypers_.optimizers()) {
    groups.push_back(PlanGroup(optimizer));
  }
  return groups;
}

Status Engine::Replan(const Status& changed, std::shared_ptr<Model> model,
                      std::vector<GroupOptions> groups, double timeout) {
  const Deadline deadline = DeadlineOf(timeout);
  std::shared_ptr<const Plan> next;
  const auto make = [&]() -> Status {
    SHARD_RETURN_IF_ERROR(CheckBetweenSteps("a change of the plan"));
    SHARD_RETURN_IF_ERROR(changed);
    PlanOptions options = plan().options();
    options.groups = std::move(groups);
    options.wrap = plan().UnitsAsPolicy();
    SHARD_ASSIGN_OR_RETURN(next, Plan::Create(std::move(model), options));
    return CheckSupported(*next, *comm_);
  };
  const Status local = make();
  SHARD_RETURN_IF_ERROR(
      assembly_->units().EnterChange(Activity::kReplan, local, deadline));
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm_.get(), "the changed plan", next->fingerprint(),
      [&](FactSink* sink) { next->Describe(sink); }, deadline));
  SHARD_ASSIGN_OR_RETURN(Hypers hypers, Hypers::Create(*next));
  std::string blas;
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(comm_.get(), "find a BLAS",
                    FindBlas(*next, hypers, device_.get(), &blas), deadline));
  SHARD_ASSIGN_OR_RETURN(auto assembly,
                         Assembly::Create(next, comm_.get(), device_.get(),
                                          assembly_options_, deadline));
  SHARD_RETURN_IF_ERROR(
      MigrateParams(*assembly_, *assembly, comm_.get(), deadline));
  SHARD_RETURN_IF_ERROR(FillMasters(*assembly, deadline));
  SHARD_RETURN_IF_ERROR(MigrateStates(*assembly_, *assembly, comm_.get(),
                                      device_.get(), deadline));
  const std::vector<std::string> warnings = NewWarnings(*next, &plan());
  BeginParamSteps(plan(), *next);
  hypers_ = std::move(hypers);
  assembly->units().ContinueFrom(assembly_->units());
  Adopt(std::move(assembly));
  comm_->logger().Log(LogLevel::kInfo, "rank ", comm_->rank(), ": ",
                      plan().Summary());
  // A change can make whole what was sharded.
  if (comm_->rank() == 0) LogWarnings(comm_->logger(), warnings);
  return Status();
}

void Engine::BeginParamSteps(const Plan& before, const Plan& after) {
  if (step_ == 0) return;
  const auto& was = before.model().params();
  const auto& is = after.model().params();
  for (size_t p = 0; p < is.size(); ++p) {
    const int32_t position = after.positions()[p];
    if (position < 0 || was[p].trainable || !is[p].trainable) continue;
    if (param_steps_.empty()) param_steps_.assign(after.NumStored(), step_);
    param_steps_[static_cast<size_t>(position)] = 0;
  }
}

}  // namespace shard
