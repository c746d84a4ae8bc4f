// SPDX-License-Identifier: Apache-2.0
//
// FileEnv: the system calls through which files are written and read, so that
// tests can make any of them fail, transfer half of its bytes, or lose bytes
// that were not synced. A FileEnv retries nothing and hides nothing;
// core/base/file.h does that for its callers.
//
// Every method is the system call of its name and returns at least 0, or
// -errno. None raises a signal: exceeding the limit on the size of a file is
// -EFBIG. Paths are relative to the directory `dir`, a descriptor or AT_FDCWD.
// The descriptors that Open returns are closed on exec.
//
// Thread-safe.

#ifndef SHARD_CORE_BASE_FILE_ENV_H_
#define SHARD_CORE_BASE_FILE_ENV_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace shard {

class FileEnv {
 public:
  virtual ~FileEnv() = default;

  // Returns the kernel's system calls. Never null; lives forever.
  static FileEnv* Posix();

  virtual int Open(int dir, const char* path, int flags, mode_t mode) = 0;
  virtual int Close(int fd) = 0;
  virtual ssize_t Read(int fd, void* data, size_t bytes, uint64_t offset) = 0;
  virtual ssize_t Write(int fd, const void* data, size_t bytes,
                        uint64_t offset) = 0;
  // Calls fsync, on a file or a directory.
  virtual int Sync(int fd) = 0;
  virtual int Truncate(int fd, uint64_t bytes) = 0;
  // Calls fallocate: reserves the space for [0, bytes) and makes the file at
  // least that long. -EOPNOTSUPP where the file system cannot.
  virtual int Allocate(int fd, uint64_t bytes) = 0;
  virtual int Stat(int fd, struct stat* result) = 0;
  // Does not follow a symbolic link.
  virtual int StatAt(int dir, const char* path, struct stat* result) = 0;
  virtual int MakeDir(int dir, const char* path, mode_t mode) = 0;
  // Calls renameat2. `flags`: 0, RENAME_NOREPLACE or RENAME_EXCHANGE.
  virtual int Rename(int from_dir, const char* from, int to_dir, const char* to,
                     unsigned flags) = 0;
  // Calls unlinkat. `flags`: 0 or AT_REMOVEDIR.
  virtual int Unlink(int dir, const char* path, int flags) = 0;
  // Lists the names in an open directory, without "." and "..", in no order.
  virtual int List(int fd, std::vector<std::string>* names) = 0;
  // Calls flock, exclusive and without waiting: -EWOULDBLOCK when another
  // descriptor holds the lock.
  virtual int Lock(int fd) = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_BASE_FILE_ENV_H_
