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
#include <utility>

#include "core/base/status.h"
#include "core/device/cuda/cuda_event.h"
#include "core/device/cuda/device_clock.h"
#include "core/device/cuda/stream_core.h"
#include "core/device/moment.h"

namespace shard::cuda {

class CudaMoment final : public Moment {
 public:
  // As CudaEvent::Record.
  static StatusOr<std::shared_ptr<const Moment>> Mark(
      const std::shared_ptr<StreamCore>& core, WorkQueue::Turn turn);
  CudaMoment(std::shared_ptr<const DeviceClock::Anchor> anchor,
             std::shared_ptr<const CudaEvent> event)
      : event_(std::move(event)), anchor_(std::move(anchor)) {}

  std::optional<int64_t> time() const override;
  bool is_dropped() const override {
    return is_dropped_.load(std::memory_order_relaxed);
  }

 private:
  // The anchor uses the context, which the event keeps.
  const std::shared_ptr<const CudaEvent> event_;
  const std::shared_ptr<const DeviceClock::Anchor> anchor_;
  mutable std::atomic<bool> is_dropped_ = false;  // Found by time().
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_CUDA_MOMENT_H_
