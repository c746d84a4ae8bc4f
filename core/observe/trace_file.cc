// SPDX-License-Identifier: Apache-2.0

#include "core/observe/trace_file.h"

#include <fcntl.h>
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

// The traces that this process has begun: a hash of the path and the process,
// and in the low bits the number of the file in the series of the path. The
// table has no lock, so that a child of fork can use it.
constexpr uint64_t kNumberBits = 0xFFFF;
constinit std::atomic<uint64_t> begun_traces[64] = {};

// Returns the hash of a path in this process.
uint64_t HashOfTrace(const std::string& path) {
  const uint64_t hash = std::hash<std::string>()(FromRoot(path)) ^
                        static_cast<uint64_t>(::getpid());
  return (hash * 0x9E3779B97F4A7C15) & ~kNumberBits;
}

// Returns the number of the file that this process has begun, 0 for none. A
// path beyond the table counts as begun.
int NumberOfBegun(uint64_t hash) {
  for (const std::atomic<uint64_t>& known : begun_traces) {
    const uint64_t begun = known.load();
    if (begun == 0) return 0;
    if ((begun & ~kNumberBits) == hash) {
      return static_cast<int>(begun & kNumberBits);
    }
  }
  return 1;
}

void RememberBegun(uint64_t hash, int number) {
  const uint64_t begun = hash | static_cast<uint64_t>(number);
  for (std::atomic<uint64_t>& known : begun_traces) {
    uint64_t free = 0;
    if (known.compare_exchange_strong(free, begun)) return;
    if ((free & ~kNumberBits) == hash) return;
  }
}

}  // namespace

Status TraceFile::Error(std::string_view what) const {
  return ErrnoStatus(StrCat(what, " the trace '", path_, "'"), errno);
}

StatusOr<TraceFile> TraceFile::Begin(const std::string& path) {
  const uint64_t hash = HashOfTrace(path);
  if (const int begun = NumberOfBegun(hash); begun > 0) {
    return Join(path, begun);
  }
  SHARD_ASSIGN_OR_RETURN(ClaimedFile claimed, ClaimFile("the trace", path));
  TraceFile file(std::move(claimed));
  if (::ftruncate(file.fd_.get(), 0) != 0) return file.Error("emptying");
  // The other ranks write the file too.
  SetLock(file.fd_.get(), FileLock::kClaim, F_RDLCK);
  RememberBegun(hash, file.number());
  // This copy, which nobody closes, has the claim until the process ends.
  ::fcntl(file.fd_.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  return file;
}

StatusOr<TraceFile> TraceFile::Join(const std::string& path, int number) {
  ClaimedFile joined;
  joined.path = NumberedPath(path, number);
  joined.number = number;
  SHARD_ASSIGN_OR_RETURN(joined.fd, OpenRegularFile("the trace", joined.path));
  // Keeps the file from another run when rank 0 has ended before this rank.
  SetLock(joined.fd.get(), FileLock::kClaim, F_RDLCK);
  return TraceFile(std::move(joined));
}

StatusOr<bool> TraceFile::TryLock() const {
  const LockResult result = SetLock(fd_.get(), FileLock::kWriting, F_WRLCK);
  if (result == LockResult::kError) return Error("locking");
  return result == LockResult::kLocked;
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

void TraceFile::Unlock() const {
  SetLock(fd_.get(), FileLock::kWriting, F_UNLCK);
}

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
  // FindEnd ignores what this leaves behind the end, should it fail.
  [[maybe_unused]] const int cut = ::ftruncate(fd_.get(), size);
  return status;
}

}  // namespace shard
