// SPDX-License-Identifier: Apache-2.0
//
// Engine: sharded training on one rank. It owns the buffers a plan describes,
// gives the host pointers into them, and runs the step.
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
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/state/checkpoints.h"
#include "core/engine/state/summon.h"
#include "core/engine/state/work_deadline.h"
#include "core/engine/step/assembly.h"
#include "core/engine/step/hypers.h"
#include "core/engine/step/step_options.h"
#include "core/flat/plan.h"
#include "core/optim/loss_scaler.h"
#include "core/state/memory_store.h"

namespace shard {

// What becomes of parameters that got no gradient since the last step. The
// values are those of shard_missing_grads in shard.h.
enum class MissingGrads : int32_t {
  kError = 0,
  kZero = 1,  // Their gradients are zeros.
  // Those that got none on any rank are as before the step, states and step
  // count too. Others are zeros on the ranks that have none.
  kSkip = 2,
};

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

  // Beyond, the random bits of rounding would repeat: no step is taken there.
  static constexpr int64_t kMostSteps =
      std::numeric_limits<uint32_t>::max() - int64_t{1};

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
  double loss_scale() const { return loss_scaler_.scale(); }
  int64_t growth_tracker() const { return loss_scaler_.state().good_steps; }

  // Rank 0 stores; other ranks check their arguments.
  Status SetParam(ParamId param, const void* data, size_t bytes);

  // COLLECTIVE. FILLING → IDLE.
  Status BroadcastParams(double timeout);

