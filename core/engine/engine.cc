// SPDX-License-Identifier: Apache-2.0

#include "core/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/host_memory.h"
#include "core/base/strings.h"
#include "core/engine/import_state.h"
#include "core/engine/stopwatch.h"
#include "core/flat/fingerprint.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/convert.h"

namespace shard {

namespace {

// What this build can step; the plan itself covers more.
Status CheckSupported(const Plan& plan, const Communicator& comm) {
  const PlanOptions& options = plan.options();
  if (options.world_size != comm.world_size()) {
    return InvalidArgument("the plan is for world size ", options.world_size,
                           ", the communicator has ", comm.world_size());
  }
  if (options.stage > 1) {
    return Unimplemented("stage ", options.stage,
                         " cannot run in this version; use stage 0 or 1");
  }
  if (!comm.direct()) {
    return Unimplemented("this version steps only where ranks share memory");
  }
  // All of it at once: each allocation alone may fit, and the kernel grants
  // pages it does not have.
  SHARD_RETURN_IF_ERROR(
      CheckHostMemory(plan.Memory(true).HostTotal(options.world_size)));
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

// Leaves `blas` empty when nothing that is stepped needs one.
Status FindBlas(const Plan& plan, const std::vector<Optimizer>& optimizers,
                std::optional<Blas>* blas) {
  const bool needed =
      std::any_of(plan.buffers().begin(), plan.buffers().end(),
                  [&](const FlatBufferPlan& buffer) {
                    const auto group = static_cast<size_t>(buffer.group);
                    return buffer.trainable &&
                           optimizers[group].formula() == Formula::kMuon;
                  });
  if (!needed) return Status();
  SHARD_ASSIGN_OR_RETURN(*blas, Blas::Load());
  return Status();
}

NormType NormTypeOf(double p) {
  if (p == 0 || p == 2) return NormType::kTwo;
  if (p == 1) return NormType::kOne;
  return std::isinf(p) ? NormType::kInf : NormType::kP;
}

// The normal numbers of fp32.
constexpr double kLeastFloat = std::numeric_limits<float>::min();
constexpr double kMostFloat = std::numeric_limits<float>::max();

std::string GroupsText(const std::vector<Optimizer>& optimizers) {
  std::string text;
  for (const Optimizer& optimizer : optimizers) {
    StrAppend(&text, text.empty() ? "" : "; ", optimizer.ToString());
  }
  return text;
}

// 52 bits of it, which a double holds.
uint64_t HypersFingerprint(const std::vector<Optimizer>& optimizers) {
  Fingerprint fingerprint;
  for (const Optimizer& optimizer : optimizers) {
    const std::vector<double>& hypers = optimizer.hypers();
    fingerprint.AddBytes(hypers.data(), hypers.size() * sizeof(double));
  }
  return fingerprint.Finish() >> 12;
}

// What the ranks tell each other when they enter a step. Doubles only, so that
// the bytes have no padding.
struct StepEntry {
  double failed;
  double hypers;
  double lr;
  double max_grad_norm;
  double grad_norm_type;
  double clip_value;
  double grad_divisor;
  double loss_scale;
  double skip_nonfinite;
  double step;
};

struct StepField {
  const char* name;
  double StepEntry::*value;
};

constexpr StepField kStepFields[] = {
    {"lr", &StepEntry::lr},
    {"max_grad_norm", &StepEntry::max_grad_norm},
    {"grad_norm_type", &StepEntry::grad_norm_type},
    {"clip_value", &StepEntry::clip_value},
    {"grad_divisor", &StepEntry::grad_divisor},
    {"loss_scale", &StepEntry::loss_scale},
    {"skip_nonfinite", &StepEntry::skip_nonfinite},
    {"step number", &StepEntry::step},
};

}  // namespace

StatusOr<std::unique_ptr<Engine>> Engine::Create(
    std::shared_ptr<const Plan> plan, std::shared_ptr<Communicator> comm,
    const StatusOr<EngineOptions>& options) {
  const double given = options.ok() ? options->timeout : 0;
  const double timeout = given > 0 ? given : comm->timeout();
  const Deadline deadline = Deadline::After(timeout);

  SHARD_RETURN_IF_ERROR(AgreeOnStatus(
      comm.get(), "create engine",
      options.ok() ? CheckSupported(*plan, *comm) : options.status(),
      deadline));
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm.get(), "the plan", plan->fingerprint(), plan->Summary(), deadline));
  // Equal plans hold equal texts, so this fails on all ranks or on none.
  std::vector<Optimizer> optimizers;
  for (const GroupOptions& group : plan->options().groups) {
    SHARD_ASSIGN_OR_RETURN(Optimizer optimizer,
                           Optimizer::Parse(group.optimizer));
    optimizers.push_back(std::move(optimizer));
  }
  // Ranks that scaled differently would part only when one of them skips.
  const std::string scaling = options->loss_scaler.ToString();
  Fingerprint fingerprint;
  fingerprint.AddString(scaling);
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm.get(), "loss_scaling", fingerprint.Finish(), scaling, deadline));
  std::optional<Blas> blas;
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(
      comm.get(), "find a BLAS", FindBlas(*plan, optimizers, &blas), deadline));
  comm->logger().Log(LogLevel::kInfo, "rank ", comm->rank(), ": ",
                     plan->Summary(), blas ? ", BLAS " : "",
                     blas ? blas->name() : "");
  if (comm->logger().Wants(LogLevel::kDebug)) {
    comm->logger().Log(LogLevel::kDebug, plan->ToText());
  }

  std::unique_ptr<Engine> engine(new Engine(std::move(plan), comm,
                                            std::move(optimizers),
                                            options->loss_scaler, timeout));
  SHARD_ASSIGN_OR_RETURN(engine->buffers_,
                         AllocateBuffers(*engine->plan_, comm.get(), deadline));
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm.get(), "allocate workspace",
                                      engine->AllocateWorkspace(), deadline));
  engine->strategy_ = std::make_unique<DirectStep>(
      comm.get(), *engine->plan_, engine->buffers_,
      reinterpret_cast<float*>(engine->workspace_.data()), std::move(blas));
  return engine;
}

