// SPDX-License-Identifier: Apache-2.0

#include "tests/fault/failing_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>

namespace shard {

namespace {

FileFault fault;  // Written only while no fault is armed.
std::atomic<bool> armed{false};
std::atomic<int64_t> count{0};
std::atomic<bool> failed{false};

// Counts a call. Returns whether the call has to fail, with errno set.
bool Fails() {
  if (!armed.load()) return false;
  if (fault.after_memory && !AllocationFailed()) return false;
  const int64_t number = count.fetch_add(1) + 1;
  if (fault.and_after ? number < fault.at : number != fault.at) return false;
  if (!failed.exchange(true) && fault.then_outage != Outage::kNone) {
    ArmAllocator(fault.then_outage, fault.then_at);
  }
  errno = fault.error;
  return true;
}

}  // namespace

void ArmFiles(const FileFault& next) {
  fault = next;
  count = 0;
  failed = false;
  armed = next.at > 0;
}

void DisarmFiles() { armed = false; }

bool FileFailed() { return failed.load(); }

}  // namespace shard

#define SHARD_INTERPOSE extern "C" __attribute__((visibility("default")))

SHARD_INTERPOSE int openat(int dir, const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    if (shard::Fails()) return -1;
    va_list arguments;
    va_start(arguments, flags);
    mode = static_cast<mode_t>(va_arg(arguments, int));
    va_end(arguments);
  }
  return static_cast<int>(::syscall(SYS_openat, dir, path, flags, mode));
}

SHARD_INTERPOSE ssize_t pwrite(int fd, const void* data, size_t bytes,
                               off_t offset) {
  if (shard::Fails()) return -1;
  return ::syscall(SYS_pwrite64, fd, data, bytes, offset);
}

SHARD_INTERPOSE int fsync(int fd) {
  if (shard::Fails()) return -1;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

SHARD_INTERPOSE int ftruncate(int fd, off_t bytes) noexcept {
  if (shard::Fails()) return -1;
  return static_cast<int>(::syscall(SYS_ftruncate, fd, bytes));
}

SHARD_INTERPOSE int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (shard::Fails()) return -1;
  return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, bytes));
}

SHARD_INTERPOSE int mkdirat(int dir, const char* path, mode_t mode) noexcept {
  if (shard::Fails()) return -1;
  return static_cast<int>(::syscall(SYS_mkdirat, dir, path, mode));
}

SHARD_INTERPOSE int renameat2(int from_dir, const char* from, int to_dir,
                              const char* to, unsigned flags) noexcept {
  if (shard::Fails()) return -1;
  return static_cast<int>(
      ::syscall(SYS_renameat2, from_dir, from, to_dir, to, flags));
}
