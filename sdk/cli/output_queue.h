// SPDX-License-Identifier: Apache-2.0
//
// OutputQueue: writes text to a descriptor from a thread of its own, so that a
// reader that stalls does not stall the caller.
//
// The descriptor may be a terminal or a pipe that other processes share, and
// O_NONBLOCK is shared by all of them: the flag stays as it is, and the writes
// block. To poll before each write is not enough, because another writer may
// take the room in between.
//
// Nothing is dropped while the queue exists. When full(), the caller reads no
// more from the writers of the text, who then wait as they would without the
// queue. The destructor drops text that nobody has read.
//
// Threads: one caller. The queue's thread starts with the first Append, with
// the signal mask of the caller. REQUIRES: SIGPIPE is ignored.

#ifndef SHARD_SDK_CLI_OUTPUT_QUEUE_H_
#define SHARD_SDK_CLI_OUTPUT_QUEUE_H_

#include <cstddef>
#include <memory>
#include <string_view>
#include <thread>

namespace shardctl {

class OutputQueue {
 public:
  // The queue is full from this many bytes on. Append still takes more, which
  // the caller has read already.
  static constexpr size_t kFullBytes = size_t{1} << 20;

  // Does not own `fd`. Without descriptors or threads Append writes itself, and
  // may block.
  explicit OutputQueue(int fd);
  ~OutputQueue();
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  // Does not block. Text that ends in '\n' is written in pieces that end there,
  // so that other writers come between lines. Drops the text when `fd` has no
  // reader any more.
  void Append(std::string_view text);

  bool full() const;
  bool empty() const;

  // Returns the errno of the first write that failed although `fd` has a
  // reader, as on a full disk; 0 when none did. Its text was dropped.
  int error() const;

  // Returns a descriptor that is readable once something has been written since
  // the last TakeProgress; -1 when Append writes itself.
  int progress_fd() const;
  // Returns whether anything was written since the last TakeProgress.
  bool TakeProgress();

 private:
  struct State;

  const int fd_;
  // Shared with the thread, which may be stuck in a write for good.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

// Writes all of `bytes`, whether or not `fd` is non-blocking, and returns 0; or
// drops the rest when a write fails, and returns its errno.
int WriteAll(int fd, std::string_view bytes);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_OUTPUT_QUEUE_H_
