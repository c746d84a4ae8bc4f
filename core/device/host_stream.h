// SPDX-License-Identifier: Apache-2.0
//
// HostStream: the stream of the host's own work (Device::WrapStream), which the
// host may replace by another one. Who orders work with the host's keeps a
// pointer to this object, and never to the stream in it.
//
// Nothing is enqueued here but waits: the stream's work is the host's.
//
// Thread-compatible, as a stream.

#ifndef SHARD_CORE_DEVICE_HOST_STREAM_H_
#define SHARD_CORE_DEVICE_HOST_STREAM_H_

#include <functional>
#include <memory>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/event.h"
#include "core/device/stream.h"

namespace shard {

class HostStream {
 public:
  // REQUIRES: `stream` is not null.
  explicit HostStream(std::shared_ptr<Stream> stream)
      : stream_(std::move(stream)) {}
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // Puts `stream`, of the same device, in place of the present one. Its next
  // work comes after all work of the present one. On an error, which is the
  // present stream's or that of the deadline, the present stream stays. A later
  // error of the present stream becomes one of `stream`.
  Status Replace(std::shared_ptr<Stream> stream, const Deadline& deadline) {
    SHARD_RETURN_IF_ERROR(stream_->status());
    SHARD_RETURN_IF_ERROR(stream_->CheckNotCaptured());
    stream->Wait(stream_->Record(), deadline);
    SHARD_RETURN_IF_ERROR(stream->status());
    stream_ = std::move(stream);
    return Status();
  }

  // Returns the present stream, which is valid until the next Replace.
  Stream* get() const { return stream_.get(); }

  // Sets what knows why the host's work may not have ended by a deadline, which
  // has passed; null: nothing.
  using Explain = std::function<Status(const Deadline& deadline)>;
  void ExplainLate(Explain explain) { explain_ = std::move(explain); }

  // As the functions of Stream.
  Event Record() { return stream_->Record(); }
  void Wait(const Event& event, const Deadline& deadline) {
    stream_->Wait(event, deadline);
  }
  // An error of the deadline is that of ExplainLate, where that has one.
  Status Synchronize(const Deadline& deadline) {
    const Status done = stream_->Synchronize(deadline);
    if (done.code() != StatusCode::kDeadlineExceeded || !explain_) return done;
    const Status why = explain_(deadline);
    return why.ok() ? stream_->Synchronize(deadline) : why;
  }
  void Settle(const Deadline& deadline) noexcept { stream_->Settle(deadline); }
  Status CheckNotCaptured() const { return stream_->CheckNotCaptured(); }
  Status status() const { return stream_->status(); }

 private:
  std::shared_ptr<Stream> stream_;
  Explain explain_;
};

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_HOST_STREAM_H_
