// SPDX-License-Identifier: Apache-2.0

#include "core/engine/buffers.h"

#include <cstddef>
#include <utility>

namespace shard {

namespace {

size_t Bytes(int64_t numel, DType dtype) {
  return static_cast<size_t>(numel) * DTypeSize(dtype);
}

// What `bytes` cost in whole pages.
uint64_t PageBytes(size_t bytes) {
  return (bytes + kSymmetricAlignment - 1) / kSymmetricAlignment *
         kSymmetricAlignment;
}

// An empty region has a page of its own, for an address; it is no memory of
// the plan's.
uint64_t Resident(const SymmetricBuffer& buffer) {
  return buffer.size() == 0 ? 0 : buffer.resident_bytes();
}

// Private states of one buffer; local, so that its failure must be agreed on.
Status AllocatePrivateStates(const Plan& plan, EngineBuffer* buffer) {
  for (const StateTensor& state : plan.options().states) {
    const size_t bytes = Bytes(buffer->plan->layout.shard_numel(), state.dtype);
    if (bytes == 0) {
      buffer->states.push_back(nullptr);
      continue;
    }
    SHARD_ASSIGN_OR_RETURN(Mapping pages, Mapping::Anonymous(bytes));
    buffer->states.push_back(reinterpret_cast<float*>(pages.data()));
    buffer->private_states.push_back(std::move(pages));
  }
  return Status();
}

Status AllocateVisibleStates(const Plan& plan, Communicator* comm,
                             const Deadline& deadline, EngineBuffer* buffer) {
  for (const StateTensor& state : plan.options().states) {
    const size_t bytes = Bytes(buffer->plan->layout.shard_numel(), state.dtype);
    SHARD_ASSIGN_OR_RETURN(auto memory,
                           comm->Allocate("allocate optimizer states", bytes,
                                          SymmetricKind::kPerRank, deadline));
    buffer->states.push_back(
        reinterpret_cast<float*>(memory->region(comm->rank())));
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
    const size_t bytes = Bytes(planned.layout.padded_numel(), planned.dtype);
    SHARD_ASSIGN_OR_RETURN(buffer.params,
                           comm->Allocate("allocate parameters", bytes,
                                          SymmetricKind::kPerHost, deadline));
    if (planned.trainable) {
      SHARD_ASSIGN_OR_RETURN(buffer.grads,
                             comm->Allocate("allocate gradients", bytes,
                                            SymmetricKind::kPerRank, deadline));
      if (plan.options().stage == 0) {
        SHARD_RETURN_IF_ERROR(
            AllocateVisibleStates(plan, comm, deadline, &buffer));
      } else {
        SHARD_RETURN_IF_ERROR(
            AgreeOnStatus(comm, "allocate optimizer states",
                          AllocatePrivateStates(plan, &buffer), deadline));
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
    report.param_bytes +=
        rank == 0 ? Resident(*buffer.params) : PageBytes(buffer.params->size());
    if (buffer.grads) report.grad_bytes += Resident(*buffer.grads);
    for (const Mapping& pages : buffer.private_states) {
      report.state_bytes += PageBytes(pages.size());
    }
    for (const auto& memory : buffer.visible_states) {
      report.state_bytes += Resident(*memory);
    }
  }
  return report;
}

}  // namespace shard
