// SPDX-License-Identifier: Apache-2.0

#include "core/engine/memory/buffers.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/strings.h"

namespace shard {

namespace {

static_assert(kSymmetricAlignment == kPageBytes);

unsigned char* BytesOf(const DeviceMemory& memory) {
  return reinterpret_cast<unsigned char*>(memory.data());
}

}  // namespace

bool SharesParams(const Communicator& comm, const Device& device,
                  const Plan& plan) {
  return comm.direct() ||
         (comm.shares_host() && device.IsHostMemory() && !plan.shards_params());
}

bool MayShareSlots(const Communicator& comm, const Device& device,
                   const Plan& plan) {
  if (comm.direct() || !comm.shares_host() || !device.IsHostMemory() ||
      !plan.shards_params()) {
    return false;
  }
  // The ranks of a host are adjacent, as those of a group.
  return plan.AreInOneShardGroup(comm.rank() - comm.local_rank(),
                                 comm.local_world_size());
}

Status WithNeededMemory(const Status& status, const Plan& plan,
                        const Communicator& comm, const Device& device) {
  if (status.code() != StatusCode::kResourceExhausted ||
      device.id().kind == DeviceId::Kind::kCpu) {
    return status;
  }
  const MemoryReport needed = plan.Memory(comm.direct(), device.offload(),
                                          ProcessorOf(device.id().kind));
  return status.WithContext(
      StrCat("a plan that needs ", FormatBytes(needed.DeviceTotal()), " on ",
             device.name(),
             device.offload() == nullptr
                 ? ""
                 : StrCat(", and ", FormatBytes(needed.PinnedTotal()),
                          " of the host's memory")));
}

unsigned char* EngineMemory::Arena::base(int rank) const {
  std::byte* const at = visible ? visible->region(rank) : pages.data();
  return reinterpret_cast<unsigned char*>(at);
}

uint64_t EngineMemory::Arena::bytes() const {
  return RoundUpToPage(visible ? visible->size() : pages.size());
}

StatusOr<EngineMemory::Arena> EngineMemory::AllocateVisible(
    Communicator* comm, std::string_view what, uint64_t bytes,
    SymmetricKind kind, const Deadline& deadline) {
  Arena arena;
  if (bytes == 0) return arena;
  SHARD_ASSIGN_OR_RETURN(arena.visible,
                         comm->Allocate(what, bytes, kind, deadline));
  return arena;
}

StatusOr<EngineMemory> EngineMemory::Allocate(const Plan& plan,
                                              Communicator* comm,
                                              Device* device,
                                              Collectives* collectives,
                                              const EngineMemory* before,
                                              const Deadline& deadline) {
  EngineMemory memory;
  if (before != nullptr) memory.host_tensors_ = before->host_tensors_;
  memory.plan_ = &plan;
  memory.rank_ = comm->rank();
  memory.shared_ = comm->direct();
  memory.stepper_ =
      StepperOf(ProcessorOf(device->id().kind), device->offload());
  const MemorySizes sizes = LayOutMemory(plan, memory.shared_, memory.stepper_);
  memory.staging_layout_ = StagingOf(plan, memory.shared_, device->offload());
  memory.offloads_states_ = device->offload() != nullptr;
  memory.shares_params_ = SharesParams(*comm, *device, plan);
  memory.local_rank_ = comm->local_rank();
  memory.local_ranks_ = comm->local_world_size();
  // One rank on an accelerator has its tensors there.
  const bool is_visible = memory.shared_ && device->ReachesSharedMemory();
  if (is_visible || (memory.shares_params_ && !memory.shared_)) {
    SHARD_ASSIGN_OR_RETURN(
        memory.params_,
        AllocateVisible(comm, "allocate parameters", sizes.params,
                        SymmetricKind::kPerHost, deadline));
  }
  if (is_visible) {
    SHARD_ASSIGN_OR_RETURN(
        memory.grads_, AllocateVisible(comm, "allocate gradients", sizes.grads,
                                       SymmetricKind::kPerRank, deadline));
    SHARD_ASSIGN_OR_RETURN(
        memory.grad_slots_,
        AllocateVisible(comm, "allocate gradient slots", sizes.grad_slots,
                        SymmetricKind::kPerRank, deadline));
  }
  SHARD_RETURN_IF_ERROR(
      memory.AllocateSlots(sizes.param_slots, comm, *device, deadline));
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(
      comm, "allocate private memory",
      memory.AllocatePrivate(sizes, !is_visible, comm, device, collectives),
      deadline));
  memory.PlaceBuffers(plan);
  return memory;
}

Status EngineMemory::AllocateSlots(uint64_t bytes, Communicator* comm,
                                   const Device& device,
                                   const Deadline& deadline) {
  if (comm->direct() || !comm->shares_host() || !plan_->shards_params()) {
    return Status();
  }
  // The ranks of some hosts may be in several groups, and of others in one.
  const char may_share = MayShareSlots(*comm, device, *plan_) ? 1 : 0;
  std::vector<char> all(static_cast<size_t>(comm->world_size()));
  SHARD_RETURN_IF_ERROR(
      comm->AllGather("share slots", &may_share, 1, all.data(), deadline));
  if (std::ranges::count(all, 0) > 0) return Status();
  SHARD_ASSIGN_OR_RETURN(
      param_slots_, AllocateVisible(comm, "allocate parameter slots", bytes,
                                    SymmetricKind::kPerHost, deadline));
  return Status();
}

