// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/supported.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string_view>
#include <vector>

#include "core/base/host_memory.h"
#include "core/state/manifest_bound.h"

namespace shard {

namespace {

// Returns the middle of the time that is left: the other half is for telling
// the other ranks, which wait, of what was found.
Deadline HalfOf(const Deadline& deadline) {
  const std::chrono::duration<double> left = deadline.Remaining();
  return Deadline::After(left.count() / 2);
}

// Returns kResourceExhausted where the plan does not fit.
Status CheckRooms(const Plan& plan, const RankPlacement& placement,
                  const Rooms& rooms, const ReplacedPlan* before,
                  const Deadline& deadline) {
  const std::string misfit =
      ExplainMisfit(plan, placement, rooms, HalfOf(deadline), before);
  return misfit.empty() ? Status() : ResourceExhausted(misfit);
}

// Returns the most that a plan may need for all ranks to have room for it.
// `mine`: for one rank, here. COLLECTIVE.
StatusOr<MemoryNeed> LeastOfRanks(Communicator* comm, std::string_view phase,
                                  const MemoryNeed& mine,
                                  const Deadline& deadline) {
  std::vector<MemoryNeed> all(static_cast<size_t>(comm->world_size()));
  SHARD_RETURN_IF_ERROR(
      comm->AllGather(phase, &mine, sizeof(mine), all.data(), deadline));
  MemoryNeed least = mine;
  for (const MemoryNeed& each : all) {
    least.device = std::min(least.device, each.device);
    least.host = std::min(least.host, each.host);
  }
  return least;
}

}  // namespace

RankPlacement PlacementOf(const Communicator& comm, const Device& device,
                          Transport transport, bool allow_missing,
                          bool one_kernel) {
  return {.shares_tensors = SharesTensors(comm, device),
          .shares_host = comm.shares_host() && device.IsHostMemory(),
          .first_on_host = comm.rank() - comm.local_rank(),
          .device = device.name(),
          .has_device_memory = device.id().kind != DeviceId::Kind::kCpu,
          .has_staging = !device.IsHostMemory(),
          .transport = transport,
          .one_kernel = one_kernel,
          .offload = device.offload(),
          .allow_missing = allow_missing,
          .ranks_on_host = comm.local_world_size()};
}

Status CheckSupported(const Plan& plan, const Communicator& comm,
                      const RankPlacement& placement,
                      const ReplacedPlan* before, const Deadline& deadline) {
  const PlanOptions& options = plan.options();
  if (options.world_size != comm.world_size()) {
    return InvalidArgument("the plan is for world size ", options.world_size,
                           ", the communicator has ", comm.world_size());
  }
  // Checks all memory at once: each allocation alone may fit, and the kernel
  // grants pages that it does not have.
  if (!placement.has_device_memory) {
    SHARD_RETURN_IF_ERROR(CheckRooms(
        plan, placement, {.host = AvailableHostMemory()}, before, deadline));
  }
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
                         RankPlacement placement, const ReplacedPlan* before,
                         const Deadline& deadline) {
  // CheckSupported has looked at the host's memory.
  if (!placement.has_device_memory) return Status();
  constexpr std::string_view kPhase = "look at the memory of devices";
  using MemoryId = decltype(MemoryRoom::id);
  const auto look = [&] { return device->FindMemoryRoom(HalfOf(deadline)); };
  auto room = look();
  const MemoryId mine = room.ok() ? room->id : MemoryId();
  std::vector<MemoryId> all(static_cast<size_t>(comm->world_size()));
  SHARD_RETURN_IF_ERROR(
      comm->AllGather(kPhase, &mine, sizeof(mine), all.data(), deadline));
  // A process gives back what it keeps of freed memory when it looks, so that
  // only a second look finds what all the others kept.
  if (room.ok()) room = look();
  Status local = room.status();
  const auto ranks_on_host = static_cast<uint64_t>(placement.ranks_on_host);
  Rooms rooms = {.host = AvailableHostMemory()};
  MemoryNeed per_rank = {UINT64_MAX, rooms.host / ranks_on_host};
  if (local.ok()) {
    // No rank allocates before all have looked, so each must leave room for the
    // others.
    placement.ranks_on_device =
        static_cast<int>(std::count(all.begin(), all.end(), mine));
    rooms.device = DeviceRoom{.free = room->free, .total = room->total};
    per_rank.device =
        room->free / static_cast<uint64_t>(placement.ranks_on_device);
  }
  // One rank's error is that of all, so its options must fit everywhere.
  SHARD_ASSIGN_OR_RETURN(rooms.least,
                         LeastOfRanks(comm, kPhase, per_rank, deadline));
  rooms.least->host *= ranks_on_host;
  if (local.ok()) local = CheckRooms(plan, placement, rooms, before, deadline);
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
