// SPDX-License-Identifier: Apache-2.0

#include "core/engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/host_memory.h"
#include "core/base/strings.h"
#include "core/comm/agreement.h"
#include "core/device/stream_guard.h"
#include "core/engine/state/describe.h"
#include "core/engine/state/import_state.h"
#include "core/engine/state/log_warnings.h"
#include "core/engine/transfer/ok_or_abort.h"
#include "core/state/manifest_bound.h"

namespace shard {

namespace {

Status CheckEngineOptions(const EngineOptions& options) {
  const auto missing = static_cast<int32_t>(options.missing_grads);
  if (missing >= 0 && missing <= 2) return Status();
  return InvalidArgument("unknown missing_grads ", missing,
                         "; known: 0 (an error), 1 (zero), 2 (skip)");
}

// What ranks must agree on beside the plan: those that differed would part
// only when one of them skips a step, or sends what no other expects.
void Describe(const EngineOptions& options, FactSink* sink) {
  sink->AddSpec("loss_scaling", "kind", options.loss_scaler.ToString());
  sink->Add("", "missing_grads", options.missing_grads);
  sink->Add("", "overlap", options.overlap);
}

}  // namespace

Status Engine::CheckSupported(const Plan& plan, const Communicator& comm) {
  const PlanOptions& options = plan.options();
  if (options.world_size != comm.world_size()) {
    return InvalidArgument("the plan is for world size ", options.world_size,
                           ", the communicator has ", comm.world_size());
  }
  // All of it at once: each allocation alone may fit, and the kernel grants
  // pages it does not have.
  SHARD_RETURN_IF_ERROR(
      CheckHostMemory(plan.Memory(comm.direct())
                          .HostTotal(comm.direct() ? options.world_size : 1),
                      kShardFurther));
  // A model that trains can be saved.
  SHARD_RETURN_IF_ERROR(CheckManifestFits(plan));
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    if (buffer.dtype == DType::kF64 && buffer.trainable) {
      const ParamId param = buffer.layout.slots().front().param;
      return Unimplemented("parameter '",
                           plan.model().ParamFqns()[static_cast<size_t>(param)],
                           "' is f64; trainable parameters are f32, bf16 or "
                           "f16 in this version; freeze it or declare it f32");
    }
  }
  return Status();
}

Status Engine::FindBlas(const Plan& plan, const Hypers& hypers, Device* device,
                        std::string* name) {
  const bool needed = std::any_of(
      plan.buffers().begin(), plan.buffers().end(),
      [&](const FlatBufferPlan& buffer) {
        const auto group = static_cast<size_t>(buffer.group);
        return buffer.trainable &&
               hypers.optimizers()[group].formula() == Formula::kMuon;
      });
  if (!needed) return Status();
  SHARD_ASSIGN_OR_RETURN(*name, device->LoadBlas());
  return Status();
}

StatusOr<std::unique_ptr<Engine>> Engine::Create(
    std::shared_ptr<const Plan> plan, std::shared_ptr<Communicator> comm,
    const StatusOr<EngineOptions>& options) {
  const double given = options.ok() ? options->timeout : 0;
  const double timeout = given > 0 ? given : comm->timeout();
  const Deadline deadline = Deadline::After(timeout);

  Status local = options.status();
  std::shared_ptr<Device> device;
  if (local.ok()) local = CheckEngineOptions(*options);
  if (local.ok()) local = CheckSupported(*plan, *comm);
  if (local.ok()) {
    auto opened = OpenDevice(options->device);
    local = opened.status();
    if (opened.ok()) device = *std::move(opened);
  }
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(comm.get(), "create engine", local, deadline));
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm.get(), "the plan", plan->fingerprint(),
      [&](FactSink* sink) { plan->Describe(sink); }, deadline));
  // Equal plans hold equal texts, so this fails on all ranks or on none.
  SHARD_ASSIGN_OR_RETURN(Hypers hypers, Hypers::Create(*plan));
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm.get(), "the engine's options",
      [&](FactSink* sink) { Describe(*options, sink); }, deadline));
  std::string blas;
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(comm.get(), "find a BLAS",
                    FindBlas(*plan, hypers, device.get(), &blas), deadline));
  comm->logger().Log(LogLevel::kInfo, "rank ", comm->rank(), ": ",
                     plan->Summary(), blas.empty() ? "" : ", BLAS ", blas);
  // The same on every rank; once is enough.
  if (comm->rank() == 0) {
    LogWarnings(comm->logger(), NewWarnings(*plan, nullptr));
  }
  if (comm->logger().Wants(LogLevel::kDebug)) {
    comm->logger().Log(LogLevel::kDebug, plan->ToText());
  }

  SHARD_ASSIGN_OR_RETURN(auto own, comm->Duplicate("engine", deadline));
  std::unique_ptr<Engine> engine(
      new Engine(std::move(comm), std::move(own), std::move(device),
                 std::move(hypers), *options, timeout));
  SHARD_ASSIGN_OR_RETURN(auto assembly,
                         Assembly::Create(std::move(plan), engine->comm_.get(),
                                          engine->device_.get(),
                                          engine->assembly_options_, deadline));
  engine->Adopt(std::move(assembly));
  return engine;
}

