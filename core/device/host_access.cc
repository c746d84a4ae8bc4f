// SPDX-License-Identifier: Apache-2.0

#include "core/device/host_access.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/device/stream.h"

namespace shard {

namespace {

constexpr size_t kHalf = HostAccess::kStagingBytes / 2;

// Cuts copies into pieces, as many at a time as fit into half of the staging
// memory.
class Batches {
 public:
  explicit Batches(std::span<const HostCopy> copies) : left_(copies) {}

  // Returns the next pieces, none of them empty; no pieces at the end.
  std::vector<HostCopy> Next() {
    std::vector<HostCopy> pieces;
    for (size_t room = kHalf; room > 0 && !left_.empty();) {
      const HostCopy& copy = left_.front();
      const size_t bytes = std::min(copy.bytes - done_, room);
      if (bytes > 0) {
        pieces.push_back({static_cast<std::byte*>(copy.to) + done_,
                          static_cast<const std::byte*>(copy.from) + done_,
                          bytes});
      }
      room -= bytes;
      done_ += bytes;
      if (done_ < copy.bytes) break;
      left_ = left_.subspan(1);
      done_ = 0;
    }
    return pieces;
  }

 private:
  std::span<const HostCopy> left_;
  size_t done_ = 0;  // Bytes of the first copy that is left.
};

void CopyInPlace(std::span<const HostCopy> copies) {
  for (const HostCopy& copy : copies) {
    if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
  }
}

}  // namespace

// A stream and its staging memory, for one thread at a time.
class HostAccess::Lane {
 public:
  static StatusOr<std::unique_ptr<Lane>> Create(Device* device) {
    auto lane = std::make_unique<Lane>();
    SHARD_ASSIGN_OR_RETURN(
        lane->staging_,
        device->AllocateHost(kStagingBytes, "staging memory for tensors"));
    SHARD_ASSIGN_OR_RETURN(lane->stream_,
                           device->CreateStream(StreamKind::kCompute));
    return lane;
  }

  Status Fetch(std::span<const HostCopy> copies, const Deadline& deadline) {
    Batches batches(copies);
    struct Half {
      std::vector<HostCopy> pieces;
      Event filled;
    };
    std::array<Half, 2> halves;
    const auto fill = [&](size_t half) {
      halves[half].pieces = batches.Next();
      std::byte* to = At(half);
      for (const HostCopy& piece : halves[half].pieces) {
        stream_->Copy(to, piece.from, piece.bytes);
        to += piece.bytes;
      }
      halves[half].filled = stream_->Record();
    };
    fill(0);
    for (size_t half = 0; !halves[half].pieces.empty(); half = 1 - half) {
      fill(1 - half);
      SHARD_RETURN_IF_ERROR(halves[half].filled.Synchronize(deadline));
      const std::byte* from = At(half);
      for (const HostCopy& piece : halves[half].pieces) {
        std::memcpy(piece.to, from, piece.bytes);
        from += piece.bytes;
      }
    }
    return Status();
  }

  Status Store(std::span<const HostCopy> copies, const Deadline& deadline) {
    Batches batches(copies);
    std::array<Event, 2> emptied;
    std::vector<HostCopy> pieces = batches.Next();
    for (size_t half = 0; !pieces.empty(); half = 1 - half) {
      SHARD_RETURN_IF_ERROR(emptied[half].Synchronize(deadline));
      std::byte* from = At(half);
      for (const HostCopy& piece : pieces) {
        std::memcpy(from, piece.from, piece.bytes);
        stream_->Copy(piece.to, from, piece.bytes);
        from += piece.bytes;
      }
      emptied[half] = stream_->Record();
      pieces = batches.Next();
    }
    return stream_->Synchronize(deadline);
  }

 private:
  std::byte* At(size_t half) const { return staging_.data() + half * kHalf; }

  DeviceMemory staging_;
  // Destroyed first: then no copy uses the staging memory any more.
  std::unique_ptr<Stream> stream_;
};

HostAccess::HostAccess(Device* device)
    : device_(device), in_place_(device->IsHostMemory()) {}

HostAccess::~HostAccess() = default;

StatusOr<std::unique_ptr<HostAccess>> HostAccess::Open(
    Device* device, const Event& after, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(after.Synchronize(deadline));
  return std::unique_ptr<HostAccess>(new HostAccess(device));
}

// The use of a lane by one thread.
class HostAccess::LaneUse {
 public:
  explicit LaneUse(HostAccess* access) : access_(access) {}
  ~LaneUse() {
    if (lane_ != nullptr && keeps_) {
      access_->ReturnLane(std::move(lane_));
    } else {
      Lose();
    }
  }
  LaneUse(const LaneUse&) = delete;
  LaneUse& operator=(const LaneUse&) = delete;

