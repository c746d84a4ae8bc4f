// SPDX-License-Identifier: Apache-2.0

#include "core/base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "core/base/pooled_file.h"
#include "core/base/strings.h"

namespace shard {

namespace {

// Modes of a new file and directory, which the host's umask reduces.
constexpr mode_t kFileMode = 0666;
constexpr mode_t kDirectoryMode = 0777;

// Number of attempts in which other threads may take a freed descriptor first.
constexpr int kAttempts = 100;

template <typename Call>
auto Retry(const Call& call) {
  auto result = call();
  while (result == -EINTR) result = call();
  return result;
}

// Repeats a call that takes a descriptor. Where none is left, the pool closes
// some.
template <typename Call>
int RetryOpen(const Call& call) {
  int result = Retry(call);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (result != -EMFILE && result != -ENFILE) break;
    if (!ClosePooledFile()) break;
    result = Retry(call);
  }
  return result;
}

Status Failed(std::string_view what, const std::string& path, int64_t result) {
  return ErrnoStatus(StrCat(what, " '", path, "'"), static_cast<int>(-result));
}

Status CheckRange(const std::string& path, uint64_t offset, size_t bytes) {
  constexpr uint64_t kEnd = std::numeric_limits<int64_t>::max();
  if (bytes <= kEnd && offset <= kEnd - bytes) return Status();
  return OutOfRange(bytes, " bytes at offset ", offset, " of '", path,
                    "' are beyond what a file can hold");
}

}  // namespace

