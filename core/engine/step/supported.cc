// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/supported.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string_view>
#include <vector>

#include "core/base/host_memory.h"
#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/state/manifest_bound.h"

namespace shard {

uint64_t HostBytesToAllocate(const Plan& plan, const Communicator& comm,
                             const Device& device, const Plan* before) {
  const bool shared = SharesTensors(comm, device);
  MemoryReport memory = plan.Memory(shared, device.offload());
  // Another plan keeps the host tensors and the collectives.
  if (before != nullptr) {
    memory.host_tensor_bytes = 0;
  } else if (!device.IsHostMemory()) {
    memory.host_tensor_bytes += RoundUpToPage(StagingBytes(comm.world_size()));
  }
  if (device.id().kind != DeviceId::Kind::kCpu) {
    memory = {.host_tensor_bytes = memory.PinnedTotal()};
  }
  return memory.HostTotal(comm.local_world_size(), shared);
}

Status CheckSupported(const Plan& plan, const Communicator& comm,
                      const Device& device, const Plan* before) {
  const PlanOptions& options = plan.options();
  if (options.world_size != comm.world_size()) {
    return InvalidArgument("the plan is for world size ", options.world_size,
                           ", the communicator has ", comm.world_size());
  }
  // Checks all memory at once: each allocation alone may fit, and the kernel
  // grants pages that it does not have.
  SHARD_RETURN_IF_ERROR(CheckHostMemory(
      HostBytesToAllocate(plan, comm, device, before), kShardFurther));
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

Status CheckDeviceMemory(const Plan& plan, Communicator* comm, Device* device,
                         const Deadline& deadline) {
  // CheckSupported has looked at the host's memory.
  if (device->id().kind == DeviceId::Kind::kCpu) return Status();
  constexpr std::string_view kPhase = "look at the memory of devices";
  using MemoryId = decltype(MemoryRoom::id);
  // Half of the time is left to tell the others of a device that does not work.
  const auto look = [&] {
    const std::chrono::duration<double> left = deadline.Remaining();
    return device->FindMemoryRoom(Deadline::After(left.count() / 2));
  };
  auto room = look();
  const MemoryId mine = room.ok() ? room->id : MemoryId();
  std::vector<MemoryId> all(static_cast<size_t>(comm->world_size()));
  SHARD_RETURN_IF_ERROR(
      comm->AllGather(kPhase, &mine, sizeof(mine), all.data(), deadline));
  // A process gives back what it keeps of freed memory when it looks, so that
  // only a second look finds what all the others kept.
  if (room.ok()) room = look();
  Status local = room.status();
  if (local.ok()) {
    // No rank allocates before all have looked, so each must leave room for the
    // others.
    const auto ranks =
        static_cast<uint64_t>(std::count(all.begin(), all.end(), mine));
    const uint64_t bytes =
        plan.Memory(SharesTensors(*comm, *device), device->offload())
            .DeviceTotal();
    if (bytes > room->free / ranks) {
      local = ResourceExhausted(
          "the plan needs ", FormatBytes(bytes), " (", bytes, " bytes) ",
          ranks == 1 ? "" : StrCat("for each of ", ranks, " ranks "), "on ",
          device->name(), ", which has ", FormatBytes(room->free), " free of ",
          FormatBytes(room->total),
          "; shard it over more ranks, use a higher stage, or keep optimizer "
          "states in 16 or 8 bits (see shardctl plan)");
    }
  }
  return AgreeOnStatus(comm, kPhase, local, deadline);
}

StatusOr<std::string> FindBlas(const Plan& plan, const Hypers& hypers,
                               Device* device) {
  const bool needed = std::any_of(
      plan.buffers().begin(), plan.buffers().end(),
      [&](const FlatBufferPlan& buffer) {
        const auto group = static_cast<size_t>(buffer.group);
        return buffer.trainable &&
               hypers.optimizers()[group].formula() == Formula::kMuon;
      });
  if (!needed) return std::string();
  return device->LoadBlas();
}

}  // namespace shard
