// SPDX-License-Identifier: Apache-2.0
//
// TraceFile: a file of trace events that the ranks of a host write together, in
// the format that Perfetto and chrome://tracing open: a JSON array, one event
// per line.
//
// The array is complete after every write: a write replaces the closing bracket
// by its events and a bracket. Writers lock the file meanwhile, so they may be
// threads and processes. A writer that dies within a write leaves part of a
// line, which the next writer removes.
//
// A file has the trace of one run. Rank 0 begins it, and the other ranks join:
// see file_claim.h for a second run that is given the same path.
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
#include "core/observe/file_claim.h"

namespace shard {

class TraceFile {
 public:
  // A viewer opens no larger file.
  static constexpr off_t kMostBytes = off_t{1} << 30;

  // Claims the first file of the series of `path` that no other run is writing,
  // and removes what it holds. A process that has begun the trace of `path`
  // before joins it instead, so that it goes on after a communicator has ended.
  // The claim lasts until the process ends: a program that the process starts
  // later does not empty the file either.
  static StatusOr<TraceFile> Begin(const std::string& path);
  // Opens the file that rank 0 has begun, by its number in the series.
  static StatusOr<TraceFile> Join(const std::string& path, int number);

  int number() const { return number_; }

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
  explicit TraceFile(ClaimedFile file)
      : path_(std::move(file.path)),
        number_(file.number),
        fd_(std::move(file.fd)) {}

  // Returns the place behind the last whole event.
  StatusOr<off_t> FindEnd() const;
  Status Write(std::string_view bytes, off_t at) const;
  Status Error(std::string_view what) const;

  std::string path_;
  int number_;
  Fd fd_;
};

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_TRACE_FILE_H_
