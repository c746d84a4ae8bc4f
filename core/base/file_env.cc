// SPDX-License-Identifier: Apache-2.0

#include "core/base/file_env.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "core/base/fd.h"
#include "core/base/write_signals.h"

namespace shard {

namespace {

template <typename T>
T OrErrno(T result) {
  return result < 0 ? static_cast<T>(-errno) : result;
}

class PosixFileEnv final : public FileEnv {
 public:
  int Open(int dir, const char* path, int flags, mode_t mode) override {
    return OrErrno(AboveStandard(::openat(dir, path, flags | O_CLOEXEC, mode)));
  }
  int Close(int fd) override { return OrErrno(::close(fd)); }
  ssize_t Read(int fd, void* data, size_t bytes, uint64_t offset) override {
    return OrErrno(::pread(fd, data, bytes, static_cast<off_t>(offset)));
  }
  ssize_t Write(int fd, const void* data, size_t bytes,
                uint64_t offset) override {
    return OrErrno(WithoutSizeSignal(
        [&] { return ::pwrite(fd, data, bytes, static_cast<off_t>(offset)); }));
  }
  int Sync(int fd) override { return OrErrno(::fsync(fd)); }
  int Truncate(int fd, uint64_t bytes) override {
    return OrErrno(WithoutSizeSignal(
        [&] { return ::ftruncate(fd, static_cast<off_t>(bytes)); }));
  }
  int Allocate(int fd, uint64_t bytes) override {
    return OrErrno(WithoutSizeSignal(
        [&] { return ::fallocate(fd, 0, 0, static_cast<off_t>(bytes)); }));
  }
  int Stat(int fd, struct stat* result) override {
    return OrErrno(::fstat(fd, result));
  }
  int StatAt(int dir, const char* path, struct stat* result) override {
    return OrErrno(::fstatat(dir, path, result, AT_SYMLINK_NOFOLLOW));
  }
  int MakeDir(int dir, const char* path, mode_t mode) override {
    return OrErrno(::mkdirat(dir, path, mode));
  }
  int Rename(int from_dir, const char* from, int to_dir, const char* to,
             unsigned flags) override {
    return OrErrno(::renameat2(from_dir, from, to_dir, to, flags));
  }
  int Unlink(int dir, const char* path, int flags) override {
    return OrErrno(::unlinkat(dir, path, flags));
  }
  int Lock(int fd) override { return OrErrno(::flock(fd, LOCK_EX | LOCK_NB)); }

  int List(int fd, std::vector<std::string>* names) override {
    names->clear();
    // A separate descriptor, because closedir() closes it, and because its
    // position must not be shared with threads that list at the same time.
    Fd own(::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!own.valid()) return -errno;
    // Owned, because there may be no memory for the names.
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(own.get()),
                                                     &::closedir);
    if (stream == nullptr) return -errno;
    (void)own.Release();
    errno = 0;
    while (const dirent* const entry = ::readdir(stream.get())) {
      if (std::strcmp(entry->d_name, ".") != 0 &&
          std::strcmp(entry->d_name, "..") != 0) {
        names->emplace_back(entry->d_name);
      }
      errno = 0;
    }
    return -errno;
  }
};

}  // namespace

FileEnv* FileEnv::Posix() {
  // Leaked on purpose: files may be written while the host exits.
  static PosixFileEnv* const env = new PosixFileEnv;
  return env;
}

}  // namespace shard
