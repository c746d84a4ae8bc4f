// SPDX-License-Identifier: Apache-2.0
//
// HostUpdates: the updates of an UpdateList whose states lie in the host's
// memory, and whose gradients and parameters in that of a device.
//
// A range is cut into windows, which threads of the host take in turn. A thread
// has a stream of the device for its copies, and two slots of staging memory:
//
//   stream   fetch 0 | fetch 1 |          store 0 | fetch 2 | store 1 | ...
//   thread             update 0           | update 1        | update 2 ...
//
// A fetch brings a window's gradients, and its parameters unless the update
// writes each of them from a master; a store takes its parameters back. Copies
// of one thread are in order, so a slot's store comes before its next fetch.
// The bytes that pass, per element: the gradient's, the parameter's, and once
// more the parameter's where it is fetched. A step that is skipped moves
// nothing.
//
// Optimizers of whole parameters have windows of whole parameters, all of them
// the first thread's: they share the workspace.
//
// The result has the bits of the kernels of the host.

#ifndef SHARD_CORE_DEVICE_OFFLOAD_HOST_UPDATES_H_
#define SHARD_CORE_DEVICE_OFFLOAD_HOST_UPDATES_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/device/step_block.h"
#include "core/device/update_list.h"

namespace shard {

class HostUpdates {
 public:
  // `device` has the gradients and parameters, `host` is the CPU. Both must
  // outlive the result, and so must the memory of `list`.
  static StatusOr<std::shared_ptr<HostUpdates>> Make(Device* device,
                                                     Device* host,
                                                     const UpdateList& list);
  ~HostUpdates();

  // Returns the updates of a list. REQUIRES: the list was made ready with Make.
  static HostUpdates* Of(const UpdateList& list) {
    // Lists keep their devices' forms as constants.
    return static_cast<HostUpdates*>(const_cast<void*>(list.prepared.get()));
  }

  // Returns the list as the device has it, for norms alone.
  const UpdateList& norms() const { return norms_; }

  // Updates a range, whose gradients lie at `grads` on the device, and blocks
  // until that is done, or until soon after `ended` is set: nobody then waits
  // for a device that hangs. Errors: kDeadlineExceeded where copies take longer
  // than UpdateList::copy_timeout. REQUIRES: the device has done all work on
  // the range; one thread at a time.
  Status Run(size_t range, const StepBlock& block, const void* grads,
             const std::atomic<bool>& ended);

 private:
  class Lane;

  HostUpdates() = default;

  UpdateList norms_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  // The number of lanes that update each range: the first ones.
  std::vector<size_t> num_lanes_;
};

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_OFFLOAD_HOST_UPDATES_H_
