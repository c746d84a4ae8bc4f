// SPDX-License-Identifier: Apache-2.0
//
// PeerStep: a step that is one launch on the GPU of each rank, for each formula
// of elements. The kernel adds the gradients of all ranks, in rank order and in
// fp32, where they lie; updates this rank's range; and stores the parameters on
// all GPUs. The kernels of the ranks meet before and after that
// (kernels/cuda/peers.h).
//
// Between W GPUs pass (W - 1) (g + p) bytes for each element of a rank's range,
// with gradients of g bytes and parameters of p. A reduction and a gather send
// as many, and write and read sums and parameters once more.

#ifndef SHARD_CORE_ENGINE_STEP_PEER_STEP_H_
#define SHARD_CORE_ENGINE_STEP_PEER_STEP_H_

#include <memory>
#include <string>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/device/update_list.h"
#include "core/engine/memory/buffers.h"
#include "core/flat/plan.h"

namespace shard {

class PeerStep {
 public:
  struct Dependencies {
    const Plan* plan;
    const EngineMemory* memory;
    Communicator* comm;
    Collectives* collectives;
    Device* device;
    bool allow_missing;  // Gradients may be missing.
    bool overlap;
  };

  // Finds the memory of the other ranks. COLLECTIVE. `deps` must outlive the
  // result.
  static StatusOr<std::unique_ptr<PeerStep>> Create(const Dependencies& deps,
                                                    const Deadline& deadline);

  // Returns why the steps of this plan are not one launch, the same on all
  // ranks; "" where steps are one launch that need no norm and before which no
  // unit was reduced.
  const std::string& why_not() const { return why_not_; }
  // Returns the update of such a step. REQUIRES: why_not() is "".
  const UpdateList& list() const { return list_; }
  // Returns the memory with which the kernels meet: none unless why_not() is
  // "".
  CollectivesMemory memory() const {
    return {.device_bytes = flags_.size(), .host_bytes = waits_.size()};
  }
  // Ends the waits of this rank's kernels for those of others, and the use of
  // the others' memory, for good: when this returns no kernel uses that memory,
  // unless the GPU has not come to the kernel's end within 10 s. Any thread,
  // once the streams of such kernels have failed.
  void EndWaits() noexcept;

 private:
  PeerStep() = default;

  Status Prepare(const Dependencies& deps, const PeerMemory& found);

  std::string why_not_;
  DeviceMemory flags_;
  DeviceMemory waits_;
  UpdateList list_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_PEER_STEP_H_
