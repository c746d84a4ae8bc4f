// SPDX-License-Identifier: Apache-2.0

#include "core/observe/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/strings.h"
#include "core/base/write_signals.h"

namespace shard {

StatusOr<LineFile> LineFile::Open(const std::string& path) {
  if (path.empty()) return LineFile(Fd());
  // Does not wait for the reader of a FIFO.
  Fd fd(::open(
      path.c_str(),
      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
  if (!fd.valid()) {
    return ErrnoStatus(StrCat("opening the log file '", path, "'"), errno);
  }
  return LineFile(std::move(fd));
}

void LineFile::Write(std::string_view line) const {
  const int fd = fd_.valid() ? fd_.get() : STDERR_FILENO;
  ssize_t written = 0;
  do {
    written = WithoutWriteSignals(
        [&] { return ::write(fd, line.data(), line.size()); });
  } while (written < 0 && errno == EINTR);
}

}  // namespace shard
