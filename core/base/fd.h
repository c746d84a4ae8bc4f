// SPDX-License-Identifier: Apache-2.0
//
// Fd: a file descriptor with one owner, closed with it. It is never 0, 1 or 2:
// in a host that has closed these, whoever prints would write into our files
// and to our peers.

#ifndef SHARD_CORE_BASE_FD_H_
#define SHARD_CORE_BASE_FD_H_

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace shard {

// Returns a descriptor above 2 in the place of `fd`, which it closes; `fd`
// itself where that is above 2, or an error already. -1, with errno: there is
// none.
inline int AboveStandard(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  // EINVAL: the limit is 3 or less.
  const int error = moved < 0 ? EMFILE : errno;
  ::close(fd);
  errno = error;
  return moved;
}

class Fd {
 public:
  Fd() = default;
  // Takes `fd`; moves it above 2. Not valid, with errno, when `fd` was not or
  // there is no such descriptor.
  explicit Fd(int fd) : fd_(AboveStandard(fd)) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

  // Gives the descriptor up without closing it.
  int Release() { return std::exchange(fd_, -1); }

  // As the constructor. Linux frees the number even when close() fails, so it
  // is never retried.
  void Reset(int fd = -1) {
    const int error = errno;
    if (fd_ >= 0) ::close(fd_);
    errno = error;
    fd_ = AboveStandard(fd);
  }

 private:
  int fd_ = -1;
};

}  // namespace shard

#endif  // SHARD_CORE_BASE_FD_H_
