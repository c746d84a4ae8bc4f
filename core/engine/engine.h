// SPDX-License-Identifier: Apache-2.0
//
// Engine: sharded training on one rank. An engine owns the buffers that a plan
// describes, gives the host pointers into them, and runs the step. The class is
// a facade: each call checks the training state and is passed on to the part
// below that implements it.
//
// Training states: FILLING until BroadcastParams; then IDLE between steps,
// FORWARD_BACKWARD while units are in use or gradients are ready
// (core/engine/units/units.h), and SUMMON_FULL_PARAMS
// (core/engine/state/full_params.h). A call in the wrong state fails with the
// current state and the one that the call needs.
//
// An error after which the ranks are out of step is final: every later
// collective call returns it.
//
// Threads: one at a time. COLLECTIVE has the meaning of
// core/comm/communicator.h. Collective calls go through a communicator of the
// engine's own, so that the host may use its communicator in any order
// meanwhile.

#ifndef SHARD_CORE_ENGINE_ENGINE_H_
#define SHARD_CORE_ENGINE_ENGINE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/device/host_stream.h"
#include "core/engine/engine_options.h"
#include "core/engine/memory/bound_memory.h"
#include "core/engine/params/full_params_coordinator.h"
#include "core/engine/params/initial_params.h"
#include "core/engine/params/replan.h"
#include "core/engine/state/checkpoints.h"
#include "core/engine/state/training_state.h"
#include "core/engine/state/work_deadline.h"
#include "core/engine/step/counters.h"
#include "core/engine/step/engine_runtime.h"
#include "core/engine/step/hypers.h"
#include "core/engine/step/step_coordinator.h"
#include "core/engine/step/step_options.h"
#include "core/flat/plan.h"
#include "core/optim/loss_scaler.h"
#include "core/state/memory_store.h"

namespace shard {

class Engine {
 public:
  // Makes an engine. COLLECTIVE. Options that this rank could not read (`plan`
  // may then be null), or that are wrong, are an error on all ranks.
  static StatusOr<std::unique_ptr<Engine>> Create(
      std::shared_ptr<const Plan> plan,
      const std::shared_ptr<Communicator>& comm,
      const StatusOr<EngineOptions>& options = EngineOptions());

  // Waits for transfers in progress, at most for the engine's timeout, for the
  // meetings of a step that has returned early, at most for the step's timeout,
  // and for a background save, at most for the save's timeout.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  struct Tensor {
    void* data;
    int64_t numel;
  };

  // Returns the memory of a parameter or of its gradient. Errors: an id that
  // does not exist, an ignored parameter, a sharded parameter that is not
  // acquired; for Grad also a frozen parameter.
  StatusOr<Tensor> Param(ParamId param) const;
  StatusOr<Tensor> Grad(ParamId param) const;
  // Returns the same as Param where the host may write: on rank 0 while
  // FILLING, and the copies of Summon. kFailedPrecondition elsewhere.
  StatusOr<Tensor> WritableParam(ParamId param) const;

  // Returns this rank's copy of a host tensor, in the host's memory: a buffer
  // of shard_model_add_buffer. The pointer stays valid until the engine is
  // destroyed. Errors: an id that does not exist; an ignored one.
  StatusOr<Tensor> HostTensor(HostTensorId id) const;
  // Replaces every rank's host tensors by those of rank `root`. COLLECTIVE,
  // between steps or while FILLING.
  Status BroadcastHostTensors(int root, double timeout);

  // Binds memory of the host to a parameter, in place of what was bound before;
  // spans of null unbind. `values` receives the parameter whenever it has
  // changed; `grad` takes the place of the gradient that Grad returns. Local;
  // between steps and while FILLING; not in stage 3. See
  // core/engine/memory/bound_copies.h.
  Status Bind(ParamId param, const BoundMemory::Tensors& tensors);

  // Fills the gradients with zeros; discards accumulated gradients and their
  // ready declarations.
  Status ZeroGrad();

