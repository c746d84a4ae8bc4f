// SPDX-License-Identifier: Apache-2.0

#include "core/engine/params/full_params_coordinator.h"

#include <utility>

#include "core/engine/params/module_text.h"

namespace shard {

StatusOr<void*> FullParamsCoordinator::Param(ParamId param) const {
  void* const copy = summoned_->Param(param);
  if (copy != nullptr) return copy;
  return FailedPrecondition("parameter ", param, " was summoned to rank ",
                            summoned_->rank(), ", this is rank ",
                            comm_->rank());
}

Status FullParamsCoordinator::Summon(const EngineRuntime& runtime,
                                     ModuleId module, int rank,
                                     const Status& known,
                                     const Deadline& deadline) {
  const Model& model = runtime.plan()->model();
  Status local = known;
  const auto modules = static_cast<ModuleId>(model.modules().size());
  if (local.ok() && (module < 0 || module >= modules)) {
    local = InvalidArgument("module ", module,
                            " does not exist; the model has ", modules);
  }
  if (local.ok()) local = CheckRankOrAll(rank, comm_->world_size());
  Arguments arguments;
  if (local.ok()) {
    arguments = {"the arguments of summon", [&](FactSink* sink) {
                   sink->Add("", "module", ModuleText(model, module));
                   sink->Add("", "rank", rank);
                 }};
  }
  SHARD_RETURN_IF_ERROR(runtime.units().EnterChange(Activity::kSummon, local,
                                                    arguments, deadline));
  SHARD_ASSIGN_OR_RETURN(summoned_, FullParams::Create(runtime, comm_, device_,
                                                       module, rank, deadline));
  return Status();
}

Status FullParamsCoordinator::End(const EngineRuntime& runtime,
                                  const StatusOr<bool>& write_back,
                                  const Status& known,
                                  const Deadline& deadline) {
  Status local = write_back.status();
  if (local.ok()) local = known;
  Arguments arguments;
  if (local.ok()) {
    arguments = {"the arguments of summon_end", [&](FactSink* sink) {
                   sink->Add("", "write_back", *write_back);
                 }};
  }
  SHARD_RETURN_IF_ERROR(runtime.units().EnterChange(Activity::kSummon, local,
                                                    arguments, deadline));
  // The copies are freed on every path from here on; the host's pointers end
  // here.
  const std::unique_ptr<FullParams> summoned = std::move(summoned_);
  if (!*write_back) return Status();
  return summoned->WriteBack(runtime, comm_, device_, deadline);
}

}  // namespace shard
