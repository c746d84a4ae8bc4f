// SPDX-License-Identifier: Apache-2.0
//
// StartHelper: starts a program that the host process never notices. The host
// gets no SIGCHLD, no wait of the host returns the program, and the program
// inherits nothing but what it is given.
//
// The program is the grandchild of the host. The child between them sends no
// signal at its end (its exit_signal is 0), is seen by no wait without __WCLONE
// and ends as soon as the program runs, which then belongs to the init process.
//
// Where the host is init itself, or a subreaper (PR_SET_CHILD_SUBREAPER), the
// program would come back to the host, with SIGCHLD; nor could it be a child
// without a signal, for exec sets the signal to SIGCHLD. There the child stays,
// as a keeper: a process that shares the host's memory, touches its own stack
// alone, sleeps until the program or the host ends, and then ends. The host may
// see it in a list of processes, never in a wait, and as a zombie no longer
// than until ReapKeepers.
//
// The children share the host's memory for some microseconds, as those of
// posix_spawn: fork would copy the page tables of a host with much memory.

#ifndef SHARD_CORE_COMM_NETWORK_START_HELPER_H_
#define SHARD_CORE_COMM_NETWORK_START_HELPER_H_

#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"

namespace shard::network {

struct HelperProgram {
  std::string path;                    // Absolute.
  std::vector<std::string> arguments;  // Those after its name.
  // The descriptors that the program has from 3 on, in this order. Each above
  // 2. At most 8.
  std::vector<int> fds;
  // Whether the program has the host's standard error output; else /dev/null,
  // which its standard input and output are always.
  bool keep_stderr = false;
};

// Starts a program in a session of its own, in the folder "/", with default
// signal dispositions, no blocked signal and the host's environment. Returns
// once the program runs, or why it does not: kBackendUnavailable where it
// cannot be executed; kResourceExhausted where the host may not open more files
// or start more processes; kDeadlineExceeded. Any thread, which may end at
// once.
Status StartHelper(const HelperProgram& program, const Deadline& deadline);

// Returns whether the environment asks for logs on the standard error output:
// by SHARD_LOG, without a SHARD_LOG_FILE. Then a helper keeps that of the host.
bool LogsToStderr();

// Frees what remains of the keepers that have ended. Waits until `deadline` for
// those that have not. Does nothing in a host that has none.
void ReapKeepers(const Deadline& deadline);

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_START_HELPER_H_
