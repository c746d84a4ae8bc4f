// SPDX-License-Identifier: Apache-2.0
//
// Memory: the memory of a device, and memory of the host that the device
// reaches, too (pinned_memory.h). Allocating and freeing wait for no other work
// of the device, where the driver has memory pools: both go in the order of a
// stream of their own.
//
// Thread-safe. The memory may outlive the object.

#ifndef SHARD_CORE_DEVICE_CUDA_MEMORY_H_
#define SHARD_CORE_DEVICE_CUDA_MEMORY_H_

#include <cstddef>
#include <memory>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/cuda/context.h"
#include "core/device/cuda/pinned_memory.h"
#include "core/device/device.h"

namespace shard::cuda {

class Memory {
 public:
  static StatusOr<Memory> Open(std::shared_ptr<Context> context);

  // As Device::Allocate and Device::AllocateHost.
  StatusOr<DeviceMemory> Allocate(size_t bytes, std::string_view what) const;
  StatusOr<DeviceMemory> AllocateHost(size_t bytes,
                                      std::string_view what) const {
    return pinned_->Allocate(bytes, what);
  }

  // As Device::FindMemoryRoom.
  StatusOr<MemoryRoom> FindRoom(const Deadline& deadline) const;

  // Allocates memory of the device with a copy of the host's `bytes` bytes at
  // `from`.
  StatusOr<DeviceMemory> Upload(const void* from, size_t bytes,
                                std::string_view what) const;

 private:
  class Pool;

  // Allocates memory, and fills it with zeros, or with a copy.
  StatusOr<DeviceMemory> AllocateFilled(size_t bytes, const void* from,
                                        std::string_view what) const;

  std::shared_ptr<Pool> pool_;
  std::shared_ptr<PinnedMemory> pinned_;
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_MEMORY_H_