Engine::Engine(std::shared_ptr<const Plan> plan,
               std::shared_ptr<Communicator> comm,
               std::vector<Optimizer> optimizers, LossScaler loss_scaler,
               double timeout)
    : plan_(std::move(plan)),
      comm_(std::move(comm)),
      optimizers_(std::move(optimizers)),
      loss_scaler_(std::move(loss_scaler)),
      timeout_(timeout) {
  for (const FlatBufferPlan& buffer : plan_->buffers()) {
    if (buffer.trainable) {
      trainable_numel_ += static_cast<double>(buffer.layout.numel());
    }
  }
}

Status Engine::AllocateWorkspace() {
  const size_t bytes = DTypeBytes(DType::kF32, plan_->workspace_numel());
  if (bytes == 0) return Status();
  SHARD_ASSIGN_OR_RETURN(workspace_, Mapping::Anonymous(bytes));
  return Status();
}

Deadline Engine::DeadlineOf(double timeout) const {
  return Deadline::After(timeout > 0 ? timeout : timeout_);
}

StatusOr<const ParamPlace*> Engine::PlaceOf(ParamId param) const {
  const auto& places = plan_->places();
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

StatusOr<Engine::Tensor> Engine::Param(ParamId param) const {
  SHARD_ASSIGN_OR_RETURN(const ParamPlace* place, PlaceOf(param));
  const EngineBuffer& buffer = buffers_[static_cast<size_t>(place->buffer)];
  return Tensor{buffer.ParamAt(place->offset),
                plan_->model().params()[static_cast<size_t>(param)].numel};
}

StatusOr<Engine::Tensor> Engine::Grad(ParamId param) const {
  SHARD_ASSIGN_OR_RETURN(const ParamPlace* place, PlaceOf(param));
  const EngineBuffer& buffer = buffers_[static_cast<size_t>(place->buffer)];
  if (!buffer.plan->trainable) {
    return FailedPrecondition("parameter ", param,
                              " is frozen: it has no gradient");
  }
  return Tensor{buffer.GradAt(comm_->rank(), place->offset),
                plan_->model().params()[static_cast<size_t>(param)].numel};
}

void Engine::ZeroGrad() {
  for (const EngineBuffer& buffer : buffers_) {
    if (!buffer.grads || buffer.grads->size() == 0) continue;
    std::memset(buffer.grads->region(comm_->rank()), 0, buffer.grads->size());
  }
}

Status Engine::CheckGroup(GroupId group) const {
  if (group >= 0 && static_cast<size_t>(group) < optimizers_.size()) {
    return Status();
  }
  return InvalidArgument("param group ", group,
                         " does not exist; the plan has ", optimizers_.size(),
                         ", from 0");
}

Status Engine::SetHyper(GroupId group, std::string_view key, double value) {
  SHARD_ASSIGN_OR_RETURN(optimizers_, Changed(group, key, value));
  return Status();
}

StatusOr<std::vector<Optimizer>> Engine::Changed(GroupId group,
                                                 std::string_view key,
                                                 double value) const {
  std::vector<Optimizer> changed = optimizers_;
  if (group != kAllGroups) {
    SHARD_RETURN_IF_ERROR(CheckGroup(group));
    SHARD_RETURN_IF_ERROR(changed[static_cast<size_t>(group)].Set(key, value));
    return changed;
  }
  Status unknown;
  bool known = false;
  for (Optimizer& optimizer : changed) {
    const Status status = optimizer.Set(key, value);
    if (status.code() == StatusCode::kNotFound) {
      unknown = status;
      continue;
    }
    SHARD_RETURN_IF_ERROR(status);
    known = true;
  }
  if (!known) return unknown;
  return changed;
}

StatusOr<double> Engine::GetHyper(GroupId group, std::string_view key) const {
  SHARD_RETURN_IF_ERROR(CheckGroup(group));
  return optimizers_[static_cast<size_t>(group)].Get(key);
}

StatusOr<std::string> Engine::GroupText(GroupId group) const {
  SHARD_RETURN_IF_ERROR(CheckGroup(group));
  return optimizers_[static_cast<size_t>(group)].ToString();
}

Status Engine::SetParam(ParamId param, const void* data, size_t bytes) {
  SHARD_ASSIGN_OR_RETURN(const Tensor tensor, Param(param));
  const DType dtype = plan_->model().params()[static_cast<size_t>(param)].dtype;
  const size_t expected = DTypeBytes(dtype, tensor.numel);
  if (bytes != expected) {
    return InvalidArgument("parameter ", param, " has ", expected, " bytes (",
                           tensor.numel, " elements of ", DTypeName(dtype),
                           "), not ", bytes);
  }
  if (state_ != State::kFilling) {
    return FailedPrecondition(
        "parameters can be set only before they are broadcast; the engine is "
        "training");
  }
  if (comm_->rank() == 0 && bytes > 0) std::memcpy(tensor.data, data, bytes);
  return Status();
}

Status Engine::BroadcastParams(double timeout) {
  const Deadline deadline = DeadlineOf(timeout);
  Status local;
  if (state_ != State::kFilling) {
    local = FailedPrecondition(
        "parameters were broadcast before; the engine is training");
  }
  // Also the barrier after which rank 0's values are everyone's.
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(comm_.get(), "broadcast parameters", local, deadline));
  FillMasters();
  state_ = State::kTraining;
  return Status();
}

