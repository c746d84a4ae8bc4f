// SPDX-License-Identifier: Apache-2.0
//
// PinnedMemory: memory of the host that stays in place, which a device reaches
// too. The driver frees it only when the device has done all of its work, so
// small pieces are kept for the next allocation instead.
//
// Thread-safe. The memory keeps the object.

#ifndef SHARD_CORE_DEVICE_CUDA_PINNED_MEMORY_H_
#define SHARD_CORE_DEVICE_CUDA_PINNED_MEMORY_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>

#include "core/base/status.h"
#include "core/device/cuda/context.h"
#include "core/device/device.h"

namespace shard::cuda {

class PinnedMemory : public std::enable_shared_from_this<PinnedMemory> {
 public:
  static std::shared_ptr<PinnedMemory> Create(std::shared_ptr<Context> context);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // As Device::AllocateHost. REQUIRES: a std::shared_ptr owns this.
  StatusOr<DeviceMemory> Allocate(size_t bytes, std::string_view what);

 private:
  using Pieces = std::multimap<size_t, void*>;  // By size.
  class Piece;

  explicit PinnedMemory(std::shared_ptr<Context> context)
      : context_(std::move(context)) {}

  // Takes a piece of at least `bytes` bytes from those that are kept, or makes
  // one.
  StatusOr<Pieces::node_type> Take(size_t bytes, std::string_view what);
  // Makes a piece, for which the ones that are kept are freed where there is no
  // room else.
  Status Make(size_t bytes, void** memory);
  // Keeps a piece that no work uses any more, or frees it.
  void Return(Pieces::node_type piece) noexcept;
  void FreeKept() noexcept;

  const std::shared_ptr<Context> context_;
  std::mutex mutex_;
  Pieces kept_;            // GUARDED_BY(mutex_)
  size_t kept_bytes_ = 0;  // GUARDED_BY(mutex_)
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_PINNED_MEMORY_H_
