// SPDX-License-Identifier: Apache-2.0
//
// `shardctl run`: starts N ranks of a program on this host, shows their output,
// and ends all of them when one fails.

#ifndef SHARD_SDK_CLI_COMMANDS_RUN_H_
#define SHARD_SDK_CLI_COMMANDS_RUN_H_

#include <string>
#include <vector>

namespace shardctl {

struct RunOptions {
  int ranks = 1;
  double timeout = 0;  // Seconds for the whole run; 0: no limit.
  std::string name;    // The rendezvous point; empty: one of its own.
  std::vector<std::string> command;  // Program and arguments; not empty.
};

// The exit codes of shardctl when the run took longer than its timeout, and
// when the program cannot be started: those of timeout(1) and of shells.
inline constexpr int kTimedOut = 124;
inline constexpr int kCannotRun = 126;
inline constexpr int kNotFound = 127;

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
//   1. a rank that a signal ended, other than the SIGABRT of abort();
//   2. a rank that ended with another code than kFollowed;
//   3. any;
// of several of one kind, the one that was seen first.
//
// With several ranks, processes that they leave running in their process groups
// are told to end when a rank fails, and killed when all ranks have ended. A
// reader of the output that stalls stops the ranks that print, and nothing
// else. When stdout takes nothing, as on a full disk, their lines are lost; a
// message says so once.
int Run(const RunOptions& options);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_RUN_H_
