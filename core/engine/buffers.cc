// SPDX-License-Identifier: Apache-2.0

#include "core/engine/buffers.h"

#include <cstddef>
#include <utility>

namespace shard {

namespace {

// Of this rank's part of a state.
size_t StateBytes(const FlatBufferPlan& buffer, size_t state) {
  return DTypeBytes(buffer.states[state].tensor.dtype,
                    buffer.StateLayout(state).shard_numel());
}

static_assert(kSymmetricAlignment == kPageBytes);

// An empty region has a page of its own, for an address; it is no memory of
// the plan's.
uint64_t Resident(const SymmetricBuffer& buffer) {
  return buffer.size() == 0 ? 0 : buffer.resident_bytes();
}

// Private states of one buffer; local, so that its failure must be agreed on.
Status AllocatePrivateStates(EngineBuffer* buffer) {
  for (size_t s = 0; s < buffer->plan->states.size(); ++s) {
    const size_t bytes = StateBytes(*buffer->plan, s);
    if (bytes == 0) {
      buffer->states.push_back(nullptr);
      continue;
    }
    SHARD_ASSIGN_OR_RETURN(Mapping pages, Mapping::Anonymous(bytes));
    buffer->states.push_back(reinterpret_cast<unsigned char*>(pages.data()));
    buffer->private_states.push_back(std::move(pages));
  }
  return Status();
}

Status AllocateVisibleStates(Communicator* comm, const Deadline& deadline,
                             EngineBuffer* buffer) {
  for (size_t s = 0; s < buffer->plan->states.size(); ++s) {
    const size_t bytes = StateBytes(*buffer->plan, s);
    SHARD_ASSIGN_OR_RETURN(auto memory,
                           comm->Allocate("allocate optimizer states", bytes,
                                          SymmetricKind::kPerRank, deadline));
    buffer->states.push_back(
        reinterpret_cast<unsigned char*>(memory->region(comm->rank())));
    buffer->visible_states.push_back(std::move(memory));
  }
  return Status();
}

}  // namespace

StatusOr<std::vector<EngineBuffer>> AllocateBuffers(const Plan& plan,
                                                    Communicator* comm,
                                                    const Deadline& deadline) {
  std::vector<EngineBuffer> buffers;
  buffers.reserve(plan.buffers().size());
  for (const FlatBufferPlan& planned : plan.buffers()) {
    EngineBuffer buffer;
    buffer.plan = &planned;
    const int64_t numel = planned.layout.padded_numel();
    SHARD_ASSIGN_OR_RETURN(
        buffer.params,
        comm->Allocate("allocate parameters", DTypeBytes(planned.dtype, numel),
                       SymmetricKind::kPerHost, deadline));
    if (planned.trainable) {
      SHARD_ASSIGN_OR_RETURN(
          buffer.grads, comm->Allocate("allocate gradients",
                                       DTypeBytes(planned.grad_dtype, numel),
                                       SymmetricKind::kPerRank, deadline));
      if (plan.options().stage == 0) {
        SHARD_RETURN_IF_ERROR(AllocateVisibleStates(comm, deadline, &buffer));
      } else {
        SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm, "allocate optimizer states",
                                            AllocatePrivateStates(&buffer),
                                            deadline));
      }
    }
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

MemoryReport MeasureMemory(const std::vector<EngineBuffer>& buffers, int rank) {
  MemoryReport report;
  for (const EngineBuffer& buffer : buffers) {
    // Only one rank of a host is charged for what all of them share.
    report.param_bytes += rank == 0 ? Resident(*buffer.params)
                                    : RoundUpToPage(buffer.params->size());
    if (buffer.grads) report.grad_bytes += Resident(*buffer.grads);
    for (const Mapping& pages : buffer.private_states) {
      report.state_bytes += RoundUpToPage(pages.size());
    }
    for (const auto& memory : buffer.visible_states) {
      report.state_bytes += Resident(*memory);
    }
  }
  return report;
}

}  // namespace shard
