// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/output_queue.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <system_error>

namespace shardctl {

namespace {

// Returns the length of the first piece of `text`: whole lines, as many as a
// pipe takes at once, or one longer line.
size_t PieceOf(std::string_view text) {
  const size_t last = text.substr(0, PIPE_BUF).rfind('\n');
  if (last != std::string_view::npos) return last + 1;
  return std::min(text.find('\n'), text.size() - 1) + 1;
}

}  // namespace

int WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = ::write(fd, bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      // A process that shares the file has made it non-blocking: a slow reader
      // slows us down, as it would otherwise, and loses nothing.
      pollfd entry{fd, POLLOUT, 0};
      ::poll(&entry, 1, -1);
      continue;
    }
    if (size < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(size));
  }
  return 0;
}

struct OutputQueue::State {
  explicit State(int to)
      : fd(::fcntl(to, F_DUPFD_CLOEXEC, 0)),
        progress(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~State() {
    if (fd >= 0) ::close(fd);
    if (progress >= 0) ::close(progress);
  }

  bool can_run() const { return fd >= 0 && progress >= 0; }

  void Run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return closed || !text.empty(); });
      if (closed) return;
      std::string taken;
      taken.swap(text);
      for (std::string_view rest = taken; !rest.empty() && !closed;) {
        const std::string_view piece = rest.substr(0, PieceOf(rest));
        lock.unlock();
        const int failure = WriteAll(fd, piece);
        lock.lock();
        RecordFailure(failure);
        rest.remove_prefix(piece.size());
        unwritten -= piece.size();
        const uint64_t one = 1;
        // Fails only when it is readable already.
        (void)!::write(progress, &one, sizeof(one));
      }
    }
  }

  // Keeps the first error. REQUIRES: `mutex` is held.
  void RecordFailure(int failure) {
    if (error == 0 && failure != EPIPE) error = failure;
  }

  // A duplicate: by the time that a stuck write ends, the caller's descriptor
  // may be another file's.
  const int fd;
  const int progress;
  std::mutex mutex;
  std::condition_variable changed;
  std::string text;      // Not yet taken by the thread.
  size_t unwritten = 0;  // Bytes of `text`, and of the thread's piece.
  int error = 0;         // The errno of the first failed write, but for EPIPE.
  bool closed = false;
};

OutputQueue::OutputQueue(int fd)
    : fd_(fd), state_(std::make_shared<State>(fd)) {}

OutputQueue::~OutputQueue() {
  bool idle = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    idle = state_->unwritten == 0;
  }
  state_->changed.notify_one();
  if (!thread_.joinable()) return;
  if (idle) {
    thread_.join();
  } else {
    thread_.detach();  // It is in a write that may never end.
  }
}

void OutputQueue::Append(std::string_view text) {
  if (!thread_.joinable() && state_->can_run()) {
    try {
      thread_ = std::thread([state = state_] { state->Run(); });
    } catch (const std::system_error&) {
      // No more threads on this machine.
    }
  }
  if (!thread_.joinable()) {
    const int failure = WriteAll(fd_, text);
    const std::lock_guard lock(state_->mutex);
    state_->RecordFailure(failure);
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->text += text;
    state_->unwritten += text.size();
  }
  state_->changed.notify_one();
}

bool OutputQueue::full() const {
  const std::lock_guard lock(state_->mutex);
  return state_->unwritten >= kFullBytes;
}

bool OutputQueue::empty() const {
  const std::lock_guard lock(state_->mutex);
  return state_->unwritten == 0;
}

int OutputQueue::error() const {
  const std::lock_guard lock(state_->mutex);
  return state_->error;
}

int OutputQueue::progress_fd() const { return state_->progress; }

bool OutputQueue::TakeProgress() {
  uint64_t count = 0;
  return ::read(state_->progress, &count, sizeof(count)) == sizeof(count);
}

}  // namespace shardctl
