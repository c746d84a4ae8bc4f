// SPDX-License-Identifier: Apache-2.0
//
// TraceFile: a file of trace events that the ranks of a host write together, in
// the format that Perfetto and chrome://tracing open: a JSON array, one event
// per line.
//
// The array is complete after every write: a write replaces the closing bracket
// by its events and a bracket. Writers lock the file (flock) meanwhile, so they
// may be threads and processes. A writer that dies within a write leaves part
// of a line, which the next writer removes.
//
// Threads: one at a time.

#ifndef SHARD_CORE_OBSERVE_TRACE_FILE_H_
#define SHARD_CORE_OBSERVE_TRACE_FILE_H_

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>

#include "core/base/fd.h"
#include "core/base/status.h"

namespace shard {

class TraceFile {
 public:
  // A viewer opens no larger file.
  static constexpr off_t kMostBytes = off_t{1} << 30;

  // Opens or makes the file at `path`, which is a regular file. `begins`:
  // removes what the file holds, unless this process has begun the file before.
  static StatusOr<TraceFile> Open(const std::string& path, bool begins);

  // Returns whether this writer now has the file; false while another one has
  // it. Never waits. An error where the file system has no locks.
  StatusOr<bool> TryLock() const;
  // As TryLock, but waits for the other writer, at most a second.
  StatusOr<bool> Lock() const;
  // Ends TryLock and Lock. Errors are of no account: closing ends the lock too.
  void Unlock() const;

  // Appends `events`, each beginning with ",\n". After an error the file
  // holds what it held before. kResourceExhausted for a file that is too long.
  // REQUIRES: the lock.
  Status Append(std::string_view events) const;

 private:
  TraceFile(std::string path, Fd fd)
      : path_(std::move(path)), fd_(std::move(fd)) {}

  // Removes what the file holds.
  Status Empty() const;
  // Returns the place behind the last whole event.
  StatusOr<off_t> FindEnd() const;
  Status Write(std::string_view bytes, off_t at) const;
  Status Error(std::string_view what) const;

  std::string path_;
  Fd fd_;
};

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_TRACE_FILE_H_
