// SPDX-License-Identifier: Apache-2.0
//
// Replan: another plan over the same parameters takes the place of an engine's
// at run time. What the parameters and states are is moved (migrate.h); the
// memory of both plans is held meanwhile.

#ifndef SHARD_CORE_ENGINE_STATE_REPLAN_H_
#define SHARD_CORE_ENGINE_STATE_REPLAN_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/step/assembly.h"
#include "core/engine/step/hypers.h"
#include "core/flat/plan.h"

namespace shard {

// What is to change in the plan. Made by each rank for itself.
struct PlanChange {
  Status status;  // What was wrong with it on this rank.
  std::shared_ptr<Model> model;
  std::vector<GroupOptions> groups;
};

// Makes a param group of `optimizer` with `params`, which become trainable.
// They are frozen, or in the default group.
PlanChange NewParamGroup(const Plan& plan, const Hypers& hypers,
                         std::string_view optimizer,
                         const std::vector<ParamId>& params);
// Freezes or unfreezes `params`.
PlanChange NewTrainable(const Plan& plan, const Hypers& hypers,
                        const std::vector<ParamId>& params,
                        const StatusOr<bool>& trainable);

struct Replanned {
  std::unique_ptr<Assembly> assembly;
  Hypers hypers;
  std::vector<std::string> warnings;  // That the old plan did not have.
};

// COLLECTIVE. Makes the engine of the changed plan, with what is in `from`.
// `known`: what is wrong with the call on this rank alone, told before
// change.status. On an error that is the same on all ranks, `from` goes on.
StatusOr<Replanned> Replan(const Assembly& from, const Status& known,
                           PlanChange change, const Assembly::Options& options,
                           Communicator* comm, Device* device,
                           const Deadline& deadline);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_REPLAN_H_