Engine::Engine(std::shared_ptr<Communicator> host_comm,
               std::shared_ptr<Communicator> comm,
               std::shared_ptr<Device> device, Hypers hypers,
               const EngineOptions& options, double timeout)
    : host_comm_(std::move(host_comm)),
      comm_(std::move(comm)),
      device_(std::move(device)),
      hypers_(std::move(hypers)),
      loss_scaler_(options.loss_scaler),
      missing_grads_(options.missing_grads),
      timeout_(timeout),
      owner_(::getpid()),
      assembly_options_{timeout, options.missing_grads != MissingGrads::kError,
                        options.overlap},
      checkpoints_(comm_->world_size()) {}

Engine::~Engine() {
  // What is on its way goes through first: peers wait for it. In a child of
  // fork nothing moves.
  if (assembly_ == nullptr || ::getpid() != owner_) return;
  assembly_->WaitForStreams(Deadline::After(timeout_));
  checkpoints_.WaitForSave();
}

void Engine::Adopt(std::unique_ptr<Assembly> assembly) {
  assembly_ = std::move(assembly);
  trainable_numel_ = 0;
  for (const FlatBufferPlan& buffer : plan().buffers()) {
    if (buffer.trainable) {
      trainable_numel_ += static_cast<double>(buffer.layout.numel());
    }
  }
}

Deadline Engine::DeadlineOf(double timeout) const {
  return Deadline::After(timeout > 0 ? timeout : timeout_);
}

WorkDeadline Engine::WorkDeadlineOf(double timeout) const {
  return WorkDeadline(timeout > 0 ? timeout : timeout_, timeout_);
}

// ---- Parameters and gradients ----------------------------------------------

StatusOr<const ParamPlace*> Engine::PlaceOf(ParamId param) const {
  const auto& places = plan().places();
  if (param < 0 || static_cast<size_t>(param) >= places.size()) {
    return InvalidArgument("parameter ", param,
                           " does not exist; the plan has ", places.size());
  }
  const ParamPlace& place = places[static_cast<size_t>(param)];
  if (place.buffer < 0) {
    return FailedPrecondition("parameter ", param,
                              " is ignored: libshard does not store it");
  }
  return &place;
}

StatusOr<const ParamPlace*> Engine::TrainablePlaceOf(
    ParamId param, std::string_view without) const {
  SHARD_ASSIGN_OR_RETURN(const ParamPlace* place, PlaceOf(param));
  if (!plan().buffers()[static_cast<size_t>(place->buffer)].trainable) {
    return FailedPrecondition("parameter ", param, " is frozen: it has no ",
                              without);
  }
  return place;
}

int64_t Engine::NumelOf(ParamId param) const {
  return plan().model().params()[static_cast<size_t>(param)].numel;
}

StatusOr<Engine::Tensor> Engine::Param(ParamId param) const {
  SHARD_RETURN_IF_ERROR(PlaceOf(param).status());
  if (summoned_ != nullptr && summoned_->Has(param)) {
    void* const copy = summoned_->Param(param);
    if (copy != nullptr) return Tensor{copy, NumelOf(param)};
    return FailedPrecondition("parameter ", param, " was summoned to rank ",
                              summoned_->rank(), ", this is rank ",
                              comm_->rank());
  }
  SHARD_ASSIGN_OR_RETURN(void* data, assembly_->units().Param(param));
  return Tensor{data, NumelOf(param)};
}

