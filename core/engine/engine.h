// SPDX-License-Identifier: Apache-2.0
//
// Engine: sharded training on one rank. It owns the buffers a plan describes,
// gives the host pointers into them, and runs the step. It is a facade: it
// checks in which state training is, and hands each call to the part below that
// does it.
//
// Training states: FILLING until BroadcastParams; then IDLE between steps,
// FORWARD_BACKWARD while units are in use or gradients are ready
// (core/engine/units/units.h), and SUMMON_FULL_PARAMS
// (core/engine/state/summon.h). A call in the wrong one fails with the state it
// found and the one it needs.
//
// An error after which ranks have got out of step is final: every later
// collective call returns it.
//
// Threads: one at a time. COLLECTIVE calls as in core/comm/communicator.h; they
// go through a communicator of the engine's own, so that the host may use its
// own in any order beside them.

#ifndef SHARD_CORE_ENGINE_ENGINE_H_
#define SHARD_CORE_ENGINE_ENGINE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/state/checkpoints.h"
#include "core/engine/state/full_params.h"
#include "core/engine/state/initial_params.h"
#include "core/engine/state/replan.h"
#include "core/engine/state/training_state.h"
#include "core/engine/state/work_deadline.h"
#include "core/engine/step/assembly.h"
#include "core/engine/step/counters.h"
#include "core/engine/step/hypers.h"
#include "core/engine/step/step_coordinator.h"
#include "core/engine/step/step_options.h"
#include "core/flat/plan.h"
#include "core/optim/loss_scaler.h"
#include "core/state/memory_store.h"

namespace shard {

struct EngineOptions {
  double timeout = 0;  // Seconds; 0: the communicator's.
  LossScaler loss_scaler;
  MissingGrads missing_grads = MissingGrads::kError;
  // Without shared memory: a step returns while parameters are still on their
  // way; the host acquires each unit before it reads them.
  bool overlap = false;
  std::string device;  // OpenDevice.
};

class Engine {
 public:
  // COLLECTIVE. Options that this rank could not read (`plan` may then be
  // null), or that are wrong, are an error on all ranks.
  static StatusOr<std::unique_ptr<Engine>> Create(
      std::shared_ptr<const Plan> plan, std::shared_ptr<Communicator> comm,
      const StatusOr<EngineOptions>& options = EngineOptions());

  // Waits for what is on its way, at most for the engine's timeout, and for a
  // save, at most for the save's.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  struct Tensor {
    void* data;
    int64_t numel;
  };

  // Errors: an id that does not exist, an ignored parameter, one that is
  // sharded and not acquired; for Grad also a frozen one.
  StatusOr<Tensor> Param(ParamId param) const;
  StatusOr<Tensor> Grad(ParamId param) const;
  // The same as Param, where the host may write: rank 0's while FILLING, and
  // copies that were summoned. kFailedPrecondition elsewhere.
  StatusOr<Tensor> WritableParam(ParamId param) const;

  // Also throws away what was accumulated and declared ready.
  Status ZeroGrad();

  // See core/engine/units/units.h. `timeout` 0: the engine's, here and below.
  Status UnitAcquire(int32_t unit, Pass pass, double timeout);
  Status UnitRelease(int32_t unit);
  Status UnitGradsReady(int32_t unit);
  Status ParamGradReady(ParamId param);
  Status SetNoSync(bool on);

  // Local. A new value holds from the next step on, which may not have begun.
  // See Hypers::Set.
  Status SetHyper(GroupId group, std::string_view key, double value);
  const Hypers& hypers() const { return hypers_; }

  // What the host is to multiply its loss by in the next step, and the steps
  // since that changed or one was skipped (core/optim/loss_scaler.h).
  double loss_scale() const { return counters_.loss_scaler().scale(); }
  int64_t growth_tracker() const {
    return counters_.loss_scaler().state().good_steps;
  }

  // Rank 0 stores; other ranks check their arguments.
  Status SetParam(ParamId param, const void* data, size_t bytes);

  // COLLECTIVE. FILLING → IDLE.
  Status BroadcastParams(double timeout);

  // For a run that began in another program. Local; every rank does the same.
  // REQUIRES: not FILLING, which is an error otherwise. See import_state.h.
  Status SetState(ParamId param, std::string_view name, const float* values,
                  size_t count);
  // Completed steps, without those that were skipped.
  int64_t step() const { return counters_.step(); }
  // As if this many steps had been done: 0 to 2^32 - 2.
  Status SetStep(int64_t step);
  // As if the loss scaler had got there.
  Status SetLossScale(const LossScaler::State& state);

  // COLLECTIVE. Options that this rank could not read, or that are out of
  // range, are an error on all ranks.
  Status Step(const StatusOr<StepOptions>& options, StepReport* report);

  // COLLECTIVE. Optional, before the backward pass of a step: says what that
  // step will be, so that each unit is updated and published as soon as its
  // gradients are ready on all ranks, while the host goes on. Step then takes
  // default options, or these. Not with what needs all gradients first: a norm,
  // skip_nonfinite, dynamic loss scaling, missing gradients.
  Status BeginStep(const StatusOr<StepOptions>& options);

