// SPDX-License-Identifier: Apache-2.0
//
// RankOutput: reads the pipes of all ranks and writes their lines to stdout and
// stderr, with the rank in front.
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
#include <vector>

#include "sdk/cli/output.h"
#include "sdk/cli/output_queue.h"

namespace shardctl {

class RankOutput {
 public:
  RankOutput();

  // Returns whether stdout, or stderr, is a terminal.
  bool IsTerminal(bool error) const { return screen_.IsTerminal(error); }

  // Adds a rank whose output comes through the non-blocking pipes `out` and
  // `error`, which are closed when they end, or by Finish. -1: it has none.
  void Add(int rank, const std::string& prefix, int out, int error);

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
  // One of the two pipes of a rank.
  struct Pipe {
    int rank;
    bool error;
    int fd;
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
  void Close(Pipe* pipe);

  const bool one_queue_;
  OutputQueue out_queue_;
  OutputQueue error_queue_;
  Screen screen_;
  std::vector<Pipe> pipes_;
  bool output_is_lost_ = false;  // And the message is printed.
};

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_RANK_OUTPUT_H_
