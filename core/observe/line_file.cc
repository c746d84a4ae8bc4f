// SPDX-License-Identifier: Apache-2.0

#include "core/observe/line_file.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/base/write_signals.h"

namespace shard {

namespace {

constexpr double kMostWait = 0.1;  // Seconds.

// Waits, at most `seconds`, until a write to `fd` would not block, because a
// pipe or a terminal whose reader has stopped would hold this rank, and then
// all others, for ever.
bool WaitForRoom(int fd, double seconds) {
  const Deadline deadline = Deadline::After(seconds);
  pollfd room = {fd, POLLOUT, 0};
  int ready = 0;
  do {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline.Remaining());
    ready = ::poll(&room, 1, static_cast<int>(left.count()));
  } while (ready < 0 && errno == EINTR && !deadline.Expired());
  return ready > 0;
}

}  // namespace

StatusOr<LineFile> LineFile::Open(const std::string& path) {
  if (path.empty()) return LineFile(Fd());
  // Does not wait for the reader of a FIFO.
  Fd fd(::open(
      path.c_str(),
      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
  if (!fd.valid()) {
    if (errno == ENXIO) {
      return FailedPrecondition("the log file '", path,
                                "' is a FIFO that nobody reads; start its "
                                "reader first");
    }
    return ErrnoStatus(StrCat("opening the log file '", path, "'"), errno);
  }
  return LineFile(std::move(fd));
}

bool LineFile::Write(std::string_view line, bool waits) const {
  const int fd = fd_.valid() ? fd_.get() : STDERR_FILENO;
  if (!WaitForRoom(fd, waits ? kMostWait : 0)) return false;
  ssize_t written = 0;
  do {
    written = WithoutWriteSignals(
        [&] { return ::write(fd, line.data(), line.size()); });
  } while (written < 0 && errno == EINTR);
  return written == static_cast<ssize_t>(line.size());
}

}  // namespace shard