EnvFd& EnvFd::operator=(EnvFd&& other) noexcept {
  if (this != &other) {
    (void)Close();
    env_ = other.env_;
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

int EnvFd::Close() {
  if (fd_ < 0) return 0;
  const int result = env_->Close(std::exchange(fd_, -1));
  return result == -EINTR ? 0 : result;
}

// ---------------------------------------------------------------------------

StatusOr<Directory> Directory::Open(FileEnv* env, const std::string& path) {
  const int fd = RetryOpen([&] {
    return env->Open(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                     0);
  });
  if (fd < 0) return Failed("opening the directory", path, fd);
  // Owned before the path is copied, for which there may be no memory.
  EnvFd owned(env, fd);
  return Directory(std::move(owned), path);
}

StatusOr<Directory> Directory::OpenDirectory(const std::string& name) const {
  std::string path = PathOf(name);
  const int fd = RetryOpen([&] {
    return env()->Open(this->fd(), name.c_str(),
                       O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
  });
  if (fd < 0) return Failed("opening the directory", path, fd);
  return Directory(EnvFd(env(), fd), std::move(path));
}

StatusOr<Directory> Directory::Duplicate() const {
  SHARD_ASSIGN_OR_RETURN(Directory same, OpenDirectory("."));
  same.path_ = path_;
  return same;
}

std::string Directory::PathOf(const std::string& name) const {
  return StrCat(path_, path_.ends_with('/') ? "" : "/", name);
}

Status Directory::MakeDirectory(const std::string& name) const {
  const int result =
      Retry([&] { return env()->MakeDir(fd(), name.c_str(), kDirectoryMode); });
  if (result == 0) return Status();
  return Failed("making the directory", PathOf(name), result);
}

Status Directory::Unlink(const std::string& name) const {
  const int result =
      Retry([&] { return env()->Unlink(fd(), name.c_str(), 0); });
  return result == 0 ? Status() : Failed("deleting", PathOf(name), result);
}

Status Directory::RemoveDirectory(const std::string& name) const {
  const int result =
      Retry([&] { return env()->Unlink(fd(), name.c_str(), AT_REMOVEDIR); });
  return result == 0 ? Status() : Failed("deleting", PathOf(name), result);
}

StatusOr<std::optional<struct stat>> Directory::Stat(
    const std::string& name) const {
  struct stat found;
  const int result =
      Retry([&] { return env()->StatAt(fd(), name.c_str(), &found); });
  if (result == -ENOENT) return std::optional<struct stat>();
  if (result != 0) return Failed("looking at", PathOf(name), result);
  return std::optional<struct stat>(found);
}

StatusOr<std::vector<std::string>> Directory::List() const {
  std::vector<std::string> names;
  const int result = RetryOpen([&] { return env()->List(fd(), &names); });
  if (result != 0) return Failed("listing the directory", path_, result);
  return names;
}

Status Directory::Sync() const {
  const int result = Retry([&] { return env()->Sync(fd()); });
  // EINVAL: this file system does not sync directories, as opposed to a failed
  // sync.
  if (result == 0 || result == -EINVAL) return Status();
  return Failed("syncing the directory", path_, result)
      .WithContext("what was last changed may be lost");
}

int Directory::Rename(const std::string& from, const std::string& to,
                      unsigned flags) const {
  return Retry([&] {
    return env()->Rename(fd(), from.c_str(), fd(), to.c_str(), flags);
  });
}

// ---------------------------------------------------------------------------

File::File(EnvFd fd, EnvFd direct_fd, std::string path)
    : fd_(std::move(fd)),
      direct_fd_(std::move(direct_fd)),
      direct_(direct_fd_.valid()),
      path_(std::move(path)) {}

File::File(File&& other) noexcept
    : fd_(std::move(other.fd_)),
      direct_fd_(std::move(other.direct_fd_)),
      direct_(other.direct()),
      sync_error_(std::move(other.sync_error_)),
      path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  fd_ = std::move(other.fd_);
  direct_fd_ = std::move(other.direct_fd_);
  direct_ = other.direct();
  sync_error_ = std::move(other.sync_error_);
  path_ = std::move(other.path_);
  return *this;
}

StatusOr<File> File::Open(const Directory& in, const std::string& name,
                          Mode mode, Cache cache) {
  return OpenAt(in.env(), in.fd(), name, in.PathOf(name), mode, cache);
}

StatusOr<File> File::Open(FileEnv* env, const std::string& path, Mode mode,
                          Cache cache) {
  return OpenAt(env, AT_FDCWD, path, path, mode, cache);
}

StatusOr<File> File::OpenAt(FileEnv* env, int dir, const std::string& name,
                            std::string path, Mode mode, Cache cache) {
  // O_NONBLOCK keeps the open of a FIFO from waiting for its other end; FIFOs
  // are refused below.
  const int flags = (mode == Mode::kRead ? O_RDONLY : O_RDWR) | O_NOFOLLOW |
                    O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const int create = mode == Mode::kCreate ? O_CREAT | O_EXCL : 0;
  const int opened = RetryOpen(
      [&] { return env->Open(dir, name.c_str(), flags | create, kFileMode); });
  if (opened < 0) {
    const Status status = Failed(create ? "creating" : "opening", path, opened);
    if (opened != -ELOOP) return status;
    return FailedPrecondition(
        status.message(),
        "; symbolic links are not followed: give what it points to");
  }
  StatusOr<File> file = Adopt(EnvFd(env, opened), dir, name, std::move(path),
                              cache == Cache::kDirect ? flags | O_DIRECT : 0);
  // A file that could not be opened is removed again.
  if (!file.ok() && create != 0) (void)env->Unlink(dir, name.c_str(), 0);
  return file;
}

StatusOr<File> File::Adopt(EnvFd fd, int dir, const std::string& name,
                           std::string path, int direct_flags) {
  FileEnv* const env = fd.env();
  struct stat found;
  const int result = Retry([&] { return env->Stat(fd.get(), &found); });
  if (result != 0) return Failed("looking at", path, result);
  if (!S_ISREG(found.st_mode)) {
    return FailedPrecondition("'", path, "' is not a regular file");
  }
  if (direct_flags == 0) return File(std::move(fd), EnvFd(), std::move(path));

  // A second descriptor, so that unaligned pieces go the usual way.
  const int direct =
      RetryOpen([&] { return env->Open(dir, name.c_str(), direct_flags, 0); });
  if (direct == -EINVAL) {
    return File(std::move(fd), EnvFd(), std::move(path));
  }
  if (direct < 0) return Failed("opening", path, direct);
  EnvFd direct_fd(env, direct);
  struct stat same;
  const int again = Retry([&] { return env->Stat(direct, &same); });
  if (again != 0) return Failed("looking at", path, again);
  if (same.st_dev != found.st_dev || same.st_ino != found.st_ino) {
    return FailedPrecondition("'", path, "' was replaced while it was opened");
  }
  return File(std::move(fd), std::move(direct_fd), std::move(path));
}

std::pair<int, size_t> File::Route(uint64_t offset, const void* data,
                                   size_t bytes) const {
  const bool aligned =
      offset % kDirectAlignment == 0 &&
      reinterpret_cast<uintptr_t>(data) % kDirectAlignment == 0;
  if (!direct() || !aligned || bytes < kDirectAlignment) {
    return {fd_.get(), bytes};
  }
  return {direct_fd_.get(), bytes - bytes % kDirectAlignment};
}

Status File::ReadExactly(uint64_t offset, std::span<std::byte> to) const {
  SHARD_RETURN_IF_ERROR(CheckRange(path_, offset, to.size()));
  size_t done = 0;
  while (done < to.size()) {
    const auto [fd, bytes] =
        Route(offset + done, to.data() + done, to.size() - done);
    const ssize_t result =
        fd_.env()->Read(fd, to.data() + done, bytes, offset + done);
    if (result == -EINTR) continue;
    if (result == -EINVAL && fd != fd_.get()) {
      direct_ = false;
      continue;
    }
    if (result < 0) return Failed("reading", path_, result);
    if (result == 0) {
      return Corrupt("'", path_, "' is ", to.size() - done,
                     " bytes short: ", to.size(), " were to be read at offset ",
                     offset, "; it was truncated, or is an incomplete copy");
    }
    done += static_cast<size_t>(result);
  }
  return Status();
}

Status File::WriteExactly(uint64_t offset,
                          std::span<const std::byte> from) const {
  SHARD_RETURN_IF_ERROR(CheckRange(path_, offset, from.size()));
  size_t done = 0;
  while (done < from.size()) {
    const auto [fd, bytes] =
        Route(offset + done, from.data() + done, from.size() - done);
    const ssize_t result =
        fd_.env()->Write(fd, from.data() + done, bytes, offset + done);
    if (result == -EINTR) continue;
    if (result == -EINVAL && fd != fd_.get()) {
      direct_ = false;
      continue;
    }
    if (result < 0) return Failed("writing", path_, result);
    if (result == 0) {
      return Internal("writing '", path_, "' stopped at offset ", offset + done,
                      ": the file system took 0 of ", from.size() - done,
                      " bytes and gave no reason");
    }
    done += static_cast<size_t>(result);
  }
  return Status();
}

Status File::Allocate(uint64_t bytes) const {
  if (bytes == 0) return Status();
  SHARD_RETURN_IF_ERROR(CheckRange(path_, bytes, 0));
  FileEnv* const env = fd_.env();
  const int result = Retry([&] { return env->Allocate(fd_.get(), bytes); });
  if (result == 0) return Status();
  if (result != -EOPNOTSUPP) return Failed("allocating", path_, result);
  SHARD_ASSIGN_OR_RETURN(const uint64_t size, Size());
  if (size >= bytes) return Status();
  const int truncated = Retry([&] { return env->Truncate(fd_.get(), bytes); });
  return truncated == 0 ? Status() : Failed("extending", path_, truncated);
}

StatusOr<uint64_t> File::Size() const {
  struct stat found;
  const int result = Retry([&] { return fd_.env()->Stat(fd_.get(), &found); });
  if (result != 0) return Failed("looking at", path_, result);
  return static_cast<uint64_t>(found.st_size);
}

Status File::Sync() {
  if (!sync_error_.ok()) return sync_error_;
  const int result = Retry([&] { return fd_.env()->Sync(fd_.get()); });
  if (result != 0) {
    sync_error_ = Failed("syncing", path_, result)
                      .WithContext("what was written may be lost");
  }
  return sync_error_;
}

Status File::Close() {
  const int direct = direct_fd_.Close();
  const int buffered = fd_.Close();
  direct_ = false;
  const int result = buffered != 0 ? buffered : direct;
  return result == 0 ? Status() : Failed("closing", path_, result);
}

}  // namespace shard
