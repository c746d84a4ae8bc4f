// SPDX-License-Identifier: Apache-2.0
//
// LocalRanks: the processes of the ranks of this host.
//
// Ended ranks stay zombies until the end: that keeps their process ids, which
// name their groups, from naming someone else's.
//
// Threads: one, which has blocked SIGCHLD and reads it through a descriptor.

#ifndef SHARD_SDK_CLI_COMMANDS_LOCAL_RANKS_H_
#define SHARD_SDK_CLI_COMMANDS_LOCAL_RANKS_H_

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sdk/cli/commands/bind.h"

namespace shardctl {

// The exit codes of shardctl when the program cannot be started: those of
// shells.
inline constexpr int kCannotRun = 126;
inline constexpr int kNotFound = 127;

struct RankSetup {
  int first_rank = 0;
  int ranks = 1;  // Of this host.
  int world_size = 1;
  // See SpawnOptions. One rank alone may have the terminal.
  bool detached = true;
  std::vector<std::string> command;  // Program and arguments; not empty.
  // Variables of all ranks, beside those that name their places.
  std::vector<std::pair<std::string, std::string>> environment;
  int columns = 0;  // Of the terminal that shows rank 0; 0: there is none.
  Binding binding = Binding::kNone;
};

// Ranks that cannot be started.
struct StartError {
  int code;  // For shardctl.
  std::string text;
};

// The end of a rank, as waitid says it.
struct RankEnd {
  int rank;
  int code;    // CLD_EXITED, CLD_KILLED or CLD_DUMPED.
  int status;  // The exit code, or the signal.
};

class LocalRanks {
 public:
  // Called with each rank that was started, and with the read ends of its
  // pipes; see Process.
  using Started = std::function<void(int rank, int out, int error)>;

  // Starts the ranks. An error leaves the ranks that were started before it.
  std::optional<StartError> Start(const RankSetup& setup,
                                  const Started& started);

  // Returns the ranks that have not ended yet.
  int alive() const { return alive_; }

  // Returns the ranks that have ended since the last call. Does not wait.
  std::vector<RankEnd> TakeEnds();

  // Sends a signal to all process groups, those of ended ranks as well: they
  // may still have processes that the ranks have started.
  void Signal(int signal);

  // Kills what the ranks have left in their process groups, and frees their
  // process ids. REQUIRES: all ranks have ended.
  void KillAndReap();

 private:
  struct Rank {
    int rank;
    pid_t pid;
    bool alive = true;
  };

  bool detached_ = true;
  std::vector<Rank> ranks_;
  int alive_ = 0;
};

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_LOCAL_RANKS_H_
