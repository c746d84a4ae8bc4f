// SPDX-License-Identifier: Apache-2.0
//
// EngineMemory: all memory of one rank's engine, laid out by LayOutMemory. Each
// kind of memory is one allocation, in which every buffer begins at a page.
//
//                 ranks share memory            they do not
//   parameters    one SymmetricBuffer per host  all: one per host where its
//                                               ranks share that; or what this
//                                               rank holds
//   gradients     a SymmetricBuffer per rank    private
//   grad slots    a SymmetricBuffer per rank    private
//   param slots   -                             private, or one SymmetricBuffer
//                                               per host (MayShareSlots)
//   sums, states  this rank's range: private
//   workspace     private
//   staging       private, the host's: where states are offloaded
//   host tensors  private, and kept when the plan changes

#ifndef SHARD_CORE_ENGINE_MEMORY_BUFFERS_H_
#define SHARD_CORE_ENGINE_MEMORY_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/offload.h"
#include "core/base/status.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/flat/memory_layout.h"
#include "core/flat/plan.h"

namespace shard {

// The memory of one FlatBufferPlan; pointers into EngineMemory.
struct EngineBuffer {
  const FlatBufferPlan* plan = nullptr;

  // Elements [held_begin, held_begin + held_numel) of the parameters: all of
  // them, unless they are sharded.
  unsigned char* params = nullptr;
  int64_t held_begin = 0;
  int64_t held_numel = 0;

  // The whole gradients, by rank; other ranks' gradients only where memory is
  // shared. Empty when frozen, and where gradients are sharded.
  std::vector<unsigned char*> grads;

  // This rank's range of the summed gradients, in FlatBufferPlan::sum_dtype.
  // Null where the sum has no memory of its own.
  unsigned char* sum = nullptr;

  // This rank's range of each state, by FlatBufferPlan::states. Not read when
  // the range is empty.
  std::vector<unsigned char*> states;

  // Returns the address of a parameter's element. REQUIRES: the element is
  // held.
  void* ParamAt(int64_t element) const {
    return params + DTypeBytes(plan->dtype, element - held_begin);
  }
  // Returns the address of a gradient's element on `rank`. REQUIRES: grads has
  // that rank's.
  void* GradAt(int rank, int64_t element) const {
    return grads[static_cast<size_t>(rank)] +
           DTypeBytes(plan->grad_dtype, element);
  }
};

// Returns the processor of a device.
constexpr Processor ProcessorOf(DeviceId::Kind kind) {
  return kind == DeviceId::Kind::kCpu ? Processor::kCpu : Processor::kGpu;
}

// Returns whether the ranks of a host have one copy of the parameters. `comm`:
// the engine's.
bool SharesParams(const Communicator& comm, const Device& device,
                  const Plan& plan);

// Returns whether the ranks of this host have one copy of each slot of gathered
// parameters, if those of all hosts may: all are in one shard group, and gather
// the same at the same time.
bool MayShareSlots(const Communicator& comm, const Device& device,
                   const Plan& plan);

// Returns an error of `device`, for an engine of `plan` on `comm`, that some
// memory was refused: with what the plan needs of the device's own in all.
// Returns other statuses as they are.
Status WithNeededMemory(const Status& status, const Plan& plan,
                        const Communicator& comm, const Device& device);

class EngineMemory {
 public:
  // Allocates the memory of `plan`, what collectives move by `collectives`.
  // COLLECTIVE. `plan` and `device` must outlive the result. `before` is null,
  // or the memory that this one replaces, for a plan with the same host
  // tensors: both have one copy of these.
  static StatusOr<EngineMemory> Allocate(const Plan& plan, Communicator* comm,
                                         Device* device,
                                         Collectives* collectives,
                                         const EngineMemory* before,
                                         const Deadline& deadline);