  // For a run that began in another program. Local; every rank does the same.
  // REQUIRES: not FILLING, which is an error otherwise. See import_state.h.
  Status SetState(ParamId param, std::string_view name, const float* values,
                  size_t count);
  // Completed steps, without those that were skipped.
  int64_t step() const { return step_; }
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
                     double timeout,
                     const std::function<Status(const StateEntry& entry,
                                                const std::byte* data)>& sink);
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
  // Leaves `name` empty when nothing that is stepped needs a BLAS.
  static Status FindBlas(const Plan& plan, const Hypers& hypers, Device* device,
                         std::string* name);
  // What this build can step; the plan itself covers more.
  static Status CheckSupported(const Plan& plan, const Communicator& comm);

  Engine(std::shared_ptr<Communicator> host_comm,
         std::shared_ptr<Communicator> comm, std::shared_ptr<Device> device,
         Hypers hypers, const EngineOptions& options, double timeout);

  std::vector<GroupOptions> CurrentGroups() const;
  // COLLECTIVE. `changed`: what was wrong with making model and groups.
  Status Replan(const Status& changed, std::shared_ptr<Model> model,
                std::vector<GroupOptions> groups, double timeout);
  // Parameters that become trainable count their steps from 0.
  void BeginParamSteps(const Plan& before, const Plan& after);

  Deadline DeadlineOf(double timeout) const;
  WorkDeadline WorkDeadlineOf(double timeout) const;
  StatusOr<const ParamPlace*> PlaceOf(ParamId param) const;
  // `without`: what frozen parameters have not.
  StatusOr<const ParamPlace*> TrainablePlaceOf(ParamId param,
                                               std::string_view without) const;
  int64_t NumelOf(ParamId param) const;
  void Adopt(std::unique_ptr<Assembly> assembly);
  Status ZeroWholeGrads(const Deadline& deadline);
  Status CheckTraining(std::string_view what) const;
  // Outside begin_step and its step, while some units are updated and others
  // are not.
  Status CheckNotBegun(std::string_view what) const;
  // In training state IDLE.
  Status CheckBetweenSteps(std::string_view what) const;
  StepSetting Setting() const;
  // COLLECTIVE, after a meeting in which `leader` steps.
  Status RunStep(const StepOptions& options, int32_t leader,
                 const Deadline& deadline, StepReport* report);
  Status RunBeginStep(const StepOptions& options, int32_t leader,
                      const Deadline& deadline);
  // COLLECTIVE. Agrees on what is stepped with.
  StatusOr<StepInput> PrepareStep(const StepOptions& options, int32_t leader,
                                  const Deadline& deadline, int32_t* active);
  Status CheckBeginStep(const StepOptions& options) const;
  // Whether another step can be counted.
  Status CheckStepCount() const;
  // COLLECTIVE. Of the meeting to step, or to begin one, which `leader` leads.
  Status AgreeOnEntries(int32_t leader, const Deadline& deadline);
  // COLLECTIVE. Ranks that joined take the leader's values.
  Status AgreeOnHypers(int32_t leader, const Deadline& deadline);
  // COLLECTIVE. Which parameters do a step, and which one, for UpdateInput.
  Status ChooseParamSteps(const Deadline& deadline);
  void CountParamSteps();
  // Widens this rank's part of the parameters into its master weights.
  Status FillMasters(const Assembly& assembly, const Deadline& deadline);
  TrainingNumbers Numbers() const;
  Status CheckLoadWhileFilling(const StateOptions& options) const;
  // COLLECTIVE. Until ranks agree that, and how, something is loaded.
  Status EnterLoad(const StatusOr<LoadOptions>& options,
                   const WorkDeadline& deadline);
  // COLLECTIVE. Tensors. Where they came from, by entry.
  StatusOr<std::vector<EntryMatch>> LoadFrom(
      const TensorStore& store, const std::vector<StateEntry>& entries,
      const LoadOptions& options, const WorkDeadline& deadline,
      MatchReport* report);
  // That what is matched is all here; local.
  Status CheckElements(const TensorStore& store,
                       const std::vector<StateEntry>& entries,
                       const std::vector<EntryMatch>& matches,
                       const LoadOptions& options) const;
  // Optimizer states and step counts as in a new engine.
  void ResetStates(const Deadline& deadline);
  // No list of them where it would say the same of all.
  void CollapseParamSteps();
  // By MemoryStore's keys.
  std::map<std::string, double> NumbersByKey(
      const std::vector<StateEntry>& entries, bool whole) const;
  // What a state dict tells of parameters that entries are of.
  struct KeyedNumbers {
    struct Hyper {
      GroupId group;
      std::string key;
      double value;
    };
    size_t stepped = 0;  // Parameters that could be told of.
    std::map<ParamId, int64_t> steps;
    std::vector<Hyper> hypers;
    LossScaler::State loss_scale;
  };
  StatusOr<KeyedNumbers> ReadNumbersByKey(
      const std::vector<StateEntry>& entries, const MemoryStore& store,
      const LoadOptions& options) const;
  void TakeNumbersByKey(const KeyedNumbers& numbers, bool whole);
  // Warns, and changes nothing, when the engine's scaler could not be there.
  void RestoreLossScale(const LossScaler::State& scale);
  // What a checkpoint has of the numbers that the engine counts.
  void TakeNumbers(const StateOptions& options,
                   const std::vector<StateEntry>& entries,
                   const std::vector<EntryMatch>& matches,
                   const Manifest& manifest);
  // Which step each parameter has done, and the hyperparameters of the groups.
  void TakeParamNumbers(const std::vector<StateEntry>& entries,
                        const std::vector<EntryMatch>& matches,
                        const Manifest& manifest);
  // COLLECTIVE. Rank 0's filling to everyone that holds a part.
  Status SpreadParams(const Deadline& deadline);

  const std::shared_ptr<Communicator> host_comm_;
  const std::shared_ptr<Communicator> comm_;
  const std::shared_ptr<Device> device_;
  Hypers hypers_;
  LossScaler loss_scaler_;
  const MissingGrads missing_grads_;
  const double timeout_;
  const pid_t owner_;
  const Assembly::Options assembly_options_;
  double trainable_numel_ = 0;
  bool filling_ = true;
  // Rank 0 while filling, where it does not hold all parameters: by buffer.
  std::vector<DeviceMemory> filled_;
  int64_t step_ = 0;
  // By Plan::positions(): steps each parameter has done; empty while that is
  // step_ for all, as it is until some are skipped, frozen or added.
  std::vector<int64_t> param_steps_;
  // The same of the step in progress, as in UpdateInput.
  std::vector<int64_t> next_steps_;
  // What BeginStep was given, until that step is done.
  std::optional<StepOptions> begun_;
  StepInput begun_input_ = {};
  int32_t begun_active_ = 0;
  std::unique_ptr<Assembly> assembly_;
  std::unique_ptr<Summoned> summoned_;
  Checkpoints checkpoints_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_ENGINE_H_
