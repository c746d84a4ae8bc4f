// SPDX-License-Identifier: Apache-2.0
//
// Replan: replaces the plan of an engine by another one over the same
// parameters, at run time. The values of parameters and states are moved
// (migrate.h); the memory of both plans is held meanwhile.

#ifndef SHARD_CORE_ENGINE_PARAMS_REPLAN_H_
#define SHARD_CORE_ENGINE_PARAMS_REPLAN_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/step/engine_runtime.h"
#include "core/engine/step/hypers.h"
#include "core/flat/plan.h"

namespace shard {

// A change of the plan. Each rank makes its own.
struct PlanChange {
  Status status;  // The error of the change on this rank.
  std::shared_ptr<Model> model;
  std::vector<GroupOptions> groups;
};

// Makes a param group of `optimizer` with `params`, which become trainable.
// `params` are frozen, or in the default group.
PlanChange NewParamGroup(const Plan& plan, const Hypers& hypers,
                         const StatusOr<std::string_view>& optimizer,
                         std::span<const ParamId> params);
// Freezes or unfreezes `params`.
PlanChange NewTrainable(const Plan& plan, const Hypers& hypers,
                        std::span<const ParamId> params,
                        const StatusOr<bool>& trainable);

struct Replanned {
  std::unique_ptr<EngineRuntime> runtime;
  Hypers hypers;
  std::vector<std::string> warnings;  // Those that the old plan did not have.
};

// Makes the runtime of the changed plan, with the values in `from`. COLLECTIVE.
// `known`: an error of the call on this rank alone, reported before
// change.status. After an error that is the same on all ranks, `from` remains
// usable.
StatusOr<Replanned> Replan(const EngineRuntime& from, const Status& known,
                           PlanChange change,
                           const EngineRuntime::Options& options,
                           Communicator* comm, Device* device,
                           const Deadline& deadline);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_PARAMS_REPLAN_H_
