// SPDX-License-Identifier: Apache-2.0
//
// Trace: the trace events of one rank, on their way into a TraceFile. Events
// are formatted into a buffer of fixed size, and written when somebody calls
// Flush. An event that finds the buffer full is dropped and counted.
//
// In the viewer a rank is a process, and its threads are the threads of it; so
// are the streams of devices.
// Times are those of the host's monotonic clock, which all ranks of a host
// share.
//
// Threads: any.

#ifndef SHARD_CORE_OBSERVE_TRACE_H_
#define SHARD_CORE_OBSERVE_TRACE_H_

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/observe/event.h"
#include "core/observe/trace_file.h"

namespace shard {

class Trace {
 public:
  // Keeps events in memory until Start.
  Trace(std::string path, int rank, int world_size);

  // Opens the file, once the ranks have met. Rank 0 begins it, and sets
  // `*number` to its number in the series of the path (see file_claim.h), by
  // which the other ranks join. Called once, while no other thread uses this.
  Status Start(int* number);

  // Adds a span of the calling thread, or of a device's stream; with `begin` ==
  // `end` a moment. `error`: the name of the code of the error, or "".
  void Add(EventId event, const EventArguments& arguments, int64_t begin,
           int64_t end, std::string_view error, const DeviceTrack& track);

  // Returns true when the buffer is more than half full.
  bool is_filling() const {
    return used_.load(std::memory_order_relaxed) > kBytes / 2;
  }

  // Writes the events so far. Returns false when they have to wait: for Start,
  // for another thread that is writing, or for another rank that has the file.
  // `last` waits for the file, at most a second, and drops the events then. An
  // error is returned once: nothing is written from then on.
  StatusOr<bool> Flush(bool last);

  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  // The size of each of the two buffers: several steps of a large model.
  static constexpr size_t kBytes = size_t{256} << 10;
  // Threads of a rank that the trace knows.
  static constexpr size_t kMostThreads = 64;

  // Numbers of streams, which no thread has, are this one and more.
  static constexpr pid_t kFirstStream = pid_t{1} << 29;

  struct Thread {
    pthread_t handle;
    const void* stream;  // Null: it is a thread.
    pid_t number;
  };

  // REQUIRES, below: the lock of mutex_. Append returns false for a line that
  // it drops.
  bool Append(std::string_view line);
  // Returns the number of a stream, in the trace of every communicator of the
  // process.
  static pid_t NumberOfStream(const void* stream);
  // Returns the number of the calling thread, or of a stream, and names one
  // that is new. A thread that takes the handle of one that has ended takes its
  // number too, and so does a stream.
  pid_t NumberOf(const DeviceTrack& track);

  const std::string path_;
  const int rank_;
  std::optional<TraceFile> file_;  // From Start on, constant.
  std::atomic<bool> started_ = false;
  std::atomic<bool> failed_ = false;
  std::atomic<uint64_t> dropped_ = 0;
  std::atomic<size_t> used_ = 0;  // The bytes in `filling_`.

  std::mutex mutex_;
  std::unique_ptr<char[]> filling_;                // GUARDED_BY(mutex_)
  std::array<Thread, kMostThreads> threads_ = {};  // GUARDED_BY(mutex_)
  size_t num_threads_ = 0;                         // GUARDED_BY(mutex_)
  uint64_t num_events_ = 0;          // Those in `filling_`. GUARDED_BY(mutex_)
  std::mutex flush_mutex_;           // Locked before mutex_.
  std::unique_ptr<char[]> writing_;  // GUARDED_BY(flush_mutex_)
};

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_TRACE_H_
