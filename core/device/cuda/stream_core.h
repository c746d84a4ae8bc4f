// SPDX-License-Identifier: Apache-2.0
//
// StreamCore: the driver's stream behind a CudaStream, the queue of what waits
// behind a Call, and the stream's error. Events of the stream share it, since
// they may outlive the stream and may find its error.

#ifndef SHARD_CORE_DEVICE_CUDA_STREAM_CORE_H_
#define SHARD_CORE_DEVICE_CUDA_STREAM_CORE_H_

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/cuda/context.h"
#include "core/device/work_queue/work_queue.h"

namespace shard::cuda {

class StreamCore {
 public:
  // Makes a stream of the driver, with a queue. `name` must outlive it.
  static StatusOr<std::shared_ptr<StreamCore>> Create(
      std::shared_ptr<Context> context, std::string_view name);
  // Wraps a stream of the host, which has no queue.
  static std::shared_ptr<StreamCore> Wrap(std::shared_ptr<Context> context,
                                          CuStream native,
                                          std::string_view name);
  ~StreamCore();
  StreamCore(const StreamCore&) = delete;
  StreamCore& operator=(const StreamCore&) = delete;

  // Ends the stream: drops what has not begun, and waits for what has, as
  // Settle. Only events use the core after it.
  void End() noexcept;
  // Waits until the device has done, or dropped, all that the driver was given,
  // even where the stream has failed. Waits at least a second, and at most 30.
  // Where that is not known by then, the context is abandoned, and the result
  // is false.
  bool Settle(const Deadline& deadline) noexcept;

  Context* context() const { return context_.get(); }
  std::string_view name() const { return name_; }
  // Where work goes: during a capture, to the host's stream.
  CuStream native() const { return captured_.value_or(native_); }
  // Null for the host's stream. REQUIRES: the stream has not ended.
  WorkQueue* queue() const { return queue_.get(); }
  // Returns whether this is a child of fork, in which CUDA may not be used.
  bool IsForked() const;

  void OnError(std::function<void(const Status&)> handler);
  // Fails the stream, unless it has failed or ended. Any thread.
  void Fail(const Status& status);
  // The same for an error that was found elsewhere: events that were not done
  // have it.
  void Poison(const Status& status);
  bool is_poisoned() const { return poisoned_.load(std::memory_order_acquire); }
  // Returns that error, also while the stream ends.
  Status poison() const;
  Status status() const;
  // Returns whether work may go to the driver now.
  WorkQueue::Turn turn() const;

  // Gives the driver `work`, a Status(), now, and fails the stream where that
  // fails.
  template <typename Work>
  void SubmitNow(std::string_view what, const Work& work) {
    if (const Status status = context_->Run(work); !status.ok()) {
      Fail(InContext(what, status));
    }
  }
  // The work that the stream was given last, for errors.
  void set_last(std::string_view what) { last_ = what; }
  const std::string& last() const { return last_; }

  // As Stream's. `host` is the host's stream. An error of captured work is that
  // of the capture alone, until its end. REQUIRES: the context is current, here
  // and below.
  Status BeginCapture(const StreamCore& host);
  void EndCapture();
  bool is_captured() const { return captured_.has_value(); }
  // As Stream's, of the host's stream.
  StatusOr<uint64_t> CaptureId() const;
  // Returns kFailedPrecondition between the two: nobody can wait for the work.
  Status CheckRuns() const;

  // Returns kFailedPrecondition while the host captures the stream: an event in
  // a capture would draw the streams that wait for it into the host's graph.
  Status CheckNotCaptured() const;
  // Waits until the device has done all that the driver was given, as
  // Context::Await.
  StatusOr<bool> AwaitAll(const Deadline& deadline,
                          const std::function<bool()>& stop);

  Status InContext(std::string_view what, const Status& status) const;

 private:
  StreamCore(std::shared_ptr<Context> context, std::string_view name);

  // Returns the error of the capture that goes on.
  Status CaptureError() const;
  // Tries once what Settle does.
  bool HasEnded(const Deadline& deadline) noexcept;

  const std::shared_ptr<Context> context_;
  const std::string_view name_;
  const pid_t owner_;
  CuStream native_ = nullptr;
  // The host's stream, between BeginCapture and EndCapture. Set while mutex_ is
  // held, by the thread that uses the stream.
  std::optional<CuStream> captured_;
  std::atomic<bool> poisoned_ = false;
  Status poison_;         // GUARDED_BY(mutex_)
  Status capture_error_;  // GUARDED_BY(mutex_)
  // An event may be the first that a stream is given. A copy: a name may go
  // with the plan or the engine that it is of, before the stream or an event.
  std::string last_ = "record an event";
  // Held while an error is set, and while the queue is taken away.
  mutable std::mutex mutex_;
  std::unique_ptr<WorkQueue> queue_;
  // The host's stream, which has no queue, keeps these; GUARDED_BY(mutex_).
  Status error_;
  std::function<void(const Status&)> on_error_;
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_STREAM_CORE_H_
