// SPDX-License-Identifier: Apache-2.0
//
// ForkMark: tells a process from its children of fork, without a system call:
// the kernel fills the mark with zeros in a child. Threads: any.

#ifndef SHARD_CORE_OBSERVE_FORK_MARK_H_
#define SHARD_CORE_OBSERVE_FORK_MARK_H_

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

namespace shard {

class ForkMark {
 public:
  ForkMark() : owner_(::getpid()) {
    void* const page = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    if (::madvise(page, kBytes, MADV_WIPEONFORK) == 0) {
      mark_ = static_cast<volatile char*>(page);
      *mark_ = 1;
    } else {
      ::munmap(page, kBytes);
    }
  }
  ~ForkMark() {
    if (mark_ != nullptr) ::munmap(const_cast<char*>(mark_), kBytes);
  }
  ForkMark(const ForkMark&) = delete;
  ForkMark& operator=(const ForkMark&) = delete;

  // Returns whether the calling process is a child of the one that made the
  // mark.
  bool IsChild() const {
    return mark_ != nullptr ? *mark_ == 0 : ::getpid() != owner_;
  }

 private:
  static constexpr size_t kBytes = 1;  // A page.

  const pid_t owner_;
  volatile char* mark_ = nullptr;  // Null where there is no such memory.
};

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_FORK_MARK_H_