void Engine::FillMasters() {
  for (const EngineBuffer& buffer : buffers_) {
    if (!buffer.plan->has_masters) continue;
    const int64_t count = buffer.plan->layout.shard_numel();
    Widen(buffer.plan->dtype, buffer.ParamAt(comm_->rank() * count),
          reinterpret_cast<float*>(buffer.states.back()),
          static_cast<size_t>(count));
  }
}

Status Engine::SetState(ParamId param, std::string_view name,
                        const float* values, size_t count) {
  SHARD_ASSIGN_OR_RETURN(const ParamPlace* place, PlaceOf(param));
  const EngineBuffer& buffer = buffers_[static_cast<size_t>(place->buffer)];
  if (!buffer.plan->trainable) {
    return FailedPrecondition("parameter ", param,
                              " is frozen: it has no optimizer states");
  }
  SHARD_RETURN_IF_ERROR(CheckTraining("set_state"));
  if (plan_->model().params()[static_cast<size_t>(param)].numel == 0) {
    return Status();
  }
  const auto group = static_cast<size_t>(buffer.plan->group);
  return ImportState(buffer, optimizers_[group], comm_->rank(), *place, name,
                     values, count)
      .WithContext(StrCat("parameter ", param));
}

Status Engine::SetStep(int64_t step) {
  SHARD_RETURN_IF_ERROR(CheckTraining("set_step"));
  // Beyond, the random bits of rounding would repeat.
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max() - int64_t{1};
  if (step < 0 || step > kMost) {
    return InvalidArgument("step ", step, " is out of range; allowed: 0 to ",
                           kMost, ", the number of steps done");
  }
  step_ = step;
  return Status();
}

