// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/output_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "sdk/cli/handles.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

// Returns the descriptor that a name of /dev stands for, or -1. Opening such a
// name would begin a file anew, and fails for a socket.
int DescriptorOf(const std::string& path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    int fd = -1;
    const char* const end = path.data() + path.size();
    const auto read = std::from_chars(path.data() + folder.size(), end, fd);
    if (read.ec == std::errc() && read.ptr == end) return fd;
  }
  return -1;
}

// Returns the remedy for an error; "" where the text of the error has it.
const char* RemedyOf(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
    case EROFS:
      return "; name a place that you may write to";
    case ENOSPC:
    case EDQUOT:
      return "; free space, or name another place";
    case ENAMETOOLONG:
      return "; name a shorter path";
    default:
      return "";
  }
}

// Throws Failure. `where` stands in front of the reason, or is empty.
[[noreturn]] void Fail(const char* what, const std::string& path, int error,
                       const std::string& where = "") {
  throw Failure(std::string("cannot ") + what + " '" + Shown(path) +
                "': " + where + std::strerror(error) + RemedyOf(error));
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// `path` is what the person gave.
void CheckFolder(const std::string& folder, const std::string& path) {
  const std::string shown = "the folder '" + Shown(folder) + "'";
  struct stat found {};
  if (::stat(folder.c_str(), &found) != 0) {
    const int error = errno;
    if (error != ENOENT) Fail("write", path, error, shown + ": ");
    throw Failure("cannot write '" + Shown(path) + "': " + shown +
                  " does not exist; make it, or name another path");
  }
  if (!S_ISDIR(found.st_mode)) {
    throw Failure("cannot write '" + Shown(path) + "': '" + Shown(folder) +
                  "' is not a folder; name another path");
  }
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    Fail("write", path, errno, shown + ": ");
  }
}

// Writes all of `text`. Returns 0 or errno.
int WriteTo(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(fd, text.data(), text.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno;
    text.remove_prefix(static_cast<size_t>(size));
  }
  return 0;
}

// Writes `text` and closes `fd`. Returns 0 or errno.
int WriteAndClose(int fd, std::string_view text) {
  const int error = WriteTo(fd, text);
  return ::close(fd) != 0 && error == 0 ? errno : error;
}

void WriteOpened(const std::string& path, std::string_view text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) Fail("open", path, errno);
  if (const int error = WriteAndClose(fd, text)) Fail("write", path, error);
}

void WriteAndRename(const std::string& path, std::string_view text,
                    mode_t mode) {
  std::string draft = path + ".part-XXXXXX";
  const int fd = ::mkostemp(draft.data(), O_CLOEXEC);
  if (fd < 0) Fail("write", path, errno);
  int error = ::fchmod(fd, mode) == 0 ? 0 : errno;
  const int written = WriteAndClose(fd, text);
  if (error == 0) error = written;
  if (error == 0 && ::rename(draft.c_str(), path.c_str()) == 0) return;
  if (error == 0) error = errno;
  ::unlink(draft.c_str());
  Fail("write", path, error);
}

// Returns the mode of a new file. REQUIRES: this process has one thread.
mode_t NewFileMode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

void CheckFolderOf(const std::string& path) {
  CheckFolder(FolderOf(FileOf(path)), path);
}

void CheckFolderAt(const std::string& path) {
  std::string folder = path;
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  struct stat found {};
  const bool exists = ::stat(folder.c_str(), &found) == 0;
  CheckFolder(exists ? folder : FolderOf(folder), path);
}

std::string FileOf(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0 || !S_ISLNK(found.st_mode)) {
    return path;
  }
  const std::unique_ptr<char, decltype(&::free)> resolved(
      ::realpath(path.c_str(), nullptr), ::free);
  if (resolved == nullptr) Fail("follow the link", path, errno);
  return resolved.get();
}

bool IsStdout(const std::string& path) {
  return DescriptorOf(path) == STDOUT_FILENO;
}

void WriteOutput(const std::string& path, std::string_view text) {
  if (const int fd = DescriptorOf(path); fd >= 0) {
    if (const int error = WriteTo(fd, text)) Fail("write", path, error);
    return;
  }
  const std::string file = FileOf(path);
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) CheckFolderOf(path);
    if (error != ENOENT) Fail("write", path, error);
    WriteAndRename(file, text, NewFileMode());
  } else if (S_ISREG(found.st_mode)) {
    CheckFolderOf(path);
    WriteAndRename(file, text, found.st_mode & 0777);
  } else if (S_ISDIR(found.st_mode)) {
    throw Failure("cannot write '" + Shown(path) +
                  "': it is a folder; name a file in it");
  } else {
    WriteOpened(path, text);
  }
}

}  // namespace shardctl
