// SPDX-License-Identifier: Apache-2.0
//
// Directory and File: an open directory and an open file, with their paths for
// messages. They do what their callers mean, over a FileEnv: all of the bytes
// or an error, an interrupted call again, and an error of fsync for good. A
// file is a regular one; a FIFO or a device is refused, and opening it does not
// wait. Neither follows a symbolic link, but Directory::Open, whose path the
// host chose.
//
// One owner; closed with it. Threads: constant methods, and reads and writes at
// places that do not overlap, may run at once.

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

// A descriptor that `env` opened.
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

  // 0 or -errno. Linux frees the number even when close() fails, so it is never
  // retried; nor is -EINTR an error, for nothing was promised before a sync.
  int Close();

 private:
  FileEnv* env_ = nullptr;
  int fd_ = -1;
};

class Directory {
 public:
  // kNotFound, kFailedPrecondition when it is something else.
  static StatusOr<Directory> Open(FileEnv* env, const std::string& path);
  // `name` in this one; its path is path() + "/" + name.
  StatusOr<Directory> OpenDirectory(const std::string& name) const;
  // The same directory, with a descriptor of its own.
  StatusOr<Directory> Duplicate() const;

  // Owns nothing.
  Directory() = default;

  bool valid() const { return fd_.valid(); }
  FileEnv* env() const { return fd_.env(); }
  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  std::string PathOf(const std::string& name) const;

  // kAlreadyExists.
  Status MakeDirectory(const std::string& name) const;
  // A file, or an empty directory. kNotFound.
  Status Unlink(const std::string& name) const;
  Status RemoveDirectory(const std::string& name) const;
  // What `name` is, a symbolic link included; nullopt when there is none.
  StatusOr<std::optional<struct stat>> Stat(const std::string& name) const;
  // Without "." and "..", in no order.
  StatusOr<std::vector<std::string>> List() const;
  // Makes what was created, renamed and deleted in it durable. OK where the
  // file system does not sync directories.
  Status Sync() const;
  // Within this directory; `flags` as renameat2. 0 or -errno: callers tell
  // errors apart.
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
    kWrite,   // An existing one; also to read.
    kCreate,  // As kWrite; kAlreadyExists when there is anything of that name.
  };
  // kDirect: past the page cache (O_DIRECT) where the file system can. Only
  // what is aligned goes past it, in memory and in the file; the rest is
  // buffered, so nothing changes for callers but speed.
  enum class Cache { kBuffered, kDirect };
  static constexpr size_t kDirectAlignment = 4096;

  // kNotFound; kFailedPrecondition for what is not a regular file. After an
  // error nothing was made.
  static StatusOr<File> Open(const Directory& in, const std::string& name,
                             Mode mode, Cache cache = Cache::kBuffered);
  // A path of the host's. Its last part must not be a symbolic link, either.
  static StatusOr<File> Open(FileEnv* env, const std::string& path, Mode mode,
                             Cache cache = Cache::kBuffered);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  // Whether aligned pieces go past the page cache. False from when the file
  // system first refused one.
  bool direct() const { return direct_.load(std::memory_order_relaxed); }

  // Fills `to`. kCorrupt when the file ends before: it was longer once.
  Status ReadExactly(uint64_t offset, std::span<std::byte> to) const;
  Status WriteExactly(uint64_t offset, std::span<const std::byte> from) const;

  // Takes the space for `bytes` now, where the file system can, and makes the
  // file at least that long.
  Status Allocate(uint64_t bytes) const;
  StatusOr<uint64_t> Size() const;

  // Makes what was written durable. After an error the kernel may have dropped
  // it and would say OK the next time, so the error stays: write the file anew.
  Status Sync();

  // Whether or not it returns an error, nothing is open afterwards.
  Status Close();

 private:
  File(EnvFd fd, EnvFd direct_fd, std::string path);
  static StatusOr<File> OpenAt(FileEnv* env, int dir, const std::string& name,
                               std::string path, Mode mode, Cache cache);
  // `fd` is what `name` was opened as. `direct_flags`: to open it again to go
  // past the page cache; 0: do not.
  static StatusOr<File> Adopt(EnvFd fd, int dir, const std::string& name,
                              std::string path, int direct_flags);
  // The descriptor for as many as possible of `bytes` bytes, and how many.
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
