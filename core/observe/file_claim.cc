// SPDX-License-Identifier: Apache-2.0

#include "core/observe/file_claim.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/strings.h"

namespace shard {

namespace {

constexpr int kMostNumbers = 1000;

// Returns whether `path` still names the file of `fd`, which another writer may
// have replaced since it was opened.
bool IsStillAt(const std::string& path, int fd) {
  struct stat opened;
  struct stat named;
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

// Opens `file->path` and claims it. Returns false where somebody else has.
StatusOr<bool> TryClaim(std::string_view what, ClaimedFile* file) {
  // A writer that replaces its file claims the new one first. The next attempt
  // finds that one, claimed, unless the writer has ended meanwhile.
  for (int attempts = 10; attempts > 0; --attempts) {
    SHARD_ASSIGN_OR_RETURN(file->fd, OpenRegularFile(what, file->path));
    switch (SetLock(file->fd.get(), FileLock::kClaim, F_WRLCK)) {
      case LockResult::kBusy:
        return false;
      case LockResult::kError:
        return true;
      case LockResult::kLocked:
        if (IsStillAt(file->path, file->fd.get())) return true;
    }
  }
  return false;
}

}  // namespace

LockResult SetLock(int fd, FileLock lock, int type) {
  constexpr off_t kFirstByte = off_t{1} << 40;
  struct flock request = {};
  request.l_type = static_cast<short>(type);
  request.l_whence = SEEK_SET;
  request.l_start = kFirstByte + static_cast<off_t>(lock);
  request.l_len = 1;
  if (::fcntl(fd, F_OFD_SETLK, &request) == 0) return LockResult::kLocked;
  const bool busy = errno == EAGAIN || errno == EACCES || errno == EINTR;
  return busy ? LockResult::kBusy : LockResult::kError;
}

std::string BeforeExtension(std::string_view path, std::string_view text) {
  const size_t name = path.rfind('/') + 1;  // 0 without a slash.
  const size_t dot = path.rfind('.');
  // A leading dot begins the name of a hidden file, not an extension.
  const size_t at =
      dot == std::string_view::npos || dot <= name ? path.size() : dot;
  return StrCat(path.substr(0, at), text, path.substr(at));
}

std::string NumberedPath(std::string_view path, int number) {
  return number == 1 ? std::string(path)
                     : BeforeExtension(path, StrCat(".", number));
}

std::string FromRoot(const std::string& path) {
  char folder[PATH_MAX];
  if (path.starts_with('/') || ::getcwd(folder, sizeof(folder)) == nullptr) {
    return path;
  }
  return StrCat(folder, "/", path);
}

StatusOr<Fd> OpenRegularFile(std::string_view what, const std::string& path) {
  // Does not wait for the other end of a FIFO, which is then refused.
  Fd fd(::open(path.c_str(),
               O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
  struct stat facts;
  if (!fd.valid() || ::fstat(fd.get(), &facts) != 0) {
    return ErrnoStatus(StrCat("opening ", what, " '", path, "'"), errno);
  }
  if (!S_ISREG(facts.st_mode)) {
    return FailedPrecondition("opening ", what, " '", path,
                              "' failed: it is not a regular file; name one, "
                              "or a path where there is nothing yet");
  }
  return fd;
}

StatusOr<ClaimedFile> ClaimFile(std::string_view what,
                                const std::string& path) {
  for (int number = 1; number <= kMostNumbers; ++number) {
    ClaimedFile file;
    file.path = NumberedPath(path, number);
    file.number = number;
    SHARD_ASSIGN_OR_RETURN(const bool claimed, TryClaim(what, &file));
    if (claimed) return file;
  }
  return ResourceExhausted("opening ", what, " '", path,
                           "' failed: ", kMostNumbers,
                           " runs write files of this name now; give this run "
                           "another one");
}

}  // namespace shard
