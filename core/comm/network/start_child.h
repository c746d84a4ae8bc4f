// SPDX-License-Identifier: Apache-2.0
//
// The code of StartHelper that runs in the children. They share the memory of
// the host and the thread pointer of a host's thread that goes on, or ends,
// meanwhile. So this code calls nothing of libc, not even for errno, and is
// compiled without sanitizers and stack protectors, which use that thread's
// memory.

#ifndef SHARD_CORE_COMM_NETWORK_START_CHILD_H_
#define SHARD_CORE_COMM_NETWORK_START_CHILD_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace shard::network {

// The step of a start that failed, or kRunning.
enum class StartStep : int32_t {
  kNone = 0,     // The program's process ended before it could tell.
  kProcess,      // A new process.
  kDescriptors,  // The descriptors of the program.
  kNull,         // /dev/null.
  kExecute,      // The program.
  kRunning,      // No error.
};

// The one message of the child, through the pipe.
struct StartReport {
  StartStep step;
  int32_t error;  // errno
};

// Everything that the children read. Stays in memory until the child has ended.
struct ChildPlan {
  static constexpr int kMostFds = 8;

  const char* path;
  char* const* arguments;
  char* const* environment;
  int fds[kMostFds];
  int fd_count;
  bool keep_stderr;
  // Whether the child stays until the program or the host ends.
  bool is_keeper;
  pid_t host;
  int report_fd;
  std::byte* program_stack;  // The end of the program's stack until it runs.

  // Set by the program's process, read by the child.
  StartReport report;
};

// Makes the child, which works on a stack that ends at `stack`. Returns its
// process id, or -errno.
pid_t CloneChild(ChildPlan* plan, std::byte* stack);

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_START_CHILD_H_
