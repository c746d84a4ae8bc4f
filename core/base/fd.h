// SPDX-License-Identifier: Apache-2.0
//
// Fd: a file descriptor with one owner, closed with it.

#ifndef SHARD_CORE_BASE_FD_H_
#define SHARD_CORE_BASE_FD_H_

#include <unistd.h>

#include <utility>

namespace shard {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
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

  // Linux frees the number even when close() fails, so it is never retried.
  void Reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace shard

#endif  // SHARD_CORE_BASE_FD_H_
