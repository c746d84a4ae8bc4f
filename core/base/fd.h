// SPDX-License-Identifier: Apache-2.0
//
// Fd: a file descriptor with one owner, which closes it. The descriptor is
// never 0, 1 or 2: in a host that has closed these, any code that prints would
// write into the library's files and to its peers.

#ifndef SHARD_CORE_BASE_FD_H_
#define SHARD_CORE_BASE_FD_H_

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace shard {

// Moves `fd` above the standard descriptors: returns a descriptor above 2 that
// replaces `fd`, and closes `fd`. A descriptor that is above 2 already, or
// negative, is returned as it is. Returns -1, with errno, when no descriptor is
// free.
inline int AboveStandard(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  // EINVAL means that the limit on descriptors is 3 or less.
  const int error = moved < 0 ? EMFILE : errno;
  ::close(fd);
  errno = error;
  return moved;
}

class Fd {
 public:
  Fd() = default;
  // Takes ownership of `fd` and moves it above 2. The result is not valid, with
  // errno, when `fd` was not or when no such descriptor is free.
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

  // Closes the descriptor and takes ownership of `fd`, as the constructor does.
  // Linux frees the number even when close() fails, so close() is never
  // retried.
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
