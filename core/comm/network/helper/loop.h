// SPDX-License-Identifier: Apache-2.0
//
// Loop: waits for the descriptors, timers and posted functions of one thread,
// and calls their callbacks. A network helper has one loop, and all its
// sockets belong to the loop's thread: none of their code needs a lock.
//
//   auto loop = Loop::Create();
//   Loop::Watch watch;
//   watch = *(*loop)->Add(socket.get(), EPOLLIN, [&](uint32_t events) { ... });
//   Loop::Timer timer = (*loop)->At(Deadline::After(1), [&] { ... });
//   Status status = (*loop)->Run();  // Until a callback calls Stop().
//
// A Watch or a Timer ends with its handle: once the handle is freed its
// callback is not called again, not even for an event that the kernel has
// reported already. A callback may free any handle, its own included, and add
// others; it must not call Run or RunOnce.
//
// Threads: Post, Wake and Stop may be called from any thread, the rest from the
// loop's thread alone. Handles are freed before the loop.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_LOOP_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_LOOP_H_

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fd.h"
#include "core/base/status.h"

namespace shard::network {

class Loop {
 public:
  // Called with the events (EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR, ...) that
  // the kernel reports.
  using OnEvents = std::function<void(uint32_t events)>;

  // A watched descriptor, which must stay open until the handle is freed.
  class Watch {
   public:
    Watch() = default;
    Watch(Watch&& other) noexcept
        : loop_(std::exchange(other.loop_, nullptr)),
          id_(other.id_),
          fd_(other.fd_) {}
    Watch& operator=(Watch&& other) noexcept;
    ~Watch() { Reset(); }

    // Changes the events. EPOLLHUP and EPOLLERR are always reported.
    Status SetEvents(uint32_t events);
    void Reset();
    bool active() const { return loop_ != nullptr; }

   private:
    friend class Loop;
    Watch(Loop* loop, uint64_t id, int fd) : loop_(loop), id_(id), fd_(fd) {}

    Loop* loop_ = nullptr;
    uint64_t id_ = 0;
    int fd_ = -1;
  };

  // A function that is called once, at its time.
  class Timer {
   public:
    Timer() = default;
    Timer(Timer&& other) noexcept
        : loop_(std::exchange(other.loop_, nullptr)), key_(other.key_) {}
    Timer& operator=(Timer&& other) noexcept;
    ~Timer() { Reset(); }

    void Reset();

   private:
    friend class Loop;
    using Key = std::pair<Deadline::Clock::time_point, uint64_t>;
    Timer(Loop* loop, Key key) : loop_(loop), key_(key) {}

    Loop* loop_ = nullptr;
    Key key_ = {};
  };

  static StatusOr<std::unique_ptr<Loop>> Create();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Watches a descriptor, level-triggered. Fails where the descriptor cannot be
  // watched, or is watched already.
  StatusOr<Watch> Add(int fd, uint32_t events, OnEvents callback);

  // Calls `callback` at the deadline, or as soon as it can after that.
  Timer At(const Deadline& deadline, std::function<void()> callback);
  // Calls `callback` in the next round, after the callbacks of this one.
  Timer Soon(std::function<void()> callback) {
    return At(Deadline::After(0), std::move(callback));
  }

  // Calls `function` in the loop's thread, in the order of posts. A function
  // that is posted to a loop that never runs again is destroyed with the loop.
  void Post(std::function<void()> function);
  // Makes RunOnce return.
  void Wake();
  // Makes Run return: the one in progress, or else the next one.
  void Stop();

  // Waits until there is something to do or the deadline has passed, then calls
  // the callbacks of all that is due.
  Status RunOnce(const Deadline& deadline);
  // Calls callbacks until Stop is called.
  Status Run();

 private:
  Loop(Fd epoll, Fd wakeup)
      : epoll_(std::move(epoll)), wakeup_(std::move(wakeup)) {}

  int MillisToWait(const Deadline& deadline) const;
  void RunTimers();
  void RunPosted();

  const Fd epoll_;
  const Fd wakeup_;  // An eventfd.
  uint64_t next_id_ = 1;
  // By id. Held by the round that calls them, so that a callback may end
  // itself.
  std::unordered_map<uint64_t, std::shared_ptr<OnEvents>> watches_;
  std::map<Timer::Key, std::function<void()>> timers_;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  // Under mutex_.
  std::atomic<bool> stopped_ = false;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_LOOP_H_