StatusOr<Engine::Tensor> Engine::WritableParam(ParamId param) const {
  const bool summoned = summoned_ != nullptr && summoned_->Has(param);
  if (summoned || (filling_ && comm_->rank() == 0)) return Param(param);
  SHARD_RETURN_IF_ERROR(PlaceOf(param).status());
  return FailedPrecondition(
      "parameter ", param,
      " is not the host's to write: that is possible on rank 0 before "
      "broadcast_params, and in the copies of summon");
}

StatusOr<Engine::Tensor> Engine::Grad(ParamId param) const {
  SHARD_RETURN_IF_ERROR(TrainablePlaceOf(param, "gradient").status());
  SHARD_ASSIGN_OR_RETURN(void* data, assembly_->units().Grad(param));
  return Tensor{data, NumelOf(param)};
}

Status Engine::ZeroGrad() {
  const Deadline deadline = DeadlineOf(0);
  if (begun_ && assembly_->units().states().any_ready()) {
    return FailedPrecondition(
        "zero_grad after begin_step, with gradients that were ready and may be "
        "applied already: step first");
  }
  SHARD_RETURN_IF_ERROR(assembly_->units().ClearGrads(deadline));
  return ZeroWholeGrads(deadline);
}

Status Engine::ZeroWholeGrads(const Deadline& deadline) {
  Stream& compute = assembly_->compute();
  for (const EngineBuffer& buffer : memory().buffers()) {
    if (buffer.grads.empty()) continue;
    compute.FillZeros(buffer.GradAt(comm_->rank(), 0),
                      DTypeBytes(buffer.plan->grad_dtype,
                                 buffer.plan->layout.padded_numel()));
  }
  return device_->HostWait(compute.Record(), deadline);
}

// ---- Units -----------------------------------------------------------------

Status Engine::UnitAcquire(int32_t unit, Pass pass, double timeout) {
  SHARD_RETURN_IF_ERROR(CheckTraining("unit_acquire"));
  return assembly_->units().Acquire(unit, pass, DeadlineOf(timeout));
}

Status Engine::UnitRelease(int32_t unit) {
  SHARD_RETURN_IF_ERROR(CheckTraining("unit_release"));
  return assembly_->units().Release(unit, DeadlineOf(0));
}

Status Engine::UnitGradsReady(int32_t unit) {
  SHARD_RETURN_IF_ERROR(CheckTraining("mark_unit_grads_ready"));
  return assembly_->units().GradsReady(unit, DeadlineOf(0));
}

Status Engine::ParamGradReady(ParamId param) {
  SHARD_RETURN_IF_ERROR(CheckTraining("mark_param_grad_ready"));
  // The others may wait for what this rank was to declare.
  return assembly_->units().ParamGradReady(
      param, TrainablePlaceOf(param, "gradient").status(), DeadlineOf(0));
}

Status Engine::SetNoSync(bool on) {
  SHARD_RETURN_IF_ERROR(CheckTraining("set_accumulate"));
  assembly_->units().SetNoSync(on);
  return Status();
}

// ---- Filling ---------------------------------------------------------------

Status Engine::SetParam(ParamId param, const void* data, size_t bytes) {
  SHARD_ASSIGN_OR_RETURN(const ParamPlace* place, PlaceOf(param));
  const auto index = static_cast<size_t>(place->buffer);
  const EngineBuffer& buffer = memory().buffers()[index];
  const DType dtype = buffer.plan->dtype;
  const int64_t numel = NumelOf(param);
  const size_t expected = DTypeBytes(dtype, numel);
  if (bytes != expected) {
    return InvalidArgument("parameter ", param, " has ", expected, " bytes (",
                           numel, " elements of ", DTypeName(dtype), "), not ",
                           bytes);
  }
  if (!filling_) {
    return FailedPrecondition(
        "parameters can be set only before they are broadcast; the engine is "
        "training");
  }
  if (comm_->rank() != 0 || bytes == 0) return Status();
  if (!assembly_->units().gathers()) {
    Stream& compute = assembly_->compute();
    compute.Copy(buffer.ParamAt(place->offset), data, bytes);
    return compute.Synchronize(DeadlineOf(0));
  }
  filled_.resize(memory().buffers().size());
  if (filled_[index].data() == nullptr) {
    SHARD_ASSIGN_OR_RETURN(
        filled_[index],
        device_->AllocateHost(
            DTypeBytes(dtype, buffer.plan->layout.padded_numel()),
            "parameters before they are broadcast"));
  }
  std::memcpy(filled_[index].data() + DTypeBytes(dtype, place->offset), data,
              bytes);
  return Status();
}

