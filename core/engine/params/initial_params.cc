// SPDX-License-Identifier: Apache-2.0

#include "core/engine/params/initial_params.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/base/dtype.h"
#include "core/collectives/collectives.h"
#include "core/device/stream_guard.h"
#include "core/engine/memory/param_place.h"
#include "core/engine/params/open_access.h"
#include "core/engine/transfer/ok_or_abort.h"

namespace shard {

namespace {

constexpr const char* kPhase = "broadcast parameters";
constexpr int64_t kPiece = 1 << 20;  // Bytes.
// A broadcast to hosts has larger ones: its rounds follow each other without a
// wait.
constexpr size_t kHostPiece = 16 << 20;

}  // namespace

Status FillMasters(const EngineRuntime& runtime, Communicator* comm,
                   const Deadline& deadline) {
  Stream& compute = runtime.compute();
  const int range = runtime.plan()->RangeOf(comm->rank());
  for (const EngineBuffer& buffer : runtime.memory().buffers()) {
    if (!buffer.plan->trainable || !buffer.plan->has_masters) continue;
    const int64_t count = buffer.plan->layout.shard_numel();
    compute.Widen(buffer.plan->dtype, buffer.ParamAt(range * count),
                  reinterpret_cast<float*>(buffer.states.back()),
                  static_cast<size_t>(count));
  }
  return OkOrAbort(comm, compute.Synchronize(deadline));
}

Status InitialParams::Set(const EngineRuntime& runtime, ParamId param,
                          const void* data, size_t bytes,
                          const Deadline& deadline) {
  const Plan& plan = *runtime.plan();
  SHARD_ASSIGN_OR_RETURN(const ParamPlace* place, PlaceOf(plan, param));
  const auto index = static_cast<size_t>(place->buffer);
  const EngineBuffer& buffer = runtime.memory().buffers()[index];
  const DType dtype = buffer.plan->dtype;
  const int64_t numel = NumelOf(plan, param);
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
  if (!runtime.units().gathers()) {
    SHARD_ASSIGN_OR_RETURN(HostAccess* const access, Access(runtime, deadline));
    const HostCopy copy = {buffer.ParamAt(place->offset), data, bytes};
    return access->Store({&copy, 1}, deadline);
  }
  filled_.resize(runtime.memory().buffers().size());
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

Status InitialParams::Broadcast(const EngineRuntime& runtime,
                                const Status& known, const Deadline& deadline) {
  Status local = known;
  if (!filling_) {
    local = FailedPrecondition(
        "parameters were broadcast before; the engine is training");
  }
  // The meeting comes after all that rank 0's host writes, and is the barrier
  // after which all ranks see rank 0's values, where memory is shared.
  SHARD_RETURN_IF_ERROR(runtime.units().EnterChange(
      Activity::kBroadcastParams, local, Arguments(), deadline));
  if (!comm_->direct())
    SHARD_RETURN_IF_ERROR(BroadcastValues(runtime, deadline));
  SHARD_RETURN_IF_ERROR(FillMasters(runtime, comm_, deadline));
  Finish();
  return Status();
}

void InitialParams::Finish() {
  filled_.clear();
  access_ = nullptr;
  filling_ = false;
}

void InitialParams::StartFilling() {
  access_ = nullptr;
  filling_ = true;
}

StatusOr<HostAccess*> InitialParams::Access(const EngineRuntime& runtime,
                                            const Deadline& deadline) {
  if (access_ == nullptr) {
    SHARD_ASSIGN_OR_RETURN(access_, OpenAccess(runtime, device_, deadline));
  } else {
    SHARD_RETURN_IF_ERROR(runtime.host().Synchronize(deadline));
    SHARD_RETURN_IF_ERROR(runtime.compute().Synchronize(deadline));
  }
  return access_.get();
}

Status InitialParams::BroadcastValues(const EngineRuntime& runtime,
                                      const Deadline& deadline) {
  const CollectiveDeadline scope(&runtime.collectives(), deadline);
  const std::vector<EngineBuffer>& buffers = runtime.memory().buffers();
  if (runtime.memory().shares_params()) {
    return BroadcastToHosts(runtime, deadline);
  }
  if (!runtime.units().gathers()) {
    for (const EngineBuffer& buffer : buffers) {
      const size_t bytes =
          DTypeBytes(buffer.plan->dtype, buffer.plan->layout.padded_numel());
      if (bytes == 0) continue;
      runtime.collectives().Broadcast(kPhase, 0, buffer.params, bytes,
                                      &runtime.compute());
    }
    return Status();
  }
  // Rank 0's stays zero, for parameters that were not set.
  auto piece = device_->AllocateHost(kPiece, "a piece of parameters");
  const auto access = Access(runtime, deadline);
  Status local = piece.status();
  if (local.ok()) local = access.status();
  if (local.ok()) local = (*access)->Reserve();
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm_, kPhase, local, deadline));
  for (size_t b = 0; b < buffers.size(); ++b) {
    const EngineBuffer& buffer = buffers[b];
    const auto size = static_cast<int64_t>(DTypeSize(buffer.plan->dtype));
    const int64_t bytes = buffer.plan->layout.padded_numel() * size;
    const bool set = b < filled_.size() && filled_[b].data() != nullptr;
    const int64_t held_begin = buffer.held_begin * size;
    const int64_t held_end = held_begin + buffer.held_numel * size;
    for (int64_t at = 0; at < bytes; at += kPiece) {
      const int64_t end = std::min(at + kPiece, bytes);
      std::byte* const data = set ? filled_[b].data() + at : piece->data();
      SHARD_RETURN_IF_ERROR(comm_->Broadcast(
          kPhase, 0, data, static_cast<size_t>(end - at), deadline));
      const int64_t from = std::max(at, held_begin);
      const int64_t to = std::min(end, held_end);
      if (from >= to) continue;
      const HostCopy copy = {buffer.params + (from - held_begin),
                             data + (from - at),
                             static_cast<size_t>(to - from)};
      SHARD_RETURN_IF_ERROR(
          OkOrAbort(comm_, (*access)->Store({&copy, 1}, deadline)));
    }
  }
  return Status();
}

Status InitialParams::BroadcastToHosts(const EngineRuntime& runtime,
                                       const Deadline& deadline) {
  const auto piece = device_->AllocateHost(kHostPiece, "a piece of parameters");
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm_, kPhase, piece.status(), deadline));
  const StreamGuard guard(&runtime.compute());
  // Rank 0 has the values, and is the first one on its host. Ranks that are not
  // the first drop what they receive.
  const bool is_first = comm_->local_rank() == 0;
  for (const EngineBuffer& buffer : runtime.memory().buffers()) {
    const size_t bytes =
        DTypeBytes(buffer.plan->dtype, buffer.plan->layout.padded_numel());
    for (size_t at = 0; at < bytes; at += kHostPiece) {
      void* const data = is_first ? static_cast<void*>(buffer.params + at)
                                  : static_cast<void*>(piece->data());
      runtime.collectives().Broadcast(kPhase, 0, data,
                                      std::min(kHostPiece, bytes - at),
                                      &runtime.compute());
    }
  }
  SHARD_RETURN_IF_ERROR(
      OkOrAbort(comm_, runtime.compute().Synchronize(deadline)));
  return comm_->Barrier("parameters are on all hosts", deadline);
}

}  // namespace shard
