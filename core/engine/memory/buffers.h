// SPDX-License-Identifier: Apache-2.0
//
// EngineMemory: all memory of one rank's engine, allocated exactly as the plan
// predicts (Plan::Memory). One allocation per kind, in which every buffer
// begins at a page.
//
//                 ranks share memory            they do not
//   parameters    one SymmetricBuffer per host  all, or what this rank holds
//   gradients     a SymmetricBuffer per rank    private
//   grad slots    a SymmetricBuffer per rank    private
//   param slots   -                             private
//   sums, states  this rank's range: private
//   workspace     private

#ifndef SHARD_CORE_ENGINE_MEMORY_BUFFERS_H_
#define SHARD_CORE_ENGINE_MEMORY_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
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

  // The whole gradients by rank, those of other ranks only where memory is
  // shared. Empty when frozen, and where gradients are sharded.
  std::vector<unsigned char*> grads;

  // This rank's range of the summed gradients, in FlatBufferPlan::sum_dtype.
  // Null where it has no place of its own.
  unsigned char* sum = nullptr;

  // By FlatBufferPlan::states: this rank's range. Not read when it is empty.
  std::vector<unsigned char*> states;

  // REQUIRES: the element is held.
  void* ParamAt(int64_t element) const {
    return params + DTypeBytes(plan->dtype, element - held_begin);
  }
  // REQUIRES: grads has that rank's.
  void* GradAt(int rank, int64_t element) const {
    return grads[static_cast<size_t>(rank)] +
           DTypeBytes(plan->grad_dtype, element);
  }
};

class EngineMemory {
 public:
  // COLLECTIVE. `plan` and `device` must outlive the result.
  static StatusOr<EngineMemory> Allocate(const Plan& plan, Communicator* comm,
                                         Device* device,
                                         const Deadline& deadline);

  // One per plan buffer, in its order.
  const std::vector<EngineBuffer>& buffers() const { return buffers_; }
  // Plan::workspace_numel() elements.
  float* workspace() const {
    return reinterpret_cast<float*>(workspace_.data());
  }
  // Of a unit at `depth`. REQUIRES: 0 <= slot < the plan's count at that depth;
  // for `rank`, memory that is shared, or this rank itself.
  unsigned char* GradSlot(int rank, int32_t depth, int slot) const;
  unsigned char* ParamSlot(int32_t depth, int slot) const;

  // What is really allocated, in the plan's terms.
  MemoryReport Measure() const;

 private:
  // Memory that is private, or that peers see.
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
  Status AllocatePrivate(const Plan& plan, Device* device);
  void PlaceBuffers(const Plan& plan);

  const Plan* plan_ = nullptr;
  int rank_ = 0;
  bool shared_ = true;
  std::vector<EngineBuffer> buffers_;
  Arena params_;
  Arena grads_;
  Arena grad_slots_;
  DeviceMemory param_slots_;
  DeviceMemory sums_;
  DeviceMemory states_;
  DeviceMemory workspace_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_MEMORY_BUFFERS_H_