  // Acquire and release units and declare gradients ready: see
  // core/engine/units/units.h. `timeout` 0: the engine's, here and below.
  Status UnitAcquire(int32_t unit, Pass pass, double timeout);
  Status UnitRelease(int32_t unit);
  Status MarkUnitGradsReady(int32_t unit);
  Status MarkParamGradReady(ParamId param);
  Status SetAccumulate(bool accumulate);

  // Sets a hyperparameter. Local. The new value holds from the next step on,
  // which must not have begun. See Hypers::Set.
  Status SetHyper(GroupId group, std::string_view key, double value);
  const Hypers& hypers() const { return hypers_; }

  // Return the factor by which the host multiplies its loss in the next step,
  // and the number of steps since that factor changed or a step was skipped
  // (core/optim/loss_scaler.h).
  double loss_scale() const { return counters().loss_scaler().scale(); }
  int64_t growth_tracker() const {
    return counters().loss_scaler().state().good_steps;
  }

  // Sets a parameter's first values. Rank 0 stores them; other ranks check
  // their arguments.
  Status SetParam(ParamId param, const void* data, size_t bytes);

  // Sends rank 0's parameters to all ranks. COLLECTIVE. FILLING → IDLE.
  Status BroadcastParams(double timeout);

  // Sets an optimizer state, to continue a run of another program. Local; every
  // rank does the same. kFailedPrecondition while FILLING. See import_state.h.
  Status SetState(ParamId param, std::string_view name, const float* values,
                  size_t count);
  // Returns the number of completed steps, skipped ones left out.
  int64_t step() const { return counters().step(); }
  // Sets the number of completed steps: 0 to 2^32 - 2.
  Status SetStep(int64_t step);
  // Sets the state of the loss scaler.
  Status SetLossScale(const LossScaler::State& state);

  // Updates the parameters from the gradients of all ranks. COLLECTIVE. Options
  // that this rank could not read, or that are out of range, are an error on
  // all ranks. `report`: null where nobody asks for it; after SetStream the
  // step then returns once it is enqueued.
  Status Step(const StatusOr<StepOptions>& options, StepReport* report);

  // Announces the options of a step before its backward pass, so that each unit
  // is updated and published as soon as its gradients are ready on all ranks,
  // while the host goes on. COLLECTIVE, optional. Step then takes default
  // options, or the announced ones. Not allowed with options that need all
  // gradients first: a norm, skip_nonfinite, dynamic loss scaling, missing
  // gradients.
  Status BeginStep(const StatusOr<StepOptions>& options);

  // Returns where the tensors lie. Local.
  DeviceId device() const { return device_->id(); }
  // Returns where those of one role lie: buffers of the model, and optimizer
  // states that are offloaded, are in the host's memory. Local.
  DeviceId DeviceOf(TensorRole role) const;

  // Between CaptureBegin and CaptureEnd, zero_grad and step are enqueued on the
  // host's stream, which the host captures as a graph, and do not run.
  // BeforeReplay gives the captured step the values of the next one; the host
  // then launches the graph on its stream. CaptureEnd returns the errors of all
  // that was enqueued. CaptureBegin is local; BeforeReplay is COLLECTIVE, and
  // so is CaptureEnd after a step.
  Status CaptureBegin();
  Status CaptureEnd();
  Status BeforeReplay(const StatusOr<StepOptions>& options);

  // Sets the stream on which the host enqueues its own work: `native` as in
  // Device::WrapStream, which must outlive the engine or the next SetStream.
  // The new stream's work comes after that of the old one. Local, between steps
  // and while FILLING. An error leaves the old stream in place.
  Status SetStream(void* native);
  // Waits until all that the engine was given has run, and returns the first
  // error, which is final. A deadline that passes is not: the work goes on.
  // Local.
  Status Synchronize(double timeout);
  // Waits for the last step alone, at most for the engine's timeout: what
  // step(), loss_scale() and growth_tracker() then return is exact. Returns the
  // step's error, which is final. Local.
  Status AwaitStep() const { return steps_.AwaitLaunches(DeadlineOf(0)); }
  // Returns the report of the last step, for which it waits.
  // kFailedPrecondition before the first one. Local.
  StatusOr<StepReport> LastReport() const;

