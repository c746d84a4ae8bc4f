// SPDX-License-Identifier: Apache-2.0
//
// The id of this process, for calls that must know whether they are in a child
// of fork, and are too short to ask the kernel each time.

#ifndef SHARD_CORE_BASE_PROCESS_ID_H_
#define SHARD_CORE_BASE_PROCESS_ID_H_

#include <sys/types.h>

namespace shard {

// Returns getpid(). Only the first call in a process is a system call, which
// takes four times as long as a call of the C interface does without it; where
// the kernel is older than Linux 4.14, each one is. Any thread, and also
// between fork and exec.
pid_t ProcessId();

}  // namespace shard

#endif  // SHARD_CORE_BASE_PROCESS_ID_H_
