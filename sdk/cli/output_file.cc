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

// The descriptor that a name of /dev stands for, or -1. To open such a name
// would begin a file anew, and fails for a socket.
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

[[noreturn]] void Fail(const char* what, const std::string& path, int error) {
  throw Failure(std::string("cannot ") + what + " '" + Shown(path) +
                "': " + std::strerror(error));
}

// 0 or errno.
int WriteTo(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(fd, text.data(), text.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno;
    text.remove_prefix(static_cast<size_t>(size));
  }
  return 0;
}

// Takes `fd`. 0 or errno.
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
  if (fd < 0) Fail("make", path, errno);
  int error = ::fchmod(fd, mode) == 0 ? 0 : errno;
  const int written = WriteAndClose(fd, text);
  if (error == 0) error = written;
  if (error == 0 && ::rename(draft.c_str(), path.c_str()) == 0) return;
  if (error == 0) error = errno;
  ::unlink(draft.c_str());
  Fail("write", path, error);
}

// That of a new file. REQUIRES: this process has one thread.
mode_t NewFileMode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

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
    if (errno != ENOENT) Fail("write", path, errno);
    WriteAndRename(file, text, NewFileMode());
  } else if (S_ISREG(found.st_mode)) {
    WriteAndRename(file, text, found.st_mode & 0777);
  } else if (S_ISDIR(found.st_mode)) {
    throw Failure("cannot write '" + Shown(path) +
                  "': it is a folder; name a file in it");
  } else {
    WriteOpened(path, text);
  }
}

}  // namespace shardctl