Status Engine::CheckTraining(std::string_view what) const {
  if (state_ == State::kTraining) return Status();
  return FailedPrecondition(
      what,
      " needs parameters that were broadcast; the engine is still being "
      "filled: call broadcast_params first");
}

Status Engine::CheckStep(const StepOptions& options) const {
  SHARD_RETURN_IF_ERROR(CheckTraining("step"));
  const struct {
    const char* name;
    double value;
  } fields[] = {{"lr", options.lr},
                {"max_grad_norm", options.max_grad_norm},
                {"clip_value", options.clip_value},
                {"grad_divisor", options.grad_divisor},
                {"loss_scale", options.loss_scale}};
  for (const auto& field : fields) {
    if (!std::isfinite(field.value) || field.value < 0) {
      return InvalidArgument("step option ", field.name, "=", field.value,
                             " is out of range; allowed: a finite number, "
                             "at least 0");
    }
  }
  // Infinity is the name of a norm.
  if (!(options.grad_norm_type >= 0)) {
    return InvalidArgument(
        "step option grad_norm_type=", options.grad_norm_type,
        " is out of range; allowed: above 0, infinity for "
        "the largest magnitude, or 0 for the default, 2");
  }
  // count^(1/p) of equal magnitudes.
  if (NormTypeOf(options.grad_norm_type) == NormType::kP &&
      !std::isfinite(std::pow(trainable_numel_, 1 / options.grad_norm_type))) {
    return InvalidArgument(
        "step option grad_norm_type=", options.grad_norm_type,
        " is too small: the norm of ", trainable_numel_,
        " elements would overflow");
  }
  // The kernels have it in fp32.
  if (options.clip_value > 0 &&
      (options.clip_value < kLeastFloat || options.clip_value > kMostFloat)) {
    return InvalidArgument("step option clip_value=", options.clip_value,
                           " is out of range; allowed: ", kLeastFloat, " to ",
                           kMostFloat, ", or 0 for none");
  }
  if (options.max_grad_norm > 0 && options.clip_value > 0) {
    return InvalidArgument("step options max_grad_norm=", options.max_grad_norm,
                           " and clip_value=", options.clip_value,
                           " exclude each other; set one of them");
  }
  if (options.loss_scale > 0 && loss_scaler_.active()) {
    return InvalidArgument("step option loss_scale=", options.loss_scale,
                           " and the engine's loss_scaling exclude each other; "
                           "leave loss_scale 0");
  }
  const double divisor = GradDivisor(options) * LossScale(options);
  const double scale = 1 / divisor;
  if (!(scale >= kLeastFloat && scale <= kMostFloat)) {
    return InvalidArgument("grad_divisor * loss_scale = ", divisor,
                           " leaves nothing of the gradients in fp32: their "
                           "scale would be ",
                           scale);
  }
  return Status();
}

