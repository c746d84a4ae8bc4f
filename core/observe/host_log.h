// SPDX-License-Identifier: Apache-2.0
//
// HostLog: the log function of the host, which is called until Close. A save in
// the background may go on after the host has freed its handles, and must not
// reach a host that is no more.
//
// No lock is held while the host's function runs. In a child of fork, which
// lacks the threads that could be in a call, Close does nothing.
//
// Threads: any.

#ifndef SHARD_CORE_OBSERVE_HOST_LOG_H_
#define SHARD_CORE_OBSERVE_HOST_LOG_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "core/base/process_id.h"
#include "core/observe/logger.h"

namespace shard {

class HostLog {
 public:
  explicit HostLog(const Logger& host) : host_(host), owner_(ProcessId()) {}
  HostLog(const HostLog&) = delete;
  HostLog& operator=(const HostLog&) = delete;

  // Returns a logger that calls the host's function until Close. This object
  // must outlive it.
  Logger logger() {
    LogLevel most_verbose = LogLevel::kOff;
    for (const LogLevel level : {LogLevel::kError, LogLevel::kWarning,
                                 LogLevel::kInfo, LogLevel::kDebug}) {
      if (host_.Wants(level)) most_verbose = level;
    }
    return most_verbose == LogLevel::kOff ? Logger()
                                          : Logger(Pass, most_verbose, this);
  }

  // Ends the calls: none begins from here on, and those in progress on other
  // threads have returned when this returns. The wait has no deadline: after it
  // the host frees what its function uses, and a call that outlives the wait
  // would use what is freed. REQUIRES: the calling thread is not in the host's
  // function, and no call waits for the calling thread.
  void Close() {
    if (ProcessId() != owner_) return;
    uint32_t calls = calls_.fetch_or(kClosed) | kClosed;
    for (; calls != kClosed; calls = calls_.load()) calls_.wait(calls);
  }

 private:
  static constexpr uint32_t kClosed = uint32_t{1} << 31;

  // A call in progress.
  class Call {
   public:
    explicit Call(std::atomic<uint32_t>* calls)
        : calls_(calls), is_open_((calls->fetch_add(1) & kClosed) == 0) {}
    ~Call() {
      if (calls_->fetch_sub(1) == kClosed + 1) calls_->notify_all();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    bool is_open() const { return is_open_; }

   private:
    std::atomic<uint32_t>* const calls_;
    const bool is_open_;
  };

  // Passes a message to the host, whose function may throw.
  static void Pass(int32_t level, const char* message, void* log) {
    auto* const self = static_cast<HostLog*>(log);
    const Call call(&self->calls_);
    if (call.is_open()) self->host_.Log(static_cast<LogLevel>(level), message);
  }

  const Logger host_;
  const pid_t owner_;
  // The calls in progress, plus kClosed once Close is called.
  std::atomic<uint32_t> calls_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_HOST_LOG_H_
