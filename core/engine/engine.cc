// SPDX-License-Identifier: Apache-2.0
//
// Longer than other files: the facade, whose calls are some lines each.

#include "core/engine/engine.h"

#include <utility>

#include "core/base/out_of_memory.h"
#include "core/base/strings.h"
#include "core/engine/memory/param_place.h"
#include "core/engine/params/host_tensors.h"
#include "core/engine/params/log_warnings.h"
#include "core/engine/params/open_access.h"
#include "core/engine/state/import_state.h"
#include "core/flat/check_host_tensor.h"
#include "core/observe/observer.h"

namespace shard {

void Engine::SetRuntime(std::unique_ptr<EngineRuntime> runtime) {
  // Before the old one is gone, of which it keeps what is not told yet.
  steps_.SetRuntime(runtime.get());
  runtime_ = std::move(runtime);
}

Status Engine::CheckOutsideCapture(std::string_view what) const {
  if (!steps_.captures()) return Status();
  return FailedPrecondition(
      what,
      " between capture_begin and capture_end, where zero_grad and step "
      "alone are allowed: call capture_end first");
}

Status Engine::CheckNotCaptured(std::string_view what) const {
  // The error that has ended the group comes first.
  if (!runtime_->units().broken().ok()) return Status();
  SHARD_RETURN_IF_ERROR(CheckOutsideCapture(what));
  return host_.CheckNotCaptured().WithContext(what);
}

Status Engine::CheckEnqueues(std::string_view what) const {
  if (!steps_.captures()) return CheckNotCaptured(what);
  // Work would run that is taken for a part of the graph.
  return steps_.CheckSameCapture().WithContext(
      StrCat(what,
             " after capture_begin, with a capture that has ended or is "
             "invalid: call capture_end, and capture again"));
}

Status Engine::CheckTraining(std::string_view what) const {
  SHARD_RETURN_IF_ERROR(CheckNotCaptured(what));
  return CheckHasParams(what);
}

Status Engine::CheckHasParams(std::string_view what) const {
  if (full_params_.summoned()) {
    return FailedPrecondition(
        what,
        " with parameters summoned: the engine is in state "
        "SUMMON_FULL_PARAMS; call summon_end first");
  }
  if (!initial_params_.filling()) return Status();
  return FailedPrecondition(
      what,
      " needs parameters that were broadcast; the engine is in state FILLING: "
      "call broadcast_params first");
}

Status Engine::CheckBetweenSteps(std::string_view what) const {
  SHARD_RETURN_IF_ERROR(CheckTraining(what));
  return steps_.CheckBetweenSteps(what);
}

// ---- Parameters and gradients ----------------------------------------------

StatusOr<Engine::Tensor> Engine::Param(ParamId param) const {
  SHARD_RETURN_IF_ERROR(PlaceOf(plan(), param).status());
  SHARD_ASSIGN_OR_RETURN(void* data, full_params_.Has(param)
                                         ? full_params_.Param(param)
                                         : runtime_->units().Param(param));
  return Tensor{data, NumelOf(plan(), param)};
}

StatusOr<Engine::Tensor> Engine::WritableParam(ParamId param) const {
  SHARD_RETURN_IF_ERROR(PlaceOf(plan(), param).status());
  const bool set = initial_params_.filling() && comm_->rank() == 0;
  if (set || full_params_.Has(param)) return Param(param);
  return FailedPrecondition(
      "parameter ", param,
      " is not the host's to write: that is possible on rank 0 before "
      "broadcast_params, and in the copies of summon");
}

StatusOr<Engine::Tensor> Engine::Grad(ParamId param) const {
  SHARD_RETURN_IF_ERROR(TrainablePlaceOf(plan(), param, "gradient").status());
  SHARD_ASSIGN_OR_RETURN(void* data, runtime_->units().Grad(param));
  return Tensor{data, NumelOf(plan(), param)};
}

StatusOr<Engine::Tensor> Engine::HostTensor(HostTensorId id) const {
  SHARD_RETURN_IF_ERROR(CheckHostTensor(plan(), id));
  const auto& tensor = plan().model().host_tensors()[static_cast<size_t>(id)];
  return Tensor{memory().HostTensor(id), tensor.numel};
}

Status Engine::BroadcastHostTensors(int root, double timeout) {
  return shard::BroadcastHostTensors(*runtime_, root,
                                     CheckIdleOrFilling("broadcast_buffers"),
                                     comm_.get(), DeadlineOf(timeout));
}

Status Engine::Bind(ParamId param, const BoundMemory::Tensors& tensors) {
  SHARD_RETURN_IF_ERROR(runtime_->bound_copies().CheckBind(param, tensors));
  for (const std::span<std::byte>& memory : {tensors.values, tensors.grad}) {
    if (memory.empty()) continue;
    SHARD_RETURN_IF_ERROR(
        device_->CheckPlace(memory.data(), MemoryPlace::kDevice)
            .WithContext("bind_param"));
  }
  SHARD_RETURN_IF_ERROR(CheckIdleOrFilling("bind_param"));
  // The graph of a replay may still copy to what was bound.
  SHARD_RETURN_IF_ERROR(AwaitStep());
  // With overlap, parameters may still be on their way.
  const Deadline deadline = DeadlineOf(0);
  SHARD_RETURN_IF_ERROR(runtime_->queue().Drain(deadline));
  SHARD_RETURN_IF_ERROR(runtime_->compute().Synchronize(deadline));
  SHARD_RETURN_IF_ERROR(bound_.Bind(param, tensors));
  steps_.ForgetCaptured("bind_param was called since");
  if (initial_params_.filling() || tensors.values.empty()) return Status();
  const Status copied = CatchOutOfMemory(
      [&] { return runtime_->bound_copies().RefreshParam(param, deadline); });
  // The copy may be on its way, so the memory cannot be given back.
  return copied.ok() ? copied : runtime_->units().Fail(copied);
}

Status Engine::Refreshed(const Status& done, double timeout) const {
  SHARD_RETURN_IF_ERROR(done);
  const Status refreshed = CatchOutOfMemory(
      [&] { return runtime_->bound_copies().RefreshAll(DeadlineOf(timeout)); });
  (void)runtime_->bound_copies().TakeBytes();  // No step counts them.
  return refreshed.ok() ? refreshed : runtime_->units().Fail(refreshed);
}

Status Engine::ZeroGrad() {
  SHARD_RETURN_IF_ERROR(CheckEnqueues("zero_grad"));
  return steps_.ZeroGrad(DeadlineOf(0));
}

// ---- Units -----------------------------------------------------------------

Status Engine::UnitAcquire(int32_t unit, Pass pass, double timeout) {
  SHARD_RETURN_IF_ERROR(CheckTraining("unit_acquire"));
  return Observe(comm_->observer(), EventId::kAcquire, {.unit = unit}, [&] {
    return runtime_->units().Acquire(unit, pass, DeadlineOf(timeout));
  });
}

Status Engine::UnitRelease(int32_t unit) {
  SHARD_RETURN_IF_ERROR(CheckTraining("unit_release"));
  return runtime_->units().Release(unit, DeadlineOf(0));
}

Status Engine::MarkUnitGradsReady(int32_t unit) {
  SHARD_RETURN_IF_ERROR(CheckTraining("mark_unit_grads_ready"));
  return runtime_->units().GradsReady(unit, DeadlineOf(0));
}

Status Engine::MarkParamGradReady(ParamId param) {
  SHARD_RETURN_IF_ERROR(CheckTraining("mark_param_grad_ready"));
  // Other ranks may wait for this rank's declaration.
  return runtime_->units().MarkParamGradReady(
      param, TrainablePlaceOf(plan(), param, "gradient").status(),
      DeadlineOf(0));
}

Status Engine::SetAccumulate(bool accumulate) {
  SHARD_RETURN_IF_ERROR(CheckTraining("set_accumulate"));
  runtime_->units().SetAccumulate(accumulate);
  return Status();
}

// ---- Initial parameters ----------------------------------------------------

Status Engine::SetParam(ParamId param, const void* data, size_t bytes) {
  if (bytes > 0) {
    SHARD_RETURN_IF_ERROR(
        device_->CheckPlace(data, MemoryPlace::kHost).WithContext("set_param"));
  }
  SHARD_RETURN_IF_ERROR(CheckNotCaptured("set_param"));
  return initial_params_.Set(*runtime_, param, data, bytes, DeadlineOf(0));
}

Status Engine::BroadcastParams(double timeout) {
  return Refreshed(
      initial_params_.Broadcast(*runtime_, CheckNotCaptured("broadcast_params"),
                                DeadlineOf(timeout)),
      timeout);
}

Status Engine::SetState(ParamId param, std::string_view name,
                        const float* values, size_t count) {
  SHARD_ASSIGN_OR_RETURN(const ParamPlace* place,
                         TrainablePlaceOf(plan(), param, "optimizer states"));
  SHARD_RETURN_IF_ERROR(CheckTraining("set_state"));
  SHARD_RETURN_IF_ERROR(steps_.CheckNotBegun("set_state"));
  const EngineBuffer& buffer = memory().buffer(place->buffer);
  const auto state = FindState(*buffer.plan, name);
  if (!state.ok()) {
    return state.status().WithContext(StrCat("parameter ", param));
  }
  if (NumelOf(plan(), param) == 0) {
    if (count == 0) return Status();
    return InvalidArgument(count, " values for parameter ", param,
                           ", which has no elements");
  }
  SHARD_RETURN_IF_ERROR(
      device_->CheckPlace(values, MemoryPlace::kHost).WithContext("set_state"));
  const auto group = static_cast<size_t>(buffer.plan->group);
  const Deadline deadline = DeadlineOf(0);
  SHARD_ASSIGN_OR_RETURN(const auto access,
                         OpenAccess(*runtime_, device_.get(), deadline));
  return ImportState(buffer, hypers_.optimizers()[group],
                     plan().RangeOf(comm_->rank()), *place, *state, values,
                     count, access.get(), &runtime_->compute(), deadline)
      .WithContext(StrCat("parameter ", param));
}

Status Engine::SetStep(int64_t step) {
  SHARD_RETURN_IF_ERROR(CheckTraining("set_completed_steps"));
  SHARD_RETURN_IF_ERROR(Counted(steps_.CheckNotBegun("set_completed_steps")));
  return counters().SetStep(step);
}

Status Engine::SetLossScale(const LossScaler::State& state) {
  SHARD_RETURN_IF_ERROR(Counted(CheckBetweenSteps("set_loss_scale")));
  return counters().loss_scaler().Restore(state);
}

Status Engine::SetHyper(GroupId group, std::string_view key, double value) {
  SHARD_RETURN_IF_ERROR(steps_.CheckNotBegun("set_hyper"));
  return hypers_.Set(group, key, value);
}

// ---- Steps -----------------------------------------------------------------

Status Engine::BeginStep(const StatusOr<StepOptions>& options) {
  const Deadline deadline = DeadlineOf(options.ok() ? options->timeout : 0);
  const int64_t next = steps_.counters(deadline).step() + 1;
  return Observe(comm_->observer(), EventId::kBeginStep, {.step = next}, [&] {
    return steps_.Begin(options, CheckTraining("begin_step"), deadline);
  });
}

Status Engine::Step(const StatusOr<StepOptions>& options, StepReport* report) {
  const Deadline deadline = DeadlineOf(options.ok() ? options->timeout : 0);
  const auto step = [&] {
    Status known = CheckEnqueues("step");
    if (known.ok()) known = CheckHasParams("step");
    return steps_.Step(options, known, deadline, report);
  };
  // A step that is captured is none of the training's.
  if (steps_.captures()) return step();
  const int64_t next = steps_.counters(deadline).step() + 1;
  return Observe(comm_->observer(), EventId::kStep, {.step = next}, step);
}

Status Engine::CaptureBegin() {
  SHARD_RETURN_IF_ERROR(runtime_->units().broken());
  if (steps_.captures()) {
    return FailedPrecondition(
        "capture_begin after capture_begin: call capture_end first");
  }
  SHARD_RETURN_IF_ERROR(CheckHasParams("capture_begin"));
  const Deadline deadline = DeadlineOf(0);
  SHARD_RETURN_IF_ERROR(steps_.CheckCapture(deadline));
  SHARD_RETURN_IF_ERROR(runtime_->Synchronize(deadline));
  const auto capture = host_.get()->CaptureId();
  SHARD_RETURN_IF_ERROR(capture.status().WithContext("capture_begin"));
  SHARD_RETURN_IF_ERROR(runtime_->BeginCapture().WithContext("capture_begin"));
  steps_.BeginCapture(*capture);
  return Status();
}

Status Engine::CaptureEnd() {
  if (!steps_.captures()) {
    return FailedPrecondition(
        "capture_end without capture_begin: call that first");
  }
  Status active = steps_.CheckSameCapture();
  if (active.code() == StatusCode::kFailedPrecondition) {
    // The stream's remedy is that of a capture that has not begun.
    active = FailedPrecondition(
        "capture_end: the host's capture has ended before, or became invalid "
        "by a call that it forbids, as one that allocates memory or waits; "
        "leave such calls out, capture again, and call capture_end before "
        "cudaStreamEndCapture");
  } else {
    active = active.WithContext("capture_end");
  }
  const Status captured = runtime_->EndCapture().WithContext("capture_end");
  return steps_.EndCapture(active.ok() ? captured : active, DeadlineOf(0));
}

Status Engine::BeforeReplay(const StatusOr<StepOptions>& options) {
  const Deadline deadline = DeadlineOf(options.ok() ? options->timeout : 0);
  const int64_t next = steps_.counters(deadline).step() + 1;
  return Observe(comm_->observer(), EventId::kStep, {.step = next}, [&] {
    return steps_.BeforeReplay(options, CheckTraining("before_replay"),
                               deadline);
  });
}

Status Engine::SetStream(void* native) {
  SHARD_RETURN_IF_ERROR(CheckIdleOrFilling("set_stream"));
  auto stream = device_->WrapStream(native);
  if (!stream.ok()) return stream.status().WithContext("set_stream");
  SHARD_RETURN_IF_ERROR(host_.Replace(*std::move(stream), DeadlineOf(0))
                            .WithContext("set_stream"));
  steps_.SetReturnsEarly(native != nullptr);
  return Status();
}

Status Engine::Synchronize(double timeout) {
  SHARD_RETURN_IF_ERROR(runtime_->units().broken());
  // Nothing runs that the host could wait for.
  SHARD_RETURN_IF_ERROR(CheckOutsideCapture("synchronize"));
  const Deadline deadline = DeadlineOf(timeout);
  const Status stepped = steps_.Await(deadline);
  if (!stepped.ok()) return runtime_->WithLateRanks(stepped, deadline);
  const Status done = runtime_->Synchronize(deadline);
  // Work that is late may still end well; if not, the next call fails.
  if (done.ok() || deadline.Expired()) {
    return runtime_->WithLateRanks(done, deadline);
  }
  return runtime_->units().Fail(done);
}

StatusOr<StepReport> Engine::LastReport() const {
  SHARD_RETURN_IF_ERROR(CheckOutsideCapture("last_report"));
  return steps_.LastReport(DeadlineOf(0));
}

Status Engine::Join(double timeout, int64_t* steps) {
  return Observe(comm_->observer(), EventId::kJoin, {}, [&] {
    return steps_.Join(CheckBetweenSteps("join"), SecondsOf(timeout), steps);
  });
}

// ---- Full parameters -------------------------------------------------------

Status Engine::Summon(ModuleId module, int rank, double timeout) {
  return full_params_.Summon(*runtime_, module, rank,
                             Counted(CheckBetweenSteps("summon")),
                             DeadlineOf(timeout));
}

Status Engine::EndSummon(const StatusOr<bool>& write_back, double timeout) {
  Status known = CheckNotCaptured("summon_end");
  if (!full_params_.summoned()) {
    known = FailedPrecondition(
        "summon_end in state ", initial_params_.filling() ? "FILLING" : "IDLE",
        "; it needs SUMMON_FULL_PARAMS: call summon first");
  }
  return Refreshed(
      full_params_.End(*runtime_, write_back, known, DeadlineOf(timeout)),
      timeout);
}

// ---- Another plan ----------------------------------------------------------

StatusOr<GroupId> Engine::AddParamGroup(
    const StatusOr<std::string_view>& optimizer,
    std::span<const ParamId> params, double timeout) {
  SHARD_RETURN_IF_ERROR(
      ChangePlan(NewParamGroup(plan(), hypers_, optimizer, params), timeout));
  return static_cast<GroupId>(plan().options().groups.size() - 1);
}

Status Engine::SetTrainable(std::span<const ParamId> params,
                            const StatusOr<bool>& trainable, double timeout) {
  return ChangePlan(NewTrainable(plan(), hypers_, params, trainable), timeout);
}

Status Engine::ChangePlan(PlanChange change, double timeout) {
  return Observe(comm_->observer(), EventId::kChangePlan, {},
                 [&] { return DoChangePlan(std::move(change), timeout); });
}

Status Engine::DoChangePlan(PlanChange change, double timeout) {
  SHARD_ASSIGN_OR_RETURN(
      Replanned next,
      Replan(*runtime_, Counted(CheckBetweenSteps("a change of the plan")),
             std::move(change), runtime_options_, comm_.get(), device_.get(),
             DeadlineOf(timeout)));
  counters().ContinueWith(plan(), *next.runtime->plan());
  hypers_ = std::move(next.hypers);
  SetRuntime(std::move(next.runtime));
  // Bound gradients begin as zeros, as those of the new plan do.
  runtime_->bound_copies().ZeroGrads();
  SHARD_RETURN_IF_ERROR(runtime_->compute().Synchronize(DeadlineOf(timeout)));
  comm_->observer()->Log(EventId::kPlan, "rank ", comm_->rank(), ": ",
                         plan().Summary());
  // The new plan may keep units whole that were sharded, and warn of them.
  if (comm_->rank() == 0) LogWarnings(next.warnings, comm_->observer());
  // With overlap, no unit may have been acquired since the last step.
  return Refreshed(Status(), timeout);
}

// ---- Checkpoints and state dicts -------------------------------------------

TrainingState Engine::State() {
  return TrainingState({runtime_.get(), comm_.get(), device_.get(), &hypers_,
                        &counters_, &initial_params_, &checkpoints_});
}

StatusOr<std::shared_ptr<AsyncSave>> Engine::Save(
    const std::string& root, const StatusOr<SaveOptions>& options) {
  return Observe(comm_->observer(), EventId::kSave,
                 {.what = root, .step = step()}, [&] {
                   return State().Save(
                       root, options, CheckGiven("save"),
                       WorkDeadlineOf(options.ok() ? options->timeout : 0));
                 });
}

Status Engine::Load(const std::string& path,
                    const StatusOr<LoadOptions>& options, LoadReport* report) {
  const double timeout = options.ok() ? options->timeout : 0;
  return Observe(comm_->observer(), EventId::kLoad, {.what = path}, [&] {
    return Loaded(State().LoadCheckpoint(path, options,
                                         Counted(CheckIdleOrFilling("load")),
                                         WorkDeadlineOf(timeout), report),
                  timeout);
  });
}

DeviceId Engine::DeviceOf(TensorRole role) const {
  const bool is_on_host =
      role == TensorRole::kBuffer ||
      (role == TensorRole::kState && device_->offload() != nullptr);
  return is_on_host ? DeviceId() : device_->id();
}

Status Engine::AddLocalState(const StateOptions& options, MemoryStore* store) {
  SHARD_RETURN_IF_ERROR(CheckGiven("state"));
  return State().AddLocal(options, DeadlineOf(0), store);
}

Status Engine::GatherState(const StatusOr<StateOptions>& options, int rank,
                           double timeout,
                           const TrainingState::EntrySink& sink) {
  return State().Gather(options, rank, CheckGiven("gather"),
                        WorkDeadlineOf(timeout), sink);
}

Status Engine::LoadState(const MemoryStore* store,
                         const StatusOr<LoadOptions>& options,
                         LoadReport* report) {
  const double timeout = options.ok() ? options->timeout : 0;
  return Loaded(
      State().LoadStateDict(store, options, Counted(CheckIdleOrFilling("load")),
                            WorkDeadlineOf(timeout), report),
      timeout);
}

Status Engine::CheckGiven(std::string_view what) const {
  SHARD_RETURN_IF_ERROR(Counted(CheckBetweenSteps(what)));
  // A launch may not have come to its step.
  const Status idle = runtime_->host().Synchronize(DeadlineOf(0));
  if (idle.ok()) return steps_.CheckNoStray();
  // Its collectives may have ended the family.
  return runtime_->compute().status().ok() ? idle
                                           : runtime_->units().Fail(idle);
}

Status Engine::Loaded(const Status& done, double timeout) {
  if (done.ok()) steps_.ForgetStrays();
  return Refreshed(done, timeout);
}

Status Engine::CheckIdleOrFilling(std::string_view what) const {
  return initial_params_.filling() ? CheckNotCaptured(what)
                                   : CheckBetweenSteps(what);
}

}  // namespace shard
