// SPDX-License-Identifier: Apache-2.0
//
// `shardctl run`: starts N ranks of a program on this host, or on several,
// shows their output, and ends all of them when one fails.

#ifndef SHARD_SDK_CLI_COMMANDS_RUN_H_
#define SHARD_SDK_CLI_COMMANDS_RUN_H_

#include <string>
#include <utility>
#include <vector>

#include "sdk/cli/commands/bind.h"
#include "sdk/cli/commands/host_list.h"
#include "sdk/cli/commands/local_ranks.h"

namespace shardctl {

struct RunOptions {
  int ranks = 1;       // Of this host, unless there are `hosts`.
  double timeout = 0;  // Seconds for the whole run; 0: no limit.
  int restarts = 0;    // The number of further starts after failures.
  Binding binding = Binding::kNone;
  std::string name;  // The rendezvous point; empty: one of its own.
  // Variables for the ranks, beside those of shardctl.
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::string> command;  // Program and arguments; not empty.

  // For several hosts; each is the word that its option describes.
  std::vector<HostRanks> hosts;  // Empty: the ranks run here.
  std::string via;               // Empty: ssh.
  std::string shardctl;          // The program on the hosts; empty: this one.
  std::string master_host;       // Empty: the first host.
  int master_port = 0;           // 0: chosen.
  double host_timeout = 60;      // Seconds to reach a host, and of silence.
};

// The exit code of shardctl when the run took longer than its timeout: that of
// timeout(1).
inline constexpr int kTimedOut = 124;

// The exit code of shardctl when a host cannot be reached or is lost: that of
// ssh.
inline constexpr int kHostLost = 255;

// The seconds that ranks may take to end after SIGTERM, before SIGKILL.
inline constexpr double kGraceSeconds = 5;

// The seconds that the other ranks may go on after the first failure that is
// seen. The first may be a rank that failed because of another; the other then
// ends in this time.
inline constexpr double kSettleSeconds = 1;

// The seconds without a read, after a signal or the timeout, after which the
// rest of the output is dropped.
inline constexpr double kStalledSeconds = 1;

// The exit code of a rank that ended because another one did: SHARD_RANK_LOST.
inline constexpr int kFollowed = 65;

// Runs the ranks and returns the exit code of shardctl: 0 when all ranks ended
// with 0, else that of the rank that explains the failure best, or 128 + its
// signal. It is chosen among the failures within kSettleSeconds of the first
// one:
//   1. a rank that a signal ended, other than the SIGABRT of abort(), or a host
//      that is lost;
//   2. a rank that ended with another code than kFollowed;
//   3. any;
// of several of one kind, the one that was seen first.
//
// After a failure all ranks are started again, `restarts` times, unless they
// cannot be started, or shardctl itself was told to end.
//
// With several ranks, processes that they leave running in their process groups
// are told to end when a rank fails, and killed when all ranks of their host
// have ended. A reader of the output that stalls stops the ranks that print,
// and nothing else. When stdout takes nothing, as on a full disk, their lines
// are lost; a message says so once.
int Run(const RunOptions& options);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_RUN_H_
