// SPDX-License-Identifier: Apache-2.0
//
// The process of a rank, or of the command that reaches another host.

#ifndef SHARD_SDK_CLI_COMMANDS_PROCESS_H_
#define SHARD_SDK_CLI_COMMANDS_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace shardctl {

struct SpawnOptions {
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;  // Added.
  // Output through pipes, input from /dev/null, a process group of its own (so
  // that a Ctrl-C reaches the ranks once, through shardctl). Else the process
  // has the terminal as if it had been started without shardctl.
  bool detached = true;
  // Input through a pipe too. REQUIRES: detached.
  bool pipe_input = false;
};

struct Process {
  pid_t pid = -1;
  // The ends of its pipes that are here, non-blocking; -1: not piped.
  int in = -1;
  int out = -1;
  int error = -1;
  int spawn_errno = 0;  // Not 0: it could not be started.
};

// Starts a process, which is killed when this one ends, for whatever reason. No
// signal is blocked in the process, and SIGPIPE is not ignored. REQUIRES: this
// process has one thread.
Process Spawn(const SpawnOptions& options);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_PROCESS_H_