  // COLLECTIVE. For a rank that is out of input: does its part of the others'
  // steps, with gradients that are zero, until all ranks have joined. `steps`:
  // how many those were.
  Status Join(double timeout, int64_t* steps);

  // COLLECTIVE. From here on Param gives whole copies of the parameters in
  // `module`, on all ranks or on one; see core/engine/state/summon.h. Only
  // Param and EndSummon are allowed until then.
  Status Summon(ModuleId module, int rank, double timeout);
  // COLLECTIVE. With `write_back` the copies become the parameters. One that
  // this rank could not read is an error on all ranks.
  Status EndSummon(const StatusOr<bool>& write_back, double timeout);

  // COLLECTIVE, both. Another plan over the same parameters takes the place of
  // the old one: pointers from Param and Grad are no longer valid, gradients
  // are zero. States of parameters that stay trainable are kept
  // (core/engine/state/migrate.h); frozen ones lose theirs, and count their
  // steps from 0 once they are trained again. Both plans' memory is held
  // meanwhile. On an error that is the same on all ranks, everything is as
  // before.
  //
  // `params` are frozen, or in the default group; they become trainable.
  StatusOr<GroupId> AddParamGroup(std::string_view optimizer,
                                  const std::vector<ParamId>& params,
                                  double timeout);
  Status SetTrainable(const std::vector<ParamId>& params,
                      const StatusOr<bool>& trainable, double timeout);

  // COLLECTIVE, both, between steps; see core/engine/state/checkpoints.h.
  // Options that this rank could not read, or that are wrong, are an error on
  // all ranks. So is an error of an asynchronous save before, once.
  //
  // Into `root`, named by the step. Null: it is done; else it goes on in the
  // background, and training may go on at once.
  StatusOr<std::shared_ptr<AsyncSave>> Save(
      const std::string& root, const StatusOr<SaveOptions>& options);
  // From a checkpoint or a root of some; also in state FILLING, in place of
  // SetParam and BroadcastParams. After an error while tensors were read,
  // parameters have no values, and the state is FILLING.
  Status Load(const std::string& path, const StatusOr<LoadOptions>& options,
              LoadReport* report);
  Checkpoints& checkpoints() { return checkpoints_; }

  // State dicts: see core/state/memory_store.h.
  //
  // Local: adds what this rank owns, and the numbers. The store's parts are the
  // engine's memory.
  Status AddLocalState(const StateOptions& options, MemoryStore* store);
  // COLLECTIVE: see core/engine/state/gather_state.h. Options that this rank
  // could not read are an error on all ranks.
  Status GatherState(const StatusOr<StateOptions>& options, int rank,
                     double timeout, const TrainingState::EntrySink& sink);
  // COLLECTIVE. `store` may be null on other ranks than 0 with from_rank0, and
  // where options are an error; else all ranks have the same tensors.
  Status LoadState(const MemoryStore* store,
                   const StatusOr<LoadOptions>& options, LoadReport* report);

  const Checkpoints& checkpoints() const { return checkpoints_; }

  const Plan& plan() const { return *assembly_->plan(); }
  const std::shared_ptr<const Plan>& shared_plan() const {
    return assembly_->plan();
  }
  // The host's.
  Communicator* comm() const { return host_comm_.get(); }
  // The memory itself, for what reads or measures it whole.
  const EngineMemory& memory() const { return assembly_->memory(); }
  MemoryReport Memory() const { return memory().Measure(); }

 private:
  Engine(std::shared_ptr<Communicator> host_comm,
         std::shared_ptr<Communicator> comm, std::shared_ptr<Device> device,
         Hypers hypers, const EngineOptions& options, double timeout);

  double SecondsOf(double timeout) const {
    return timeout > 0 ? timeout : timeout_;
  }
  Deadline DeadlineOf(double timeout) const {
    return Deadline::After(SecondsOf(timeout));
  }
  WorkDeadline WorkDeadlineOf(double timeout) const {
    return WorkDeadline(SecondsOf(timeout), timeout_);
  }
  // OK outside FILLING and SUMMON_FULL_PARAMS.
  Status CheckTraining(std::string_view what) const;
  // OK in training state IDLE.
  Status CheckBetweenSteps(std::string_view what) const;
  // OK in IDLE and in FILLING.
  Status CheckCanLoad() const;
  void Adopt(std::unique_ptr<Assembly> assembly);
  // COLLECTIVE. Goes on with the changed plan.
  Status ChangePlan(PlanChange change, double timeout);
  TrainingState State();

  const std::shared_ptr<Communicator> host_comm_;
  const std::shared_ptr<Communicator> comm_;
  const std::shared_ptr<Device> device_;
  const double timeout_;
  const pid_t owner_;
  const Assembly::Options assembly_options_;
  Hypers hypers_;
  Counters counters_;
  InitialParams initial_params_;
  StepCoordinator steps_;
  std::unique_ptr<Assembly> assembly_;
  FullParams full_params_;
  Checkpoints checkpoints_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_ENGINE_H_