  // Takes part in the steps of other ranks, with gradients that are zero, until
  // all ranks have joined: for a rank that is out of input. COLLECTIVE.
  // `steps`: set to the number of those steps.
  Status Join(double timeout, int64_t* steps);

  // Makes whole copies of the parameters in `module`, on all ranks or on one,
  // which Param returns from then on; see core/engine/state/full_params.h.
  // COLLECTIVE. Only Param and EndSummon are allowed until EndSummon.
  Status Summon(ModuleId module, int rank, double timeout);
  // Frees the copies; with `write_back` they become the parameters first.
  // COLLECTIVE. A `write_back` that this rank could not read is an error on all
  // ranks.
  Status EndSummon(const StatusOr<bool>& write_back, double timeout);

  // Replace the plan by another one over the same parameters. COLLECTIVE.
  // Pointers from Param and Grad are no longer valid, and gradients are zero.
  // States of parameters that stay trainable are kept
  // (core/engine/state/migrate.h); frozen parameters lose their states, and
  // count their steps from 0 once they are trained again. The memory of both
  // plans is held meanwhile. After an error that is the same on all ranks,
  // everything is as before.
  //
  // Makes a param group. `params` are frozen, or in the default group; they
  // become trainable. More `params` than the model has are an error on all
  // ranks, here and below.
  StatusOr<GroupId> AddParamGroup(const StatusOr<std::string_view>& optimizer,
                                  std::span<const ParamId> params,
                                  double timeout);
  Status SetTrainable(std::span<const ParamId> params,
                      const StatusOr<bool>& trainable, double timeout);

  // Save and load checkpoints; see core/engine/state/checkpoints.h. COLLECTIVE,
  // between steps. Options that this rank could not read, or that are wrong,
  // are an error on all ranks. So is the error of an earlier asynchronous save,
  // once.
  //
  // Saves into `root`, in a folder named by the step. Returns null when the
  // save is done; otherwise the save goes on in the background, and training
  // may go on at once.
  StatusOr<std::shared_ptr<AsyncSave>> Save(
      const std::string& root, const StatusOr<SaveOptions>& options);
  // Loads a checkpoint, or the latest one of a root; also in state FILLING, in
  // place of SetParam and BroadcastParams. After an error while tensors were
  // read, parameters have no values, and the state is FILLING.
  Status Load(const std::string& path, const StatusOr<LoadOptions>& options,
              LoadReport* report);
  Checkpoints& checkpoints() { return checkpoints_; }
  const Checkpoints& checkpoints() const { return checkpoints_; }

  // State dicts: see core/state/memory_store.h.
  //
  // Adds the elements that this rank owns, and the training numbers, to
  // `store`. Local. The store's parts are the engine's memory.
  Status AddLocalState(const StateOptions& options, MemoryStore* store);
  // Gathers whole tensors; see core/engine/state/gather_state.h. COLLECTIVE.
  // Options that this rank could not read are an error on all ranks.
  Status GatherState(const StatusOr<StateOptions>& options, int rank,
                     double timeout, const TrainingState::EntrySink& sink);
  // Loads a state dict. COLLECTIVE. `store` may be null on ranks other than 0
  // with from_rank0, and where options are an error; otherwise all ranks have
  // the same tensors.
  Status LoadState(const MemoryStore* store,
                   const StatusOr<LoadOptions>& options, LoadReport* report);

  const Plan& plan() const { return *runtime_->plan(); }
  const std::shared_ptr<const Plan>& shared_plan() const {
    return runtime_->plan();
  }
  // Returns the host's communicator.
  Communicator* comm() const { return host_comm_.get(); }
  // Returns whether the ranks read and write each other's tensors where they
  // lie: the communicator has shared memory, and the device reaches it.
  bool SharesTensors() const { return comm_->direct(); }
  // Return whether the ranks of a host have one copy of the parameters, and of
  // the slots into which parameters are gathered.
  bool SharesParams() const { return runtime_->memory().shares_params(); }
  bool SharesSlots() const { return runtime_->memory().shares_slots(); }
  // Describes the engine as JSON (shard_engine_json). Local.
  std::string ToJson() const;
  // Returns how optimizer states are offloaded to the host; null: not.
  const Offload* offload() const { return device_->offload(); }
  // Returns the stream of the host's own work, in whose order the engine's
  // calls take place.
  Stream& host_stream() const { return *host_.get(); }
  // Returns the engine's memory, for callers that read or measure all of it.
  const EngineMemory& memory() const { return runtime_->memory(); }
  MemoryReport Memory() const {
    MemoryReport report = memory().Measure();
    report.transient_bytes += runtime_->transfers().memory_bytes();
    return report;
  }
  CollectivesMemory collectives_memory() const {
    CollectivesMemory memory = runtime_->collectives().memory();
    const PeerStep* const peers = runtime_->peers();
    if (peers != nullptr) memory += peers->memory();
    return memory;
  }

