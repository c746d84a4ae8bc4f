// SPDX-License-Identifier: Apache-2.0
//
// RankOutput: reads the pipes of all ranks, or is fed with what other hosts
// have read, and writes the lines to stdout and stderr, with the rank in front.
//
// A reader of shardctl's own output that stalls stops the ranks that print: the
// queues fill, and their pipes are not read any more. Nothing else stops.
//
// Threads: one caller; the queues have threads of their own. REQUIRES: SIGPIPE
// is ignored.

#ifndef SHARD_SDK_CLI_COMMANDS_RANK_OUTPUT_H_
#define SHARD_SDK_CLI_COMMANDS_RANK_OUTPUT_H_

#include <poll.h>

#include <string>
#include <string_view>
#include <vector>

#include "sdk/cli/output.h"
#include "sdk/cli/output_queue.h"

namespace shardctl {

// The rank of output that is no rank's.
inline constexpr int kNoRank = -1;

class RankOutput {
 public:
  RankOutput();

  // Returns whether stdout, or stderr, is a terminal.
  bool IsTerminal(bool error) const { return screen_.IsTerminal(error); }

  // Adds a rank whose output comes through the non-blocking pipes `out` and
  // `error`, which are closed when they end, or by Finish. -1: it has none.
  void Add(int rank, const std::string& prefix, int out, int error);

  // Takes output of a rank that was added without a pipe for it, at once,
  // whether or not the queues have room.
  void Feed(int rank, bool error, std::string_view bytes);

  // Returns whether a queue has no room, so that no more should be fed.
  bool full() const { return out_queue_.full() || error_queue_.full(); }

  // Adds descriptors that are readable when there is something to do: output of
  // ranks for which a queue has room, and progress of the queues.
  void AddToPoll(std::vector<pollfd>* entries) const;

  // Reads the ranks' output while the queues have room.
  void Read() { ReadAll(/*as_queued=*/true); }

  // Reads all output that is in the pipes, whether or not the queues have room.
  void ReadNow() { ReadAll(/*as_queued=*/false); }

  // Reads all output that is in the pipes, writes the incomplete last lines,
  // and closes the pipes. A process that a rank left behind may hold them open.
  void Finish();

  // Writes a line of shardctl's own to stderr.
  void Say(const std::string& text) { screen_.Line(true, "shardctl: ", text); }

  // Returns whether a reader took output since the last call.
  bool TakeProgress();

  // Returns whether everything is written, or cannot be.
  bool AllIsWritten();

  // Says once that stdout takes nothing, as on a full disk. The ranks go on, as
  // they do when nobody reads.
  void NoticeLostOutput();

 private:
  // One of the two streams of a rank.
  struct Pipe {
    int rank;
    bool error;
    int fd;  // -1: closed, or fed.
    std::string prefix;
    LineSplitter lines;
  };

  OutputQueue& Queue(bool error) {
    return error && !one_queue_ ? error_queue_ : out_queue_;
  }
  const OutputQueue& Queue(bool error) const {
    return error && !one_queue_ ? error_queue_ : out_queue_;
  }
  void ReadAll(bool as_queued);
  void Read(Pipe* pipe, bool as_queued);
  void Take(Pipe* pipe, std::string_view bytes);
  // Writes the incomplete last line.
  void End(Pipe* pipe);

  const bool one_queue_;
  OutputQueue out_queue_;
  OutputQueue error_queue_;
  Screen screen_;
  std::vector<Pipe> pipes_;
  bool output_is_lost_ = false;  // And the message is printed.
};

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_RANK_OUTPUT_H_