  // Takes an idle lane or makes one. Where there is no memory for it, waits for
  // one that other threads use, or for its memory.
  Status Take(const Deadline& deadline) {
    for (;;) {
      uint64_t num_dropped = 0;
      {
        const std::lock_guard<std::mutex> lock(access_->mutex_);
        if (TakeIdle()) return Status();
        access_->idle_.reserve(access_->num_lanes_ + 1);
        ++access_->num_lanes_;
        is_counted_ = true;
        num_dropped = access_->num_dropped_;
      }
      auto made = Lane::Create(access_->device_);
      if (made.ok()) {
        lane_ = *std::move(made);
        return Status();
      }
      Lose();
      if (made.status().code() != StatusCode::kResourceExhausted) {
        return made.status();
      }
      std::unique_lock<std::mutex> lock(access_->mutex_);
      access_->returned_.wait_for(lock, deadline.Remaining(), [this] {
        return !access_->idle_.empty() || access_->num_lanes_ == 0;
      });
      if (TakeIdle()) return Status();
      // No lane is left, and the memory of one that was dropped is free.
      const bool is_free =
          access_->num_lanes_ == 0 && access_->num_dropped_ != num_dropped;
      if (!is_free) return made.status();
    }
  }

  Lane* lane() const { return lane_.get(); }
  // The lane is used again: a lane whose copy fails or throws is not.
  void Keep() { keeps_ = true; }

 private:
  // REQUIRES: the mutex is held.
  bool TakeIdle() {
    std::vector<std::unique_ptr<Lane>>& idle = access_->idle_;
    if (idle.empty()) return false;
    lane_ = std::move(idle.back());
    idle.pop_back();
    is_counted_ = true;
    return true;
  }
  void Lose() {
    if (!is_counted_) return;
    is_counted_ = false;
    const bool was_made = lane_ != nullptr;
    lane_.reset();
    access_->LoseLane(was_made);
  }

  HostAccess* const access_;
  std::unique_ptr<Lane> lane_;
  bool is_counted_ = false;  // In num_lanes_.
  bool keeps_ = false;
};

void HostAccess::ReturnLane(std::unique_ptr<Lane> lane) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(lane));
  returned_.notify_all();
}

void HostAccess::LoseLane(bool was_made) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  --num_lanes_;
  if (was_made) ++num_dropped_;
  returned_.notify_all();
}

Status HostAccess::Reserve() {
  if (in_place_) return Status();
  LaneUse use(this);
  SHARD_RETURN_IF_ERROR(use.Take(Deadline::After(0)));
  use.Keep();
  return Status();
}

Status HostAccess::ReserveFor(const void* tensor) {
  return device_->IsOffloaded(tensor) ? Status() : Reserve();
}

Status HostAccess::Copy(std::span<const HostCopy> copies, LaneCopy copy,
                        const Deadline& deadline) {
  if (in_place_) {
    CopyInPlace(copies);
    return Status();
  }
  if (copies.empty()) return Status();
  LaneUse use(this);
  SHARD_RETURN_IF_ERROR(use.Take(deadline));
  SHARD_RETURN_IF_ERROR((use.lane()->*copy)(copies, deadline));
  use.Keep();
  return Status();
}

template <typename Side>
std::vector<HostCopy> HostAccess::CopyOffloaded(
    std::span<const HostCopy> copies, Side HostCopy::*tensor) const {
  std::vector<HostCopy> others;
  for (const HostCopy& copy : copies) {
    if (copy.bytes == 0) continue;
    if (device_->IsOffloaded(copy.*tensor)) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    } else {
      others.push_back(copy);
    }
  }
  return others;
}

Status HostAccess::Fetch(std::span<const HostCopy> copies,
                         const Deadline& deadline) {
  if (in_place_ || device_->offload() == nullptr) {
    return Copy(copies, &Lane::Fetch, deadline);
  }
  return Copy(CopyOffloaded(copies, &HostCopy::from), &Lane::Fetch, deadline);
}

Status HostAccess::Store(std::span<const HostCopy> copies,
                         const Deadline& deadline) {
  if (in_place_ || device_->offload() == nullptr) {
    return Copy(copies, &Lane::Store, deadline);
  }
  return Copy(CopyOffloaded(copies, &HostCopy::to), &Lane::Store, deadline);
}

StatusOr<const void*> HostAccess::ForKernels(const void* from, size_t bytes,
                                             DeviceMemory* copy,
                                             const Deadline& deadline) {
  if (in_place_ || bytes == 0) return from;
  SHARD_ASSIGN_OR_RETURN(*copy, device_->Allocate(bytes, "values for kernels"));
  const HostCopy whole = {copy->data(), from, bytes};
  SHARD_RETURN_IF_ERROR(Store({&whole, 1}, deadline));
  return static_cast<const void*>(copy->data());
}

}  // namespace shard
