// SPDX-License-Identifier: Apache-2.0
//
// Directory and File: an open directory and an open file, with their paths for
// messages. Both use the system calls of a FileEnv and complete them: a read or
// a write transfers all of its bytes or returns an error, an interrupted call
// is repeated, and an error of fsync stays. A file is a regular file: a FIFO or
// a device is refused, and opening one does not wait. Neither class follows a
// symbolic link, except Directory::Open, whose path the host chose.
//
// Each has one owner, which closes it. Threads: constant methods, and reads and
// writes at places that do not overlap, may run concurrently.

#ifndef SHARD_CORE_BASE_FILE_H_
#define SHARD_CORE_BASE_FILE_H_

#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/file_env.h"
#include "core/base/status.h"

namespace shard {

// A descriptor that `env` opened, with one owner.
class EnvFd {
 public:
  EnvFd() = default;
  EnvFd(FileEnv* env, int fd) : env_(env), fd_(fd) {}
  EnvFd(EnvFd&& other) noexcept
      : env_(other.env_), fd_(std::exchange(other.fd_, -1)) {}
  EnvFd& operator=(EnvFd&& other) noexcept;
  ~EnvFd() { (void)Close(); }

  FileEnv* env() const { return env_; }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

  // Closes the descriptor. Returns 0 or -errno. Linux frees the number even
  // when close() fails, so close() is never retried. -EINTR is not an error,
  // for nothing was promised before a sync.
  int Close();

 private:
  FileEnv* env_ = nullptr;
  int fd_ = -1;
};

class Directory {
 public:
  // Opens the directory at `path`. Errors: kNotFound; kFailedPrecondition when
  // `path` is not a directory.
  static StatusOr<Directory> Open(FileEnv* env, const std::string& path);
  // Opens the directory `name` in this one; its path is path() + "/" + name.
  StatusOr<Directory> OpenDirectory(const std::string& name) const;
  // Returns the same directory, with a descriptor of its own.
  StatusOr<Directory> Duplicate() const;

  // Makes an object without a directory.
  Directory() = default;

  bool valid() const { return fd_.valid(); }
  FileEnv* env() const { return fd_.env(); }
  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  std::string PathOf(const std::string& name) const;

  // Creates a directory. Errors: kAlreadyExists.
  Status MakeDirectory(const std::string& name) const;
  // Removes a file; RemoveDirectory removes an empty directory. Errors:
  // kNotFound.
  Status Unlink(const std::string& name) const;
  Status RemoveDirectory(const std::string& name) const;
  // Returns the attributes of `name`, which may be a symbolic link; nullopt
  // when `name` does not exist.
  StatusOr<std::optional<struct stat>> Stat(const std::string& name) const;
  // Returns the names in the directory, without "." and "..", in no order.
  StatusOr<std::vector<std::string>> List() const;
  // Makes creations, renames and removals in this directory durable. OK where
  // the file system does not sync directories.
  Status Sync() const;
  // Renames within this directory, with the `flags` of renameat2. Returns 0 or
  // -errno, because callers tell errors apart.
  int Rename(const std::string& from, const std::string& to,
             unsigned flags) const;

 private:
  Directory(EnvFd fd, std::string path)
      : fd_(std::move(fd)), path_(std::move(path)) {}

  EnvFd fd_;
  std::string path_;
};

class File {
 public:
  enum class Mode {
    kRead,
    kWrite,   // An existing file; also to read.
    kCreate,  // As kWrite, but new; kAlreadyExists when the name is taken.
  };
  // Use of the page cache. kDirect bypasses the page cache (O_DIRECT) where the
  // file system can. Only pieces that are aligned, in memory and in the file,
  // bypass it; the rest is buffered, so callers see no difference but speed.
  enum class Cache { kBuffered, kDirect };
  static constexpr size_t kDirectAlignment = 4096;

  // Opens the file `name` in a directory. Errors: kNotFound;
  // kFailedPrecondition when it is not a regular file. After an error nothing
  // was created.
  static StatusOr<File> Open(const Directory& in, const std::string& name,
                             Mode mode, Cache cache = Cache::kBuffered);
  // Opens a file at a path that the host chose. Its last component must not be
  // a symbolic link, either.
  static StatusOr<File> Open(FileEnv* env, const std::string& path, Mode mode,
                             Cache cache = Cache::kBuffered);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  // Returns true when aligned pieces bypass the page cache; false once the file
  // system has refused one.
  bool direct() const { return direct_.load(std::memory_order_relaxed); }

  // Fills `to`. kCorrupt when the file ends too early: it has been truncated.
  Status ReadExactly(uint64_t offset, std::span<std::byte> to) const;
  Status WriteExactly(uint64_t offset, std::span<const std::byte> from) const;

  // Reserves the space for `bytes` now, where the file system can, and makes
  // the file at least that long.
  Status Allocate(uint64_t bytes) const;
  StatusOr<uint64_t> Size() const;

  // Makes the written bytes durable. After an error the kernel may have dropped
  // them and would return OK the next time, so the error stays: the caller
  // writes the file anew.
  Status Sync();

  // Closes the file. No descriptor is open afterwards, even after an error.
  Status Close();

 private:
  File(EnvFd fd, EnvFd direct_fd, std::string path);
  static StatusOr<File> OpenAt(FileEnv* env, int dir, const std::string& name,
                               std::string path, Mode mode, Cache cache);
  // Makes a File of `fd`, which `name` was opened as. `direct_flags`: the flags
  // to open the file a second time with O_DIRECT; 0: do not.
  static StatusOr<File> Adopt(EnvFd fd, int dir, const std::string& name,
                              std::string path, int direct_flags);
  // Returns the descriptor to use at `offset`, and for how many of the `bytes`
  // bytes: as many as possible.
  std::pair<int, size_t> Route(uint64_t offset, const void* data,
                               size_t bytes) const;

  EnvFd fd_;
  EnvFd direct_fd_;  // The same file with O_DIRECT; or none.
  mutable std::atomic<bool> direct_{false};
  Status sync_error_;
  std::string path_;
};

}  // namespace shard

#endif  // SHARD_CORE_BASE_FILE_H_
