// SPDX-License-Identifier: Apache-2.0

#include "core/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/base/host_memory.h"
#include "core/base/strings.h"
#include "core/engine/stopwatch.h"

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
      CheckHostMemory(plan.Memory().HostTotal(options.world_size)));
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    if (buffer.dtype != DType::kF32) {
      const ParamId param = buffer.layout.slots().front().param;
      return Unimplemented("parameter '",
                           plan.model().ParamFqns()[static_cast<size_t>(param)],
                           "' is ", DTypeName(buffer.dtype),
                           "; this version stores and steps f32 only");
    }
  }
  return Status();
}

// What the ranks tell each other when they enter a step. Doubles only, so that
// the bytes have no padding.
struct StepEntry {
  double failed;
  double lr;
  double max_grad_norm;
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
    {"grad_divisor", &StepEntry::grad_divisor},
    {"loss_scale", &StepEntry::loss_scale},
    {"skip_nonfinite", &StepEntry::skip_nonfinite},
    {"step number", &StepEntry::step},
};

}  // namespace

StatusOr<std::unique_ptr<Engine>> Engine::Create(
    std::shared_ptr<const Plan> plan, std::shared_ptr<Communicator> comm,
    double timeout, const Status& local) {
  if (!(timeout > 0)) timeout = comm->timeout();
  const Deadline deadline = Deadline::After(timeout);

  SHARD_RETURN_IF_ERROR(AgreeOnStatus(
      comm.get(), "create engine",
      local.ok() ? CheckSupported(*plan, *comm) : local, deadline));
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm.get(), "the plan", plan->fingerprint(), plan->Summary(), deadline));
  // Equal plans hold equal texts, so this fails on all ranks or on none.
  SHARD_ASSIGN_OR_RETURN(Optimizer optimizer,
                         Optimizer::Parse(plan->options().optimizer));
  if (optimizer.state_dtype() != DType::kF32) {
    return Unimplemented("states=", DTypeName(optimizer.state_dtype()),
                         " cannot run in this version; use states=f32");
  }
  comm->logger().Log(LogLevel::kInfo, "rank ", comm->rank(), ": ",
                     plan->Summary());
  if (comm->logger().Wants(LogLevel::kDebug)) {
    comm->logger().Log(LogLevel::kDebug, plan->ToText());
  }

  std::unique_ptr<Engine> engine(
      new Engine(std::move(plan), comm, std::move(optimizer), timeout));
  SHARD_ASSIGN_OR_RETURN(engine->buffers_,
                         AllocateBuffers(*engine->plan_, comm.get(), deadline));
  engine->strategy_ =
      std::make_unique<DirectStep>(comm.get(), &engine->buffers_);
  return engine;
}

Engine::Engine(std::shared_ptr<const Plan> plan,
               std::shared_ptr<Communicator> comm, Optimizer optimizer,
               double timeout)
    : plan_(std::move(plan)),
      comm_(std::move(comm)),
      optimizer_(std::move(optimizer)),
      timeout_(timeout) {}

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
  return Tensor{buffer.param_data() + place->offset,
                plan_->model().params()[static_cast<size_t>(param)].numel};
}

StatusOr<Engine::Tensor> Engine::Grad(ParamId param) const {
  SHARD_ASSIGN_OR_RETURN(const ParamPlace* place, PlaceOf(param));
  const EngineBuffer& buffer = buffers_[static_cast<size_t>(place->buffer)];
  if (!buffer.plan->trainable) {
    return FailedPrecondition("parameter ", param,
                              " is frozen: it has no gradient");
  }
  return Tensor{buffer.grad_data(comm_->rank()) + place->offset,
                plan_->model().params()[static_cast<size_t>(param)].numel};
}

void Engine::ZeroGrad() {
  for (const EngineBuffer& buffer : buffers_) {
    if (!buffer.grads || buffer.grads->size() == 0) continue;
    std::memset(buffer.grads->region(comm_->rank()), 0, buffer.grads->size());
  }
}

Status Engine::SetParam(ParamId param, const void* data, size_t bytes) {
  SHARD_ASSIGN_OR_RETURN(const Tensor tensor, Param(param));
  const size_t expected = static_cast<size_t>(tensor.numel) * sizeof(float);
  if (bytes != expected) {
    return InvalidArgument("parameter ", param, " has ", expected, " bytes (",
                           tensor.numel, " elements of f32), not ", bytes);
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
  state_ = State::kTraining;
  return Status();
}

Status Engine::CheckStep(const StepOptions& options) const {
  if (state_ != State::kTraining) {
    return FailedPrecondition(
        "step needs parameters that were broadcast; the engine is still being "
        "filled: call broadcast_params first");
  }
  const struct {
    const char* name;
    double value;
  } fields[] = {{"lr", options.lr},
                {"max_grad_norm", options.max_grad_norm},
                {"grad_divisor", options.grad_divisor},
                {"loss_scale", options.loss_scale}};
  for (const auto& field : fields) {
    if (!std::isfinite(field.value) || field.value < 0) {
      return InvalidArgument("step option ", field.name, "=", field.value,
                             " is out of range; allowed: a finite number, "
                             "at least 0");
    }
  }
  const double scale = GradientScale(options);
  if (static_cast<float>(scale) == 0 ||
      !std::isfinite(static_cast<float>(scale))) {
    return InvalidArgument("grad_divisor * loss_scale = ", 1 / scale,
                           " leaves nothing of the gradients in fp32: their "
                           "scale would be ",
                           static_cast<float>(scale));
  }
  return Status();
}

double Engine::GradientScale(const StepOptions& options) const {
  const double divisor = options.grad_divisor > 0
                             ? options.grad_divisor
                             : static_cast<double>(comm_->world_size());
  const double loss_scale = options.loss_scale > 0 ? options.loss_scale : 1.0;
  return 1.0 / (divisor * loss_scale);
}

Status Engine::EnterStep(const StepOptions& options, const Status& local,
                         const Deadline& deadline) {
  StepEntry mine;
  mine.failed = local.ok() ? 0 : 1;
  mine.lr = options.lr;
  mine.max_grad_norm = options.max_grad_norm;
  mine.grad_divisor = options.grad_divisor;
  mine.loss_scale = options.loss_scale;
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
  return Status();
}

Status Engine::Step(const StatusOr<StepOptions>& given, StepReport* report) {
  *report = StepReport();
  const StepOptions options = given.ok() ? *given : StepOptions();
  const Deadline deadline = DeadlineOf(options.timeout);
  Stopwatch total(&report->seconds_total);
  {
    Stopwatch wait(&report->seconds_wait);
    SHARD_RETURN_IF_ERROR(EnterStep(
        options, given.ok() ? CheckStep(options) : given.status(), deadline));
  }
  if (options.lr > 0) SHARD_RETURN_IF_ERROR(optimizer_.Set("lr", options.lr));

  StepInput input;
  input.optimizer = &optimizer_;
  input.step = step_ + 1;
  input.gradient_scale = GradientScale(options);
  input.max_grad_norm = options.max_grad_norm;
  input.skip_nonfinite = options.skip_nonfinite;
  SHARD_RETURN_IF_ERROR(strategy_->Run(input, deadline, report));
  if (!report->skipped) ++step_;
  report->step = step_;
  return Status();
}

MemoryReport Engine::Memory() const {
  return MeasureMemory(buffers_, comm_->rank());
}

}  // namespace shard
