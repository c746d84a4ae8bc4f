// SPDX-License-Identifier: Apache-2.0
//
// Moment: when a device came to a point of a stream's work (Stream::Mark).
//
// A moment may outlive its stream and its device. Thread-safe.

#ifndef SHARD_CORE_DEVICE_MOMENT_H_
#define SHARD_CORE_DEVICE_MOMENT_H_

#include <cstdint>
#include <optional>

namespace shard {

class Moment {
 public:
  virtual ~Moment() = default;

  // Returns the time (core/base/monotonic_time.h) at which the device came
  // there, as its clock tells it; nothing while it has not, or where that is
  // not known. Blocks for a moment at most.
  virtual std::optional<int64_t> time() const = 0;

  // Returns whether the stream has failed, so that its work may not be done
  // whatever the device came to, or the device could not tell. Known once
  // time() was called.
  virtual bool is_dropped() const = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_MOMENT_H_