Status Engine::BroadcastParams(double timeout) {
  const Deadline deadline = DeadlineOf(timeout);
  Status local;
  if (!filling_) {
    local = FailedPrecondition(
        "parameters were broadcast before; the engine is training");
  }
  // Also the barrier after which rank 0's values are everyone's, where memory
  // is shared.
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(comm_.get(), "broadcast parameters", local, deadline));
  if (!comm_->direct()) SHARD_RETURN_IF_ERROR(SpreadParams(deadline));
  SHARD_RETURN_IF_ERROR(FillMasters(*assembly_, deadline));
  filled_.clear();
  filling_ = false;
  return Status();
}

Status Engine::SpreadParams(const Deadline& deadline) {
  constexpr int64_t kPiece = 1 << 20;  // Bytes.
  Stream& compute = assembly_->compute();
  DeviceMemory piece;
  const StreamGuard guard(&compute);
  const std::vector<EngineBuffer>& buffers = memory().buffers();
  for (size_t b = 0; b < buffers.size(); ++b) {
    const EngineBuffer& buffer = buffers[b];
    const auto size = static_cast<int64_t>(DTypeSize(buffer.plan->dtype));
    const int64_t bytes = buffer.plan->layout.padded_numel() * size;
    if (bytes == 0) continue;
    if (!assembly_->units().gathers()) {
      SHARD_RETURN_IF_ERROR(
          comm_->Broadcast("broadcast parameters", 0, buffer.params,
                           static_cast<size_t>(bytes), deadline));
      continue;
    }
    if (piece.size() == 0) {
      auto allocated = device_->Allocate(kPiece, "a piece of parameters");
      SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm_.get(), "broadcast parameters",
                                          allocated.status(), deadline));
      piece = *std::move(allocated);
    }
    const int64_t held_begin = buffer.held_begin * size;
    const int64_t held_end = held_begin + buffer.held_numel * size;
    for (int64_t at = 0; at < bytes; at += kPiece) {
      const int64_t end = std::min(at + kPiece, bytes);
      const auto count = static_cast<size_t>(end - at);
      if (comm_->rank() == 0) {
        const bool set = b < filled_.size() && filled_[b].data() != nullptr;
        if (set) {
          compute.Copy(piece.data(), filled_[b].data() + at, count);
        } else {
          compute.FillZeros(piece.data(), count);
        }
        SHARD_RETURN_IF_ERROR(
            OkOrAbort(comm_.get(), compute.Synchronize(deadline)));
      }
      SHARD_RETURN_IF_ERROR(comm_->Broadcast("broadcast parameters", 0,
                                             piece.data(), count, deadline));
      const int64_t from = std::max(at, held_begin);
      const int64_t to = std::min(end, held_end);
      if (from >= to) continue;
      compute.Copy(buffer.params + (from - held_begin),
                   piece.data() + (from - at), static_cast<size_t>(to - from));
      SHARD_RETURN_IF_ERROR(
          OkOrAbort(comm_.get(), compute.Synchronize(deadline)));
    }
  }
  return Status();
}

Status Engine::FillMasters(const Assembly& assembly, const Deadline& deadline) {
  Stream& compute = assembly.compute();
  const int range = assembly.plan()->RangeOf(comm_->rank());
  for (const EngineBuffer& buffer : assembly.memory().buffers()) {
    if (!buffer.plan->trainable || !buffer.plan->has_masters) continue;
    const int64_t count = buffer.plan->layout.shard_numel();
    compute.Widen(buffer.plan->dtype, buffer.ParamAt(range * count),
                  reinterpret_cast<float*>(buffer.states.back()),
                  static_cast<size_t>(count));
  }
  return OkOrAbort(comm_.get(), compute.Synchronize(deadline));
}

