// SPDX-License-Identifier: Apache-2.0
//
// HostCalls: the calls of a function of the host, which begin until Close. Work
// in the background may go on after the host has freed its handles, and must
// not call a host that is no more.
//
// No lock is held while the host's function runs. In a child of fork, which
// lacks the threads that could be in a call, Close does nothing.
//
// Threads: any.

#ifndef SHARD_CORE_BASE_HOST_CALLS_H_
#define SHARD_CORE_BASE_HOST_CALLS_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "core/base/process_id.h"

namespace shard {

class HostCalls {
 public:
  HostCalls() : owner_(ProcessId()) {}
  HostCalls(const HostCalls&) = delete;
  HostCalls& operator=(const HostCalls&) = delete;

  // A call in progress. REQUIRES: the host's function is called only if
  // is_open(), and returns before this object is destroyed.
  class Call {
   public:
    explicit Call(HostCalls* calls)
        : count_(&calls->count_),
          is_open_((count_->fetch_add(1) & kClosed) == 0) {}
    ~Call() {
      if (count_->fetch_sub(1) == kClosed + 1) count_->notify_all();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    bool is_open() const { return is_open_; }

   private:
    std::atomic<uint32_t>* const count_;
    const bool is_open_;
  };

  // Ends the calls: none begins from here on, and those in progress on other
  // threads have returned when this returns. The wait has no deadline: after it
  // the host frees what its function uses, and a call that outlives the wait
  // would use what is freed. REQUIRES: the calling thread is not in the host's
  // function, and no call waits for the calling thread.
  void Close() {
    if (ProcessId() != owner_) return;
    uint32_t count = count_.fetch_or(kClosed) | kClosed;
    for (; count != kClosed; count = count_.load()) count_.wait(count);
  }

 private:
  static constexpr uint32_t kClosed = uint32_t{1} << 31;

  const pid_t owner_;
  // The calls in progress, plus kClosed once Close is called.
  std::atomic<uint32_t> count_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_BASE_HOST_CALLS_H_
