// SPDX-License-Identifier: Apache-2.0
//
// StreamGuard: waits on destruction until all work of a stream has run. Declare
// it after the memory that the stream's work uses: then neither a return with
// an error nor an exception when memory runs out frees that memory too early.

#ifndef SHARD_CORE_DEVICE_STREAM_GUARD_H_
#define SHARD_CORE_DEVICE_STREAM_GUARD_H_

#include <limits>

#include "core/base/deadline.h"
#include "core/device/stream.h"

namespace shard {

class StreamGuard {
 public:
  // `stream` must outlive the guard.
  explicit StreamGuard(Stream* stream) : stream_(stream) {}
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

  ~StreamGuard() {
    // The stream's work ends by itself.
    constexpr double kForever = std::numeric_limits<double>::infinity();
    stream_->Settle(Deadline::After(kForever));
  }

 private:
  Stream* const stream_;
};

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_STREAM_GUARD_H_
