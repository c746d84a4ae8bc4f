// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/cuda_moment.h"

namespace shard::cuda {

std::shared_ptr<const Moment> CudaMoment::Mark(
    const std::shared_ptr<StreamCore>& core, const CudaMoment* since) {
  const auto made = std::make_shared<CudaMoment>();
  const WorkQueue::Turn turn = core->turn();
  if (turn == WorkQueue::Turn::kNever) return made;
  if (since != nullptr) made->anchor_ = since->anchor_;
  const Status anchored = core->context()->Run([&] {
    if (made->anchor_ != nullptr) return Status();
    SHARD_ASSIGN_OR_RETURN(made->anchor_, core->context()->clock().Now());
    return Status();
  });
  if (!anchored.ok()) return made;
  auto event = CudaEvent::Record(core, turn, EventKind::kTimed);
  if (event.ok()) {
    made->event_ = *std::move(event);
  } else {
    made->anchor_.reset();
  }
  return made;
}

std::optional<int64_t> CudaMoment::time() const {
  std::optional<int64_t> told;
  bool dropped = event_ == nullptr;
  if (!dropped) {
    const auto time = event_->TimeBy(*anchor_);
    dropped = !time.ok() || event_->is_poisoned();
    if (time.ok()) told = *time;
  }
  if (dropped) is_dropped_.store(true, std::memory_order_relaxed);
  return told;
}

}  // namespace shard::cuda
