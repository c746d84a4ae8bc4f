// SPDX-License-Identifier: Apache-2.0
//
// CudaMoment: a moment that the device's clock tells. No thread of the host
// waits for the device to come there.

#ifndef SHARD_CORE_DEVICE_CUDA_CUDA_MOMENT_H_
#define SHARD_CORE_DEVICE_CUDA_CUDA_MOMENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/device/cuda/cuda_event.h"
#include "core/device/cuda/device_clock.h"
#include "core/device/cuda/stream_core.h"
#include "core/device/moment.h"

namespace shard::cuda {

class CudaMoment final : public Moment {
 public:
  // Marks the moment after all that the stream was given so far. `since`: of
  // this device, or null.
  static std::shared_ptr<const Moment> Mark(
      const std::shared_ptr<StreamCore>& core, const CudaMoment* since);

  std::optional<int64_t> time() const override;
  bool is_dropped() const override {
    return is_dropped_.load(std::memory_order_relaxed);
  }

 private:
  // Null: the time could not be taken.
  std::shared_ptr<const CudaEvent> event_;
  // Uses the context, which the event keeps.
  std::shared_ptr<const DeviceClock::Anchor> anchor_;
  mutable std::atomic<bool> is_dropped_ = false;  // Found by time().
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_CUDA_MOMENT_H_
