// SPDX-License-Identifier: Apache-2.0

#include "core/device/offload/host_updates.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/offload.h"
#include "core/base/parallel.h"
#include "core/device/event.h"
#include "core/device/offload/windows.h"
#include "core/device/stream.h"

namespace shard {

namespace {

// How often a thread that waits for copies looks whether its work is still
// wanted.
constexpr double kLookSeconds = 0.1;

// Waits for copies, but not once `ended` is set, and at most for `timeout`
// seconds.
Status Await(const Event& copied, double timeout,
             const std::atomic<bool>& ended) {
  const Deadline deadline = Deadline::After(timeout);
  while (!ended) {
    const Status status =
        copied.Synchronize(Deadline::After(std::min(timeout, kLookSeconds)));
    if (status.code() != StatusCode::kDeadlineExceeded) return status;
    if (deadline.Expired()) {
      return copied.Synchronize(deadline).WithContext(
          "copies of an offloaded update, which have the engine's timeout");
    }
  }
  return Cancelled("the stream of an update was ended");
}

// Returns the list without what updates alone use.
UpdateList NormsOf(const UpdateList& list) {
  UpdateList norms;
  norms.sources = list.sources;
  for (const UpdateRange& given : list.ranges) {
    UpdateRange range = given;
    range.formula = Formula::kSgd;
    range.master = nullptr;
    range.num_states = 0;
    range.states = {};
    range.scales = {};
    range.first_slice = range.num_slices = 0;
    range.is_tensor = false;
    range.first_tensor = 0;
    norms.ranges.push_back(range);
  }
  return norms;
}

}  // namespace

// A thread's windows, by range, and what it works with.
class HostUpdates::Lane {
 public:
  static StatusOr<std::unique_ptr<Lane>> Create(Device* device, Device* host,
                                                std::byte* staging,
                                                OffloadStaging::Slot slot,
                                                const UpdateList& list) {
    auto lane = std::make_unique<Lane>();
    lane->staging_ = staging;
    lane->slot_ = slot;
    lane->timeout_ = list.copy_timeout;
    lane->list_.workspace = list.workspace;
    SHARD_ASSIGN_OR_RETURN(lane->steps_,
                           host->CreateStream(StreamKind::kCompute));
    SHARD_ASSIGN_OR_RETURN(lane->copies_,
                           device->CreateStream(StreamKind::kCompute));
    return lane;
  }

  void BeginRange() { first_windows_.push_back(windows_.size()); }

  // Adds a window of the range that was begun last.
  void Add(const UpdateList& list, const UpdateRange& range,
           const Window& window) {
    std::byte* const slot = SlotOf(windows_.size());
    AddWindow(list, range, window, slot, slot + slot_.grad_bytes, &list_);
    std::byte* const param = static_cast<std::byte*>(range.param) +
                             window.begin * DTypeSize(range.param_dtype);
    windows_.push_back({window, param});
  }

  // Updates this lane's windows of a range.
  Status Run(size_t range, const StepBlock& block, const void* grads,
             const std::atomic<bool>& ended) {
    const size_t begin = first_windows_[range];
    const size_t end = range + 1 < first_windows_.size()
                           ? first_windows_[range + 1]
                           : windows_.size();
    std::array<Event, kOffloadSlots> fetched;
    const auto fetch = [&](size_t w) {
      fetched[w % kOffloadSlots] = Fetch(w, block, grads);
    };
    if (begin < end) fetch(begin);
    for (size_t w = begin; w < end; ++w) {
      if (w + 1 < end) fetch(w + 1);
      SHARD_RETURN_IF_ERROR(Await(fetched[w % kOffloadSlots], timeout_, ended));
      steps_->Update(list_, w, StepBlocks::Shared(&block), nullptr);
      SHARD_RETURN_IF_ERROR(steps_->status());
      Store(w);
    }
    return Await(copies_->Record(), timeout_, ended);
  }

