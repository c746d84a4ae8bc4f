// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/assembly.h"

#include <utility>

namespace shard {

StatusOr<std::unique_ptr<Assembly>> Assembly::Create(
    std::shared_ptr<const Plan> plan, Communicator* comm, Device* device,
    const Options& options, const Deadline& deadline) {
  std::unique_ptr<Assembly> assembly(new Assembly);
  assembly->plan_ = std::move(plan);
  SHARD_ASSIGN_OR_RETURN(
      EngineMemory memory,
      EngineMemory::Allocate(*assembly->plan_, comm, device, deadline));
  assembly->memory_.emplace(std::move(memory));
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm, "start streams",
                                      assembly->Connect(comm, device, options),
                                      deadline));
  return assembly;
}

void Assembly::WaitForStreams(const Deadline& deadline) const noexcept {
  const auto wait = [](const auto& work) {
    try {
      (void)work().ok();
    } catch (...) {  // NOLINT: no memory for the text of an error
    }
  };
  wait([&] { return queue_->Drain(deadline); });
  wait([&] { return ahead_->Synchronize(deadline); });
  wait([&] { return compute_->Synchronize(deadline); });
}

Status Assembly::Connect(Communicator* comm, Device* device,
                         const Options& options) {
  SHARD_ASSIGN_OR_RETURN(compute_, device->CreateStream(StreamKind::kCompute));
  SHARD_ASSIGN_OR_RETURN(ahead_, device->CreateStream(StreamKind::kCompute));
  SHARD_ASSIGN_OR_RETURN(auto communication,
                         device->CreateStream(StreamKind::kCommunication));
  SHARD_ASSIGN_OR_RETURN(transfers_,
                         MakeTransfers(*plan_, *memory_, comm, device));
  queue_ = std::make_unique<CommQueue>(
      comm, device, compute_.get(), std::move(communication), options.timeout);
  Units::Parts unit_parts;
  unit_parts.plan = plan_.get();
  unit_parts.memory = &*memory_;
  unit_parts.comm = comm;
  unit_parts.device = device;
  unit_parts.compute = compute_.get();
  unit_parts.transfers = transfers_.get();
  unit_parts.queue = queue_.get();
  unit_parts.timeout = options.timeout;
  unit_parts.allow_missing = options.allow_missing;
  units_ = std::make_unique<Units>(unit_parts);
  Stepper::Parts step_parts;
  step_parts.plan = plan_.get();
  step_parts.memory = &*memory_;
  step_parts.comm = comm;
  step_parts.device = device;
  step_parts.compute = compute_.get();
  step_parts.ahead = ahead_.get();
  step_parts.transfers = transfers_.get();
  step_parts.queue = queue_.get();
  step_parts.units = units_.get();
  step_parts.overlap =
      options.overlap && !comm->direct() && !plan_->shards_params();
  step_parts.timeout = options.timeout;
  SHARD_ASSIGN_OR_RETURN(stepper_, Stepper::Create(step_parts));
  return Status();
}

}  // namespace shard