Status Engine::SetState(ParamId param, std::string_view name,
                        const float* values, size_t count) {
  SHARD_ASSIGN_OR_RETURN(const ParamPlace* place,
                         TrainablePlaceOf(param, "optimizer states"));
  SHARD_RETURN_IF_ERROR(CheckTraining("set_state"));
  SHARD_RETURN_IF_ERROR(CheckNotBegun("set_state"));
  if (NumelOf(param) == 0) return Status();
  const EngineBuffer& buffer =
      memory().buffers()[static_cast<size_t>(place->buffer)];
  const auto group = static_cast<size_t>(buffer.plan->group);
  SHARD_RETURN_IF_ERROR(ImportState(buffer, hypers_.optimizers()[group],
                                    plan().RangeOf(comm_->rank()), *place, name,
                                    values, count, &assembly_->compute())
                            .WithContext(StrCat("parameter ", param)));
  return assembly_->compute().Synchronize(DeadlineOf(0));
}

Status Engine::SetStep(int64_t step) {
  SHARD_RETURN_IF_ERROR(CheckTraining("set_step"));
  SHARD_RETURN_IF_ERROR(CheckNotBegun("set_step"));
  if (step < 0 || step > kMostSteps) {
    return InvalidArgument("step ", step, " is out of range; allowed: 0 to ",
                           kMostSteps, ", the number of steps done");
  }
  step_ = step;
  param_steps_.clear();
  return Status();
}

Status Engine::SetLossScale(const LossScaler::State& state) {
  SHARD_RETURN_IF_ERROR(CheckBetweenSteps("set_loss_scale"));
  return loss_scaler_.Restore(state);
}

// ---- Full parameters -------------------------------------------------------

Status Engine::Summon(ModuleId module, int rank, double timeout) {
  const Deadline deadline = DeadlineOf(timeout);
  Status local = CheckBetweenSteps("summon");
  const auto modules = static_cast<ModuleId>(plan().model().modules().size());
  if (local.ok() && (module < 0 || module >= modules)) {
    local = InvalidArgument("module ", module,
                            " does not exist; the model has ", modules);
  }
  if (local.ok() && (rank < kAllRanks || rank >= comm_->world_size())) {
    local = InvalidArgument("rank ", rank, " is outside 0 to ",
                            comm_->world_size() - 1, " (-1: all)");
  }
  SHARD_RETURN_IF_ERROR(
      assembly_->units().EnterChange(Activity::kSummon, local, deadline));
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm_.get(), "what is summoned",
      [&](FactSink* sink) {
        sink->Add("", "module", ModuleText(plan().model(), module));
        sink->Add("", "rank", rank);
      },
      deadline));
  SHARD_ASSIGN_OR_RETURN(
      summoned_, Summoned::Create(*assembly_, comm_.get(), device_.get(),
                                  module, rank, deadline));
  return Status();
}

Status Engine::EndSummon(const StatusOr<bool>& write_back, double timeout) {
  const Deadline deadline = DeadlineOf(timeout);
  Status local = write_back.status();
  if (local.ok() && summoned_ == nullptr) {
    local = FailedPrecondition(
        "summon_end in state ", filling_ ? "FILLING" : "IDLE",
        "; it needs SUMMON_FULL_PARAMS: call summon first");
  }
  SHARD_RETURN_IF_ERROR(
      assembly_->units().EnterChange(Activity::kSummon, local, deadline));
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm_.get(), "the end of summoning",
      [&](FactSink* sink) { sink->Add("", "write_back", *write_back); },
      deadline));
  // Whatever comes of it: the copies are the host's until here.
  const std::unique_ptr<Summoned> summoned = std::move(summoned_);
  if (!*write_back) return Status();
  return summoned->WriteBack(*assembly_, comm_.get(), device_.get(), deadline);
}

Status Engine::CheckTraining(std::string_view what) const {
  if (summoned_ != nullptr) {
    return FailedPrecondition(
        what,
        " with parameters summoned: the engine is in state "
        "SUMMON_FULL_PARAMS; call summon_end first");
  }
  if (!filling_) return Status();
  return FailedPrecondition(
      what,
      " needs parameters that were broadcast; the engine is in state FILLING: "
      "call broadcast_params first");
}

}  // namespace shard