 private:
  struct Placed {
    Window window;
    std::byte* param;  // The window's, on the device.
  };

  // Returns whether the step writes all elements of a window: it may leave
  // padding alone, and parameters that miss their gradients.
  bool WritesAll(const UpdateRange& window, const StepBlock& block) const {
    size_t written = 0;
    if (window.is_tensor) {
      for (const UpdateSlice& slice : list_.SlicesOf(window)) {
        const uint32_t row = block.RowOf(window.group, slice.position);
        if (row != kNotStepped) written += slice.count;
      }
    } else {
      ForEachRun(list_, window, block,
                 [&](size_t, size_t count, uint32_t, const UpdateSlice&) {
                   written += count;
                 });
    }
    return written == window.count;
  }

  std::byte* SlotOf(size_t window) const {
    return staging_ + window % kOffloadSlots * slot_.bytes();
  }

  Event Fetch(size_t w, const StepBlock& block, const void* grads) {
    const UpdateRange& range = list_.ranges[w];
    const Window& window = windows_[w].window;
    const size_t size = DTypeSize(range.source_dtype);
    copies_->Copy(range.own_grads,
                  static_cast<const std::byte*>(grads) + window.begin * size,
                  window.count * size);
    // Elements that the update does not write are stored as they were.
    if (range.master == nullptr || !WritesAll(range, block)) {
      copies_->Copy(range.param, windows_[w].param,
                    window.count * DTypeSize(range.param_dtype));
    }
    return copies_->Record();
  }

  void Store(size_t w) {
    const UpdateRange& range = list_.ranges[w];
    copies_->Copy(windows_[w].param, range.param,
                  windows_[w].window.count * DTypeSize(range.param_dtype));
  }

  std::byte* staging_ = nullptr;
  OffloadStaging::Slot slot_;
  double timeout_ = 0;  // Seconds, of a wait for copies.
  UpdateList list_;     // Each window is a range.
  std::vector<Placed> windows_;
  std::vector<size_t> first_windows_;  // By range.
  std::unique_ptr<Stream> steps_;
  std::unique_ptr<Stream> copies_;
};

HostUpdates::~HostUpdates() = default;

StatusOr<std::shared_ptr<HostUpdates>> HostUpdates::Make(
    Device* device, Device* host, const UpdateList& list) {
  std::shared_ptr<HostUpdates> made(new HostUpdates);
  made->norms_ = NormsOf(list);
  SHARD_RETURN_IF_ERROR(device->Prepare(&made->norms_));
  const OffloadStaging& staging = list.staging_layout;
  std::byte* at = list.staging;
  for (size_t t = 0; t < staging.threads; ++t) {
    const OffloadStaging::Slot& slot = t == 0 ? staging.first : staging.others;
    SHARD_ASSIGN_OR_RETURN(auto lane,
                           Lane::Create(device, host, at, slot, list));
    made->lanes_.push_back(std::move(lane));
    at += kOffloadSlots * slot.bytes();
  }
  for (const UpdateRange& range : list.ranges) {
    for (const auto& lane : made->lanes_) lane->BeginRange();
    const std::vector<Window> windows = WindowsOf(list, range, staging.window);
    const size_t lanes =
        std::min(windows.size(), range.is_tensor ? 1 : made->lanes_.size());
    made->num_lanes_.push_back(lanes);
    for (size_t w = 0; w < windows.size(); ++w) {
      made->lanes_[w % lanes]->Add(list, range, windows[w]);
    }
  }
  return made;
}

Status HostUpdates::Run(size_t range, const StepBlock& block, const void* grads,
                        const std::atomic<bool>& ended) {
  const size_t lanes = num_lanes_[range];
  if (block.skipped || lanes == 0) return Status();
  return ParallelFor(lanes, static_cast<int>(lanes), [&](size_t lane, int) {
    return lanes_[lane]->Run(range, block, grads, ended);
  });
}

}  // namespace shard
