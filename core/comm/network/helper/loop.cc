// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/loop.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>

namespace shard::network {

namespace {

// The id of the eventfd, which is no watch of a caller.
constexpr uint64_t kWakeupId = 0;

// The most events of a round. More are reported in the next one.
constexpr size_t kMostEvents = 256;

}  // namespace

Loop::Watch& Loop::Watch::operator=(Watch&& other) noexcept {
  if (this != &other) {
    Reset();
    loop_ = std::exchange(other.loop_, nullptr);
    id_ = other.id_;
    fd_ = other.fd_;
  }
  return *this;
}

Status Loop::Watch::SetEvents(uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id_;
  if (::epoll_ctl(loop_->epoll_.get(), EPOLL_CTL_MOD, fd_, &event) != 0) {
    return ErrnoStatus("changing the events of a descriptor", errno);
  }
  return Status();
}

void Loop::Watch::Reset() {
  if (loop_ == nullptr) return;
  ::epoll_ctl(loop_->epoll_.get(), EPOLL_CTL_DEL, fd_, nullptr);
  loop_->watches_.erase(id_);
  loop_ = nullptr;
}

Loop::Timer& Loop::Timer::operator=(Timer&& other) noexcept {
  if (this != &other) {
    Reset();
    loop_ = std::exchange(other.loop_, nullptr);
    key_ = other.key_;
  }
  return *this;
}

void Loop::Timer::Reset() {
  if (loop_ == nullptr) return;
  loop_->timers_.erase(key_);
  loop_ = nullptr;
}

StatusOr<std::unique_ptr<Loop>> Loop::Create() {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus("epoll_create1", errno);
  Fd wakeup(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeup.valid()) return ErrnoStatus("eventfd", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeupId;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wakeup.get(), &event) != 0) {
    return ErrnoStatus("epoll_ctl", errno);
  }
  return std::unique_ptr<Loop>(new Loop(std::move(epoll), std::move(wakeup)));
}

StatusOr<Loop::Watch> Loop::Add(int fd, uint32_t events, OnEvents callback) {
  const uint64_t id = next_id_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoStatus("watching a descriptor", errno);
  }
  watches_.emplace(id, std::make_shared<OnEvents>(std::move(callback)));
  return Watch(this, id, fd);
}

Loop::Timer Loop::At(const Deadline& deadline, std::function<void()> callback) {
  const Timer::Key key(Deadline::Clock::now() + deadline.Remaining(),
                       next_id_++);
  timers_.emplace(key, std::move(callback));
  return Timer(this, key);
}

void Loop::Post(std::function<void()> function) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(function));
  }
  Wake();
}

void Loop::Wake() {
  const uint64_t one = 1;
  // A full counter wakes the loop as well.
  while (::write(wakeup_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void Loop::Stop() {
  stopped_ = true;
  Wake();
}

int Loop::MillisToWait(const Deadline& deadline) const {
  auto wait = deadline.Remaining();
  if (!timers_.empty()) {
    const auto now = Deadline::Clock::now();
    wait =
        std::min(wait, std::max(Deadline::Duration::zero(),
                                std::chrono::duration_cast<Deadline::Duration>(
                                    timers_.begin()->first.first - now)));
  }
  // Rounded up, so that a wait does not spin at its end.
  const auto millis =
      std::chrono::ceil<std::chrono::milliseconds>(wait).count();
  return static_cast<int>(std::min<int64_t>(millis, INT_MAX));
}

Status Loop::RunOnce(const Deadline& deadline) {
  std::array<epoll_event, kMostEvents> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), kMostEvents,
                                 MillisToWait(deadline));
  if (count < 0 && errno != EINTR) return ErrnoStatus("epoll_wait", errno);
  for (int i = 0; i < count; ++i) {
    // A copy: the kernel's struct is packed.
    const epoll_event event = events[static_cast<size_t>(i)];
    const uint64_t id = event.data.u64;
    if (id == kWakeupId) {
      uint64_t wakes = 0;
      (void)!::read(wakeup_.get(), &wakes, sizeof(wakes));
      continue;
    }
    const auto watch = watches_.find(id);
    if (watch == watches_.end()) continue;  // Ended earlier in this round.
    const std::shared_ptr<OnEvents> callback = watch->second;
    (*callback)(event.events);
  }
  RunTimers();
  RunPosted();
  return Status();
}

void Loop::RunTimers() {
  // Timers that callbacks set are later than `now`: a timer that sets itself
  // again does not keep descriptors from their turn.
  const auto now = Deadline::Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    // The callback may end any timer.
    const auto timer = timers_.extract(timers_.begin());
    timer.mapped()();
  }
}

void Loop::RunPosted() {
  std::vector<std::function<void()>> functions;
  {
    const std::lock_guard lock(mutex_);
    functions.swap(posted_);
  }
  for (const auto& function : functions) function();
}

Status Loop::Run() {
  while (!stopped_.exchange(false)) {
    SHARD_RETURN_IF_ERROR(RunOnce(Deadline::After(3600)));
  }
  return Status();
}

}  // namespace shard::network
