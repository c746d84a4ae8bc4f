// SPDX-License-Identifier: Apache-2.0
//
// Moment: when a stream came to a point of its work (Stream::Mark).
//
// A moment may outlive its stream and its device. Thread-safe.

#ifndef SHARD_CORE_DEVICE_MOMENT_H_
#define SHARD_CORE_DEVICE_MOMENT_H_

#include <atomic>
#include <cstdint>
#include <optional>

namespace shard {

class Moment {
 public:
  virtual ~Moment() = default;

  // Returns the time (core/base/monotonic_time.h) at which the stream came
  // there; nothing while it has not, or where that is not known. Does not
  // block.
  virtual std::optional<int64_t> time() const = 0;

  // Returns whether there will never be a time: the stream has failed before,
  // or the device could not tell.
  virtual bool is_dropped() const = 0;
};

// A moment of a stream whose work a thread of the host does.
class HostMoment final : public Moment {
 public:
  void Set(int64_t time) { time_.store(time, std::memory_order_release); }
  // Drops the moment, unless the stream has come there.
  void Drop() {
    int64_t expected = kUnknown;
    time_.compare_exchange_strong(expected, kDropped);
  }

  std::optional<int64_t> time() const override {
    const int64_t time = time_.load(std::memory_order_acquire);
    if (time == kUnknown || time == kDropped) return std::nullopt;
    return time;
  }
  bool is_dropped() const override { return time_.load() == kDropped; }

 private:
  static constexpr int64_t kUnknown = -1;
  static constexpr int64_t kDropped = -2;

  std::atomic<int64_t> time_ = kUnknown;
};

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_MOMENT_H_
