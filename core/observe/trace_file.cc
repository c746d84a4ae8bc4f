// SPDX-License-Identifier: Apache-2.0

#include "core/observe/trace_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>

#include "core/base/strings.h"
#include "core/base/write_signals.h"

namespace shard {

namespace {

// Every event but the first begins with a comma: the file begins with an event
// of its own.
constexpr std::string_view kBegin =
    "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":"
    "\"rank 0\"}}";
constexpr std::string_view kEnd = "\n]\n";

// More than the longest line.
constexpr off_t kTail = off_t{16} << 10;

// Lets another writer end, which takes microseconds.
void PauseAMillisecond() {
  const timespec pause = {0, 1'000'000};
  ::nanosleep(&pause, nullptr);
}

// Returns true at the first call of this process for a file. The files are kept
// as numbers in a table without a lock, which a child of fork can use; a file
// beyond the table is never begun. The path is part of the number, for a file
// that was deleted leaves its inode to another one.
bool IsFirstOfProcess(const std::string& path, const struct stat& file) {
  static constinit std::atomic<uint64_t> begun[64] = {};
  uint64_t number = std::hash<std::string>()(path);
  for (const auto part :
       {static_cast<uint64_t>(file.st_dev), static_cast<uint64_t>(file.st_ino),
        static_cast<uint64_t>(::getpid())}) {
    number = (number ^ part) * 0x9E3779B97F4A7C15;
  }
  number |= 1;
  for (std::atomic<uint64_t>& known : begun) {
    uint64_t free = 0;
    if (known.compare_exchange_strong(free, number)) return true;
    if (free == number) return false;
  }
  return false;
}

}  // namespace

Status TraceFile::Error(std::string_view what) const {
  return ErrnoStatus(StrCat(what, " the trace '", path_, "'"), errno);
}

StatusOr<TraceFile> TraceFile::Open(const std::string& path, bool begins) {
  // Does not wait for the other end of a FIFO, which is then refused.
  TraceFile file(
      path,
      Fd(::open(path.c_str(),
                O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666)));
  if (!file.fd_.valid()) return file.Error("opening");
  struct stat facts;
  if (::fstat(file.fd_.get(), &facts) != 0) return file.Error("opening");
  if (!S_ISREG(facts.st_mode)) {
    return FailedPrecondition("the trace '", path,
                              "' is not a regular file; name one, or a path "
                              "where there is nothing yet");
  }
  if (begins && IsFirstOfProcess(path, facts)) {
    SHARD_RETURN_IF_ERROR(file.Empty());
  }
  return file;
}

Status TraceFile::Empty() const {
  // A rank of another run that writes meanwhile would write behind the end.
  const StatusOr<bool> locked = Lock();
  if (locked.ok() && !*locked) {
    return Unavailable("another process has been writing the trace '", path_,
                       "' for a second; end it, or name another file");
  }
  // Where there are no locks, nobody writes.
  const Status status =
      ::ftruncate(fd_.get(), 0) == 0 ? Status() : Error("emptying");
  if (locked.ok()) Unlock();
  return status;
}

StatusOr<bool> TraceFile::TryLock() const {
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK || errno == EINTR) return false;
  return Error("locking");
}

StatusOr<bool> TraceFile::Lock() const {
  constexpr int kMostPauses = 1000;
  StatusOr<bool> locked = TryLock();
  for (int p = 0; locked.ok() && !*locked && p < kMostPauses; ++p) {
    PauseAMillisecond();
    locked = TryLock();
  }
  return locked;
}

void TraceFile::Unlock() const { ::flock(fd_.get(), LOCK_UN); }

StatusOr<off_t> TraceFile::FindEnd() const {
  struct stat facts;
  if (::fstat(fd_.get(), &facts) != 0) return Error("reading");
  const off_t begin = facts.st_size > kTail ? facts.st_size - kTail : 0;
  char tail[kTail];
  const ssize_t count =
      ::pread(fd_.get(), tail, static_cast<size_t>(kTail), begin);
  if (count < 0) return Error("reading");
  const std::string_view text(tail, static_cast<size_t>(count));
  // Each event is a line of its own, with the comma of the next one.
  for (size_t at = text.size(); at-- > 2;) {
    if (text[at] != '\n') continue;
    const size_t end = text[at - 1] == ',' ? at - 1 : at;
    if (text[end - 1] == '}') return begin + static_cast<off_t>(end);
  }
  return off_t{0};
}

Status TraceFile::Write(std::string_view bytes, off_t at) const {
  while (!bytes.empty()) {
    const ssize_t count = WithoutSizeSignal(
        [&] { return ::pwrite(fd_.get(), bytes.data(), bytes.size(), at); });
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error("writing");
    bytes.remove_prefix(static_cast<size_t>(count));
    at += count;
  }
  return Status();
}

Status TraceFile::Append(std::string_view events) const {
  SHARD_ASSIGN_OR_RETURN(const off_t before, FindEnd());
  if (before + static_cast<off_t>(events.size()) > kMostBytes) {
    return ResourceExhausted("the trace '", path_, "' has ", before,
                             " bytes; at most ", kMostBytes,
                             " are written: trace fewer steps");
  }
  Status status;
  off_t end = before;
  if (end == 0) {
    status = Write(kBegin, 0);
    end = static_cast<off_t>(kBegin.size());
  }
  const off_t next = end + static_cast<off_t>(events.size());
  if (status.ok()) status = Write(events, end);
  if (status.ok()) status = Write(kEnd, next);
  // A writer that died within a write may have left more than was written now.
  if (status.ok() &&
      ::ftruncate(fd_.get(), next + static_cast<off_t>(kEnd.size())) != 0) {
    status = Error("writing");
  }
  if (status.ok()) return status;
  // There was room for the bracket where it stood before, unless nothing could
  // be written, and then the bracket still stands there.
  off_t size = before;
  if (before > 0) {
    if (!Write(kEnd, before).ok()) return status;
    size += static_cast<off_t>(kEnd.size());
  }
  if (::ftruncate(fd_.get(), size) != 0) return status;
  return status;
}

}  // namespace shard