 private:
  static StatusOr<std::unique_ptr<Engine>> Make(
      std::shared_ptr<const Plan> plan, std::shared_ptr<Communicator> comm,
      const StatusOr<EngineOptions>& options);

  Engine(std::shared_ptr<Communicator> host_comm,
         std::shared_ptr<Communicator> comm, std::shared_ptr<Device> device,
         std::shared_ptr<Stream> host_stream, Hypers hypers,
         const EngineOptions& options, const DeviceChoice& choice,
         double timeout);

  // Returns the counters, the last step counted.
  Counters& counters() const { return steps_.counters(DeadlineOf(0)); }
  double SecondsOf(double timeout) const {
    return timeout > 0 ? timeout : timeout_;
  }
  Deadline DeadlineOf(double timeout) const {
    return Deadline::After(SecondsOf(timeout));
  }
  WorkDeadline WorkDeadlineOf(double timeout) const {
    return WorkDeadline(SecondsOf(timeout), timeout_);
  }
  // Returns an error between CaptureBegin and CaptureEnd.
  Status CheckOutsideCapture(std::string_view what) const;
  // The same, and while the host captures its stream as a graph. Checked
  // before anything is enqueued, so that the call can be made again.
  Status CheckNotCaptured(std::string_view what) const;
  // Returns the error of CheckNotCaptured, but for a call that may be part of a
  // capture of the engine's: one where that capture has ended.
  Status CheckEnqueues(std::string_view what) const;
  // Returns OK outside FILLING and SUMMON_FULL_PARAMS; CheckTraining also
  // checks for captures.
  Status CheckHasParams(std::string_view what) const;
  Status CheckTraining(std::string_view what) const;
  // Returns OK in training state IDLE.
  Status CheckBetweenSteps(std::string_view what) const;
  // Returns OK in IDLE and in FILLING.
  Status CheckIdleOrFilling(std::string_view what) const;
  // Returns `idle`, the result of one of these, or the error of the last step,
  // for which it waits: the counters are then exact.
  Status Counted(const Status& idle) const {
    return idle.ok() ? AwaitStep() : idle;
  }
  // Returns why the parameters and states of a step cannot be given away now.
  Status CheckGiven(std::string_view what) const;
  // Ends a load as Refreshed.
  Status Loaded(const Status& done, double timeout);
  // Copies the parameters, which the collective operation `done` has changed,
  // to the memory that is bound to them. Returns the error of the operation, or
  // that of the copies, which is final.
  Status Refreshed(const Status& done, double timeout) const;
  void SetRuntime(std::unique_ptr<EngineRuntime> runtime);
  // Replaces the plan by the changed one. COLLECTIVE.
  Status ChangePlan(PlanChange change, double timeout);
  Status DoChangePlan(PlanChange change, double timeout);
  TrainingState State();

  const std::shared_ptr<Communicator> host_comm_;
  const std::shared_ptr<Communicator> comm_;
  const std::shared_ptr<Device> device_;
  HostStream host_;
  const double timeout_;
  const pid_t owner_;
  BoundMemory bound_;
  const EngineRuntime::Options runtime_options_;
  Hypers hypers_;
  Counters counters_;
  InitialParams initial_params_;
  StepCoordinator steps_;
  std::unique_ptr<EngineRuntime> runtime_;
  FullParamsCoordinator full_params_;
  Checkpoints checkpoints_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_ENGINE_H_
