// SPDX-License-Identifier: Apache-2.0

#include "core/engine/params/host_tensors.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/base/element_type.h"

namespace shard {

namespace {

constexpr const char* kPhase = "broadcast buffers of the model";

size_t BytesOf(const Plan& plan, HostTensorId id) {
  const auto& tensor = plan.model().host_tensors()[static_cast<size_t>(id)];
  return static_cast<size_t>(tensor.numel) * ElementSize(tensor.type);
}

}  // namespace

Status BroadcastHostTensors(const EngineRuntime& runtime, int root,
                            const Status& known, Communicator* comm,
                            const Deadline& deadline) {
  const Plan& plan = *runtime.plan();
  Status local = known;
  if (local.ok() && (root < 0 || root >= comm->world_size())) {
    local = InvalidArgument("root ", root, " is no rank; allowed: 0 to ",
                            comm->world_size() - 1);
  }
  Arguments arguments;
  if (local.ok()) {
    arguments = {"the rank whose buffers are broadcast",
                 [&](FactSink* sink) { sink->Add("", "root", root); }};
  }
  SHARD_RETURN_IF_ERROR(runtime.units().EnterChange(
      Activity::kBroadcastHostTensors, local, arguments, deadline));
  return SendHostTensors(plan, runtime.memory(), plan.host_tensors().walk, root,
                         comm, deadline);
}

Status SendHostTensors(const Plan& plan, const EngineMemory& memory,
                       std::span<const HostTensorId> ids, int root,
                       Communicator* comm, const Deadline& deadline) {
  constexpr size_t kPiece = size_t{16} << 20;
  // Neighbours in memory are sent at once: models have many small ones.
  for (size_t i = 0; i < ids.size();) {
    std::byte* const begin = memory.HostTensor(ids[i]);
    std::byte* end = begin;
    std::byte* next = begin;  // The place of a neighbour.
    for (; i < ids.size() && memory.HostTensor(ids[i]) == next; ++i) {
      end = next + BytesOf(plan, ids[i]);
      next += RoundUpToHostTensor(BytesOf(plan, ids[i]));
    }
    for (std::byte* at = begin; at < end; at += kPiece) {
      const size_t bytes = std::min(kPiece, static_cast<size_t>(end - at));
      SHARD_RETURN_IF_ERROR(comm->Broadcast(kPhase, root, at, bytes, deadline));
    }
  }
  return Status();
}

void ZeroHostTensors(const Plan& plan, const EngineMemory& memory,
                     std::span<const HostTensorId> ids) {
  for (const HostTensorId id : ids) {
    const size_t bytes = BytesOf(plan, id);
    if (bytes > 0) std::memset(memory.HostTensor(id), 0, bytes);
  }
}

}  // namespace shard
