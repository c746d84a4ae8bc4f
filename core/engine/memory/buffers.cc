// SPDX-License-Identifier: Apache-2.0

#include "core/engine/memory/buffers.h"

#include <string_view>
#include <utility>

namespace shard {

namespace {

static_assert(kSymmetricAlignment == kPageBytes);

uint64_t Pages(DType dtype, int64_t numel) {
  return RoundUpToPage(DTypeBytes(dtype, numel));
}

// Allocates the bytes of an arena one after the other; without memory, counts
// them.
class BumpAllocator {
 public:
  explicit BumpAllocator(unsigned char* base) : base_(base) {}

  unsigned char* Take(uint64_t bytes) {
    unsigned char* const at = base_ == nullptr ? nullptr : base_ + taken_;
    taken_ += bytes;
    return at;
  }
  uint64_t taken() const { return taken_; }

 private:
  unsigned char* base_;
  uint64_t taken_ = 0;
};

uint64_t SlotBytes(const std::vector<SlotPlan>& slots) {
  uint64_t bytes = 0;
  for (const SlotPlan& slot : slots) {
    bytes += slot.bytes * static_cast<uint64_t>(slot.count);
  }
  return bytes;
}

uint64_t SlotOffset(const std::vector<SlotPlan>& slots, int32_t depth,
                    int slot) {
  uint64_t offset = 0;
  for (int32_t d = 0; d < depth; ++d) {
    const SlotPlan& above = slots[static_cast<size_t>(d)];
    offset += above.bytes * static_cast<uint64_t>(above.count);
  }
  return offset +
         slots[static_cast<size_t>(depth)].bytes * static_cast<uint64_t>(slot);
}

// The sizes of all kinds of memory, and, given memory, the places in it.
struct BumpAllocators {
  BumpAllocator params{nullptr};
  std::vector<BumpAllocator> grads;  // By rank.
  BumpAllocator sums{nullptr};
  BumpAllocator states{nullptr};
};

// Visits all buffers in the order in which they lie.
void AllocateBuffers(const Plan& plan, bool shared, int rank,
                     BumpAllocators* from, std::vector<EngineBuffer>* buffers) {
  const bool sharded = plan.shards_params() && !shared;
  for (const FlatBufferPlan& planned : plan.buffers()) {
    EngineBuffer buffer;
    buffer.plan = &planned;
    const int64_t range = planned.layout.shard_numel();
    buffer.held_begin = sharded ? plan.FirstHeldRange(rank) * range : 0;
    buffer.held_numel =
        sharded ? plan.HeldRanges() * range : planned.layout.padded_numel();
    buffer.params = from->params.Take(Pages(planned.dtype, buffer.held_numel));
    if (planned.trainable) {
      const bool narrower = planned.sum_dtype != planned.grad_dtype;
      if (!plan.shards_grads()) {
        for (BumpAllocator& grads : from->grads) {
          buffer.grads.push_back(grads.Take(
              Pages(planned.grad_dtype, planned.layout.padded_numel())));
        }
      }
      if (plan.shards_grads() || (!shared && narrower)) {
        buffer.sum = from->sums.Take(Pages(planned.sum_dtype, range));
      }
      for (size_t s = 0; s < planned.states.size(); ++s) {
        buffer.states.push_back(
            from->states.Take(Pages(planned.states[s].tensor.dtype,
                                    planned.StateLayout(s).shard_numel())));
      }
    }
    if (buffers != nullptr) buffers->push_back(std::move(buffer));
  }
}

StatusOr<DeviceMemory> AllocateSome(Device* device, std::string_view what,
                                    uint64_t bytes) {
  if (bytes == 0) return DeviceMemory();
  return device->Allocate(bytes, what);
}

}  // namespace

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
                                              const Deadline& deadline) {
  EngineMemory memory;
  memory.plan_ = &plan;
  memory.rank_ = comm->rank();
  memory.shared_ = comm->direct();
  if (memory.shared_) {
    BumpAllocators sizes;
    sizes.grads.resize(1, BumpAllocator(nullptr));
    AllocateBuffers(plan, true, memory.rank_, &sizes, nullptr);
    SHARD_ASSIGN_OR_RETURN(
        memory.params_,
        AllocateVisible(comm, "allocate parameters", sizes.params.taken(),
                        SymmetricKind::kPerHost, deadline));
    SHARD_ASSIGN_OR_RETURN(
        memory.grads_,
        AllocateVisible(comm, "allocate gradients", sizes.grads[0].taken(),
                        SymmetricKind::kPerRank, deadline));
    SHARD_ASSIGN_OR_RETURN(memory.grad_slots_,
                           AllocateVisible(comm, "allocate gradient slots",
                                           SlotBytes(plan.grad_slots()),
                                           SymmetricKind::kPerRank, deadline));
  }
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm, "allocate private memory",
                                      memory.AllocatePrivate(plan, device),
                                      deadline));
  memory.PlaceBuffers(plan);
  return memory;
}

