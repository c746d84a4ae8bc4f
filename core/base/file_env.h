// SPDX-License-Identifier: Apache-2.0
//
// FileEnv: the system calls through which files are written and read, so that
// tests can make any of them fail, do half of its work, or lose what was not
// synced. It retries nothing and hides nothing; core/base/file.h does what its
// callers want of it.
//
// Every method is the system call of that name: a result of at least 0, or
// -errno, and no signal: a file that may not become longer is -EFBIG. Paths are
// relative to the directory `dir`, a descriptor or AT_FDCWD. Descriptors it
// opens are closed on exec.
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

  // The kernel's. Never null; lives forever.
  static FileEnv* Posix();

  virtual int Open(int dir, const char* path, int flags, mode_t mode) = 0;
  virtual int Close(int fd) = 0;
  virtual ssize_t Read(int fd, void* data, size_t bytes, uint64_t offset) = 0;
  virtual ssize_t Write(int fd, const void* data, size_t bytes,
                        uint64_t offset) = 0;
  // fsync, of a file or a directory.
  virtual int Sync(int fd) = 0;
  virtual int Truncate(int fd, uint64_t bytes) = 0;
  // fallocate: space for [0, bytes), and at least that length. -EOPNOTSUPP
  // where the file system cannot.
  virtual int Allocate(int fd, uint64_t bytes) = 0;
  virtual int Stat(int fd, struct stat* result) = 0;
  // Without following a symbolic link.
  virtual int StatAt(int dir, const char* path, struct stat* result) = 0;
  virtual int MakeDir(int dir, const char* path, mode_t mode) = 0;
  // renameat2. `flags`: 0, RENAME_NOREPLACE or RENAME_EXCHANGE.
  virtual int Rename(int from_dir, const char* from, int to_dir, const char* to,
                     unsigned flags) = 0;
  // `flags`: 0 or AT_REMOVEDIR.
  virtual int Unlink(int dir, const char* path, int flags) = 0;
  // The names in an open directory, without "." and "..", in no order.
  virtual int List(int fd, std::vector<std::string>* names) = 0;
  // flock, exclusive, without waiting: -EWOULDBLOCK when another has it.
  virtual int Lock(int fd) = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_BASE_FILE_ENV_H_