  // Returns the buffers, in the plan's order.
  const std::vector<EngineBuffer>& buffers() const { return buffers_; }
  // Returns one of them, as Plan::buffer does. REQUIRES: a valid index.
  const EngineBuffer& buffer(int32_t index) const {
    return buffers_[static_cast<size_t>(index)];
  }
  // Returns whether the ranks of a host have one copy of the parameters.
  bool shares_params() const { return shares_params_; }
  // Returns whether they have one copy of the slots of gathered parameters.
  bool shares_slots() const { return param_slots_.visible != nullptr; }
  // Returns the elements of a buffer that this rank writes where each rank has
  // the values of all: its part of the host's copy, or all that it holds.
  struct Elements {
    int64_t begin;
    int64_t end;
  };
  Elements WrittenOf(const EngineBuffer& buffer) const;

  // Return the allocations of the parameters and of the whole gradients; none
  // of what is shared. REQUIRES: ranks do not share memory.
  const DeviceMemory& params() const { return params_.pages; }
  const DeviceMemory& grads() const { return grads_.pages; }
  // Returns the processor that steps the parameters, and the workspace that it
  // needs.
  Processor stepper() const { return stepper_; }
  float* workspace() const {
    return reinterpret_cast<float*>(workspace_.data());
  }
  // Returns the memory through which offloaded updates pass, and its layout.
  std::byte* staging() const { return staging_.data(); }
  const OffloadStaging& staging_layout() const { return staging_layout_; }
  // Return the slot's memory for a unit at `depth`. REQUIRES: 0 <= slot < the
  // plan's count at that depth; for `rank`, memory that is shared, or this rank
  // itself.
  unsigned char* GradSlot(int rank, int32_t depth, int slot) const;
  unsigned char* ParamSlot(int32_t depth, int slot) const;

  // Returns this rank's copy of a host tensor. REQUIRES: a valid id of one that
  // the plan stores.
  std::byte* HostTensor(HostTensorId id) const {
    return host_tensors_->data() + plan_->host_tensors().OffsetOf(id);
  }

  // Returns whether any of this memory, peers' regions included, lies in
  // `memory`.
  bool Overlaps(std::span<const std::byte> memory) const;

  // Returns the bytes that are really allocated, in the plan's terms.
  MemoryReport Measure() const;

 private:
  // One allocation, private or visible to peers.
  struct Arena {
    DeviceMemory pages;
    std::shared_ptr<SymmetricBuffer> visible;

    unsigned char* base(int rank) const;
    uint64_t bytes() const;
  };

  static StatusOr<Arena> AllocateVisible(Communicator* comm,
                                         std::string_view what, uint64_t bytes,
                                         SymmetricKind kind,
                                         const Deadline& deadline);
  // Allocates the slots of gathered parameters where the ranks of each host
  // share them.
  Status AllocateSlots(uint64_t bytes, Communicator* comm, const Device& device,
                       const Deadline& deadline);
  // `with_arenas`: the memory that others see elsewhere is private, too, but
  // for what AllocateVisible has made.
  Status AllocatePrivate(const MemorySizes& sizes, bool with_arenas,
                         Communicator* comm, Device* device,
                         Collectives* collectives);
  Status AllocateTensors(const MemorySizes& sizes, bool with_arenas,
                         Device* device, Collectives* collectives);
  void PlaceBuffers(const Plan& plan);

  const Plan* plan_ = nullptr;
  int rank_ = 0;
  bool shared_ = true;
  bool shares_params_ = true;
  // This rank's number on its host, and the number of ranks there.
  int local_rank_ = 0;
  int local_ranks_ = 1;
  Processor stepper_ = Processor::kCpu;
  std::vector<EngineBuffer> buffers_;
  Arena params_;
  Arena grads_;
  Arena grad_slots_;
  Arena param_slots_;
  DeviceMemory sums_;
  DeviceMemory states_;
  DeviceMemory workspace_;
  DeviceMemory staging_;
  OffloadStaging staging_layout_;
  bool offloads_states_ = false;
  // Shared with the memory that replaces this one, so that the host's pointers
  // stay valid.
  std::shared_ptr<const DeviceMemory> host_tensors_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_MEMORY_BUFFERS_H_