Status EngineMemory::AllocatePrivate(const MemorySizes& sizes, bool with_arenas,
                                     Communicator* comm, Device* device,
                                     Collectives* collectives) {
  SHARD_RETURN_IF_ERROR(
      WithNeededMemory(AllocateTensors(sizes, with_arenas, device, collectives),
                       *plan_, *comm, *device));
  if (host_tensors_ != nullptr) return Status();
  DeviceMemory host_tensors;
  if (sizes.host_tensors > 0) {
    SHARD_ASSIGN_OR_RETURN(
        host_tensors,
        device->AllocateHost(sizes.host_tensors, "buffers of the model"));
  }
  host_tensors_ = std::make_shared<const DeviceMemory>(std::move(host_tensors));
  return Status();
}

Status EngineMemory::AllocateTensors(const MemorySizes& sizes, bool with_arenas,
                                     Device* device, Collectives* collectives) {
  const auto allocate = [&](std::string_view what, uint64_t bytes) {
    return bytes == 0 ? StatusOr<DeviceMemory>(DeviceMemory())
                      : collectives->Allocate(device, bytes, what);
  };
  if (with_arenas && params_.visible == nullptr) {
    SHARD_ASSIGN_OR_RETURN(params_.pages, allocate("parameters", sizes.params));
  }
  if (with_arenas) {
    SHARD_ASSIGN_OR_RETURN(grads_.pages, allocate("gradients", sizes.grads));
    SHARD_ASSIGN_OR_RETURN(grad_slots_.pages,
                           allocate("gradient slots", sizes.grad_slots));
  }
  if (with_arenas && param_slots_.visible == nullptr) {
    SHARD_ASSIGN_OR_RETURN(param_slots_.pages,
                           allocate("parameter slots", sizes.param_slots));
  }
  SHARD_ASSIGN_OR_RETURN(sums_, allocate("gradient sums", sizes.sums));
  const auto allocate_states = [&](std::string_view what, uint64_t bytes) {
    return bytes == 0 ? StatusOr<DeviceMemory>(DeviceMemory())
                      : device->AllocateStates(bytes, what);
  };
  SHARD_ASSIGN_OR_RETURN(states_,
                         allocate_states("optimizer states", sizes.states));
  SHARD_ASSIGN_OR_RETURN(workspace_,
                         allocate_states("workspace", sizes.workspace));
  SHARD_ASSIGN_OR_RETURN(staging_,
                         allocate_states("staging memory of offloaded updates",
                                         staging_layout_.bytes()));
  return Status();
}

void EngineMemory::PlaceBuffers(const Plan& plan) {
  const auto place = [this, &plan](const FlatBufferPlan& planned,
                                   const BufferOffsets& at) {
    const bool sharded = plan.shards_params() && !shared_;
    const int64_t range = planned.layout.shard_numel();
    EngineBuffer& buffer = buffers_.emplace_back();
    buffer.plan = &planned;
    buffer.held_begin = sharded ? plan.FirstHeldRange(rank_) * range : 0;
    buffer.held_numel =
        sharded ? plan.HeldRanges() * range : planned.layout.padded_numel();
    buffer.params = params_.base(0) + at.params;
    if (at.grads) {
      for (int r = 0; r < plan.options().world_size; ++r) {
        const bool is_here = shared_ || r == rank_;
        buffer.grads.push_back(is_here ? grads_.base(r) + *at.grads : nullptr);
      }
    }
    if (at.sum) buffer.sum = BytesOf(sums_) + *at.sum;
    for (const uint64_t state : at.states) {
      buffer.states.push_back(BytesOf(states_) + state);
    }
  };
  buffers_.reserve(plan.buffers().size());
  LayOutMemory(plan, shared_, stepper_, place);
}

EngineMemory::Elements EngineMemory::WrittenOf(
    const EngineBuffer& buffer) const {
  if (!shares_params_) {
    return {buffer.held_begin, buffer.held_begin + buffer.held_numel};
  }
  const auto part = [&](int64_t index) {
    return buffer.held_numel / local_ranks_ * index +
           std::min<int64_t>(index, buffer.held_numel % local_ranks_);
  };
  return {part(local_rank_), part(local_rank_ + 1)};
}

unsigned char* EngineMemory::GradSlot(int rank, int32_t depth, int slot) const {
  return grad_slots_.base(rank) + SlotOffset(plan_->grad_slots(), depth, slot);
}

unsigned char* EngineMemory::ParamSlot(int32_t depth, int slot) const {
  return param_slots_.base(0) + SlotOffset(plan_->param_slots(), depth, slot);
}

bool EngineMemory::Overlaps(std::span<const std::byte> memory) const {
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  const auto overlaps = [&](const void* base, uint64_t bytes) {
    const auto from = reinterpret_cast<uintptr_t>(base);
    return from < begin + memory.size() && begin < from + bytes;
  };
  for (const Arena* arena : {&params_, &grads_, &grad_slots_, &param_slots_}) {
    const int regions = arena->visible ? plan_->options().world_size : 1;
    for (int r = 0; r < regions; ++r) {
      if (overlaps(arena->base(r), arena->bytes())) return true;
    }
  }
  for (const DeviceMemory* pages :
       {&sums_, &states_, &workspace_, &staging_, host_tensors_.get()}) {
    if (overlaps(pages->data(), RoundUpToPage(pages->size()))) return true;
  }
  return false;
}

MemoryReport EngineMemory::Measure() const {
  MemoryReport report;
  report.param_bytes = params_.bytes();
  report.grad_bytes = grads_.bytes() + RoundUpToPage(sums_.size());
  report.state_bytes = RoundUpToPage(states_.size());
  report.workspace_bytes = RoundUpToPage(workspace_.size());
  report.param_slot_bytes = param_slots_.bytes();
  report.transient_bytes = grad_slots_.bytes() + report.param_slot_bytes;
  report.host_tensor_bytes = RoundUpToPage(host_tensors_->size());
  report.staging_bytes = RoundUpToPage(staging_.size());
  report.offloads_states = offloads_states_;
  return report;
}

}  // namespace shard
