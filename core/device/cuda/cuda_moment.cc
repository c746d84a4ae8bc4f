// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/cuda_moment.h"

#include <utility>

namespace shard::cuda {

StatusOr<std::shared_ptr<const Moment>> CudaMoment::Mark(
    const std::shared_ptr<StreamCore>& core, WorkQueue::Turn turn) {
  std::shared_ptr<const DeviceClock::Anchor> anchor;
  SHARD_RETURN_IF_ERROR(core->context()->Run([&] {
    SHARD_ASSIGN_OR_RETURN(anchor, core->context()->clock().Now());
    return Status();
  }));
  SHARD_ASSIGN_OR_RETURN(auto event,
                         CudaEvent::Record(core, turn, EventKind::kTimed));
  return std::shared_ptr<const Moment>(
      std::make_shared<CudaMoment>(std::move(anchor), std::move(event)));
}

std::optional<int64_t> CudaMoment::time() const {
  const StatusOr<std::optional<int64_t>> time = event_->TimeBy(*anchor_);
  if (time.ok()) return *time;
  is_dropped_.store(true, std::memory_order_relaxed);
  return std::nullopt;
}

}  // namespace shard::cuda