Status EngineMemory::AllocatePrivate(const Plan& plan, Device* device) {
  BumpAllocators sizes;
  sizes.grads.resize(1, BumpAllocator(nullptr));
  AllocateBuffers(plan, shared_, rank_, &sizes, nullptr);
  if (!shared_) {
    SHARD_ASSIGN_OR_RETURN(params_.pages, AllocateSome(device, "parameters",
                                                       sizes.params.taken()));
    SHARD_ASSIGN_OR_RETURN(grads_.pages, AllocateSome(device, "gradients",
                                                      sizes.grads[0].taken()));
    SHARD_ASSIGN_OR_RETURN(
        grad_slots_.pages,
        AllocateSome(device, "gradient slots", SlotBytes(plan.grad_slots())));
    SHARD_ASSIGN_OR_RETURN(
        param_slots_,
        AllocateSome(device, "parameter slots", SlotBytes(plan.param_slots())));
  }
  SHARD_ASSIGN_OR_RETURN(
      sums_, AllocateSome(device, "gradient sums", sizes.sums.taken()));
  SHARD_ASSIGN_OR_RETURN(
      states_, AllocateSome(device, "optimizer states", sizes.states.taken()));
  SHARD_ASSIGN_OR_RETURN(
      workspace_, AllocateSome(device, "workspace",
                               Pages(DType::kF32, plan.workspace_numel())));
  return Status();
}

void EngineMemory::PlaceBuffers(const Plan& plan) {
  BumpAllocators places;
  places.params = BumpAllocator(params_.base(0));
  const int regions = shared_ ? plan.options().world_size : 1;
  for (int r = 0; r < regions; ++r) {
    places.grads.push_back(BumpAllocator(grads_.base(r)));
  }
  places.sums = BumpAllocator(reinterpret_cast<unsigned char*>(sums_.data()));
  places.states =
      BumpAllocator(reinterpret_cast<unsigned char*>(states_.data()));
  buffers_.reserve(plan.buffers().size());
  AllocateBuffers(plan, shared_, rank_, &places, &buffers_);
  if (shared_) return;
  // Gradients are indexed by rank; only this rank's are here.
  for (EngineBuffer& buffer : buffers_) {
    if (buffer.grads.empty()) continue;
    unsigned char* const own = buffer.grads[0];
    buffer.grads.assign(static_cast<size_t>(plan.options().world_size),
                        nullptr);
    buffer.grads[static_cast<size_t>(rank_)] = own;
  }
}

unsigned char* EngineMemory::GradSlot(int rank, int32_t depth, int slot) const {
  return grad_slots_.base(rank) + SlotOffset(plan_->grad_slots(), depth, slot);
}

unsigned char* EngineMemory::ParamSlot(int32_t depth, int slot) const {
  return reinterpret_cast<unsigned char*>(param_slots_.data()) +
         SlotOffset(plan_->param_slots(), depth, slot);
}

MemoryReport EngineMemory::Measure() const {
  MemoryReport report;
  report.param_bytes = params_.bytes();
  report.grad_bytes = grads_.bytes() + RoundUpToPage(sums_.size());
  report.state_bytes = RoundUpToPage(states_.size());
  report.workspace_bytes = RoundUpToPage(workspace_.size());
  report.transient_bytes =
      grad_slots_.bytes() + RoundUpToPage(param_slots_.size());
  return report;
}

}  // namespace shard
