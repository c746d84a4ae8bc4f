// SPDX-License-Identifier: Apache-2.0

#include "tests/core/base/fault_env.h"

#include <fcntl.h>

namespace shard::testing {

void FaultEnv::Set(const Fault& fault) {
  const std::lock_guard lock(mutex_);
  fault_ = fault;
  calls_ = 0;
  faults_ = 0;
}

int64_t FaultEnv::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

int64_t FaultEnv::faults() const {
  const std::lock_guard lock(mutex_);
  return faults_;
}

int FaultEnv::open_descriptors() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(open_.size());
}

int FaultEnv::wrong_closes() const {
  const std::lock_guard lock(mutex_);
  return wrong_closes_;
}

bool FaultEnv::Fails(Call kind) {
  const std::lock_guard lock(mutex_);
  if (fault_.changes_only && kind != Call::kChange && kind != Call::kWrite) {
    return false;
  }
  const bool transfer = kind == Call::kRead || kind == Call::kWrite;
  const int64_t call = calls_++;
  const bool chosen =
      (fault_.at >= 0 &&
       (fault_.and_after ? call >= fault_.at : call == fault_.at)) ||
      (fault_.every > 0 && (call + 1) % fault_.every == 0);
  const bool fails = chosen && (transfer || fault_.kind == Fault::Kind::kError);
  if (fails) ++faults_;
  return fails;
}

int FaultEnv::Open(int dir, const char* path, int flags, mode_t mode) {
  if (Fails((flags & O_CREAT) != 0 ? Call::kChange : Call::kOther)) {
    return Failure();
  }
  const int fd = base()->Open(dir, path, flags, mode);
  const std::lock_guard lock(mutex_);
  if (fd >= 0) open_.insert(fd);
  return fd;
}

int FaultEnv::Close(int fd) {
  const bool fails = Fails(Call::kOther);
  {
    // Forgets the descriptor before it is closed: afterwards another thread may
    // be given its number.
    const std::lock_guard lock(mutex_);
    if (open_.erase(fd) == 0) {
      ++wrong_closes_;
      return -EBADF;
    }
  }
  const int result = base()->Close(fd);
  return fails ? Failure() : result;
}

ssize_t FaultEnv::Read(int fd, void* data, size_t bytes, uint64_t offset) {
  if (!Fails(Call::kRead)) return base()->Read(fd, data, bytes, offset);
  if (fault_.kind == Fault::Kind::kError) return Failure();
  if (fault_.kind == Fault::Kind::kZero) return 0;
  return base()->Read(fd, data, (bytes + 1) / 2, offset);
}

ssize_t FaultEnv::Write(int fd, const void* data, size_t bytes,
                        uint64_t offset) {
  if (!Fails(Call::kWrite)) return base()->Write(fd, data, bytes, offset);
  if (fault_.kind == Fault::Kind::kError) return Failure();
  if (fault_.kind == Fault::Kind::kZero) return 0;
  return base()->Write(fd, data, (bytes + 1) / 2, offset);
}

int FaultEnv::Sync(int fd) {
  return Fails(Call::kChange) ? Failure() : base()->Sync(fd);
}

int FaultEnv::Truncate(int fd, uint64_t bytes) {
  return Fails(Call::kChange) ? Failure() : base()->Truncate(fd, bytes);
}

int FaultEnv::Allocate(int fd, uint64_t bytes) {
  return Fails(Call::kChange) ? Failure() : base()->Allocate(fd, bytes);
}

int FaultEnv::Stat(int fd, struct stat* result) {
  return Fails(Call::kOther) ? Failure() : base()->Stat(fd, result);
}

int FaultEnv::StatAt(int dir, const char* path, struct stat* result) {
  return Fails(Call::kOther) ? Failure() : base()->StatAt(dir, path, result);
}

int FaultEnv::MakeDir(int dir, const char* path, mode_t mode) {
  return Fails(Call::kChange) ? Failure() : base()->MakeDir(dir, path, mode);
}

int FaultEnv::Rename(int from_dir, const char* from, int to_dir, const char* to,
                     unsigned flags) {
  return Fails(Call::kChange)
             ? Failure()
             : base()->Rename(from_dir, from, to_dir, to, flags);
}

int FaultEnv::Unlink(int dir, const char* path, int flags) {
  return Fails(Call::kOther) ? Failure() : base()->Unlink(dir, path, flags);
}

int FaultEnv::List(int fd, std::vector<std::string>* names) {
  return Fails(Call::kOther) ? Failure() : base()->List(fd, names);
}

int FaultEnv::Lock(int fd) {
  return Fails(Call::kOther) ? Failure() : base()->Lock(fd);
}

}  // namespace shard::testing