double Engine::GradDivisor(const StepOptions& options) const {
  return options.grad_divisor > 0 ? options.grad_divisor
                                  : static_cast<double>(comm_->world_size());
}

double Engine::LossScale(const StepOptions& options) const {
  return options.loss_scale > 0 ? options.loss_scale : loss_scaler_.scale();
}

Status Engine::EnterStep(const StepOptions& options, const Status& local,
                         const Deadline& deadline) {
  StepEntry mine;
  mine.failed = local.ok() ? 0 : 1;
  const uint64_t hypers = HypersFingerprint(optimizers_);
  mine.hypers = static_cast<double>(hypers);
  mine.lr = options.lr;
  mine.max_grad_norm = options.max_grad_norm;
  mine.grad_norm_type = options.grad_norm_type;
  mine.clip_value = options.clip_value;
  mine.grad_divisor = options.grad_divisor;
  mine.loss_scale = LossScale(options);
  mine.skip_nonfinite = options.skip_nonfinite ? 1 : 0;
  mine.step = static_cast<double>(step_ + 1);

  std::vector<StepEntry> all(static_cast<size_t>(comm_->world_size()));
  SHARD_RETURN_IF_ERROR(comm_->AllGather("step: gradients ready", &mine,
                                         sizeof(mine), all.data(), deadline));
  const bool failed = std::any_of(
      all.begin(), all.end(), [](const StepEntry& e) { return e.failed != 0; });
  if (failed) return AgreeOnStatus(comm_.get(), "step", local, deadline);

  for (size_t rank = 1; rank < all.size(); ++rank) {
    for (const StepField& field : kStepFields) {
      const double first = all[0].*field.value;
      const double other = all[rank].*field.value;
      if (first == other) continue;
      return Desync(static_cast<int>(rank), "step: ", field.name,
                    " differs: rank 0 has ", first, ", rank ", rank, " has ",
                    other);
    }
  }
  const bool same = std::all_of(
      all.begin(), all.end(),
      [&](const StepEntry& e) { return e.hypers == all[0].hypers; });
  if (same) return Status();
  return CheckAgreement(comm_.get(), "step: hyperparameters", hypers,
                        GroupsText(optimizers_), deadline);
}

Status Engine::Step(const StatusOr<StepOptions>& given, StepReport* report) {
  *report = StepReport();
  const StepOptions options = given.ok() ? *given : StepOptions();
  const Deadline deadline = DeadlineOf(options.timeout);
  Stopwatch total(&report->seconds_total);
  Status local = given.ok() ? CheckStep(options) : given.status();
  // Made before the ranks meet, so that nothing can fail after.
  StatusOr<std::vector<Optimizer>> changed = std::vector<Optimizer>();
  if (local.ok() && options.lr > 0) {
    changed = Changed(kAllGroups, "lr", options.lr);
    local = changed.status();
  }
  {
    Stopwatch wait(&report->seconds_wait);
    SHARD_RETURN_IF_ERROR(EnterStep(options, local, deadline));
  }
  if (options.lr > 0) optimizers_.swap(*changed);

  StepInput input;
  input.optimizers = &optimizers_;
  input.step = step_ + 1;
  input.gradient_scale = 1.0 / (GradDivisor(options) * LossScale(options));
  input.max_grad_norm = options.max_grad_norm;
  input.norm_type = NormTypeOf(options.grad_norm_type);
  input.norm_p = options.grad_norm_type;
  input.clip_value = options.clip_value;
  input.skip_nonfinite = options.skip_nonfinite || loss_scaler_.dynamic();
  report->loss_scale = LossScale(options);
  SHARD_RETURN_IF_ERROR(strategy_->Run(input, deadline, report));
  loss_scaler_.Update(report->skipped);
  if (!report->skipped) ++step_;
  report->step = step_;
  return Status();
}

MemoryReport Engine::Memory() const {
  MemoryReport memory = MeasureMemory(buffers_, comm_->rank());
  memory.workspace_bytes = RoundUpToPage(workspace_.size());
  return memory;
}

}  // namespace shard
