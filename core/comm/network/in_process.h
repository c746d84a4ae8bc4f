// SPDX-License-Identifier: Apache-2.0
//
// The network helper on a thread of a rank's process, for tests: ?isolate=0.
// There a debugger and a sanitizer see it beside the ranks. It is no way to
// train: whatever ends the helper then ends the host.
//
// The helper links libraries that libshard.so does not. So the code is there
// only in programs that link //sdk/network:in_process.

#ifndef SHARD_CORE_COMM_NETWORK_IN_PROCESS_H_
#define SHARD_CORE_COMM_NETWORK_IN_PROCESS_H_

#include "core/base/fd.h"
#include "core/base/status.h"

namespace shard::network {

// Starts a thread that serves the ranks which connect to `listening`.
// `keep_stderr`: whether its lines go to the standard error output.
using InProcessStart = Status (*)(Fd listening, bool keep_stderr);

// Makes the code known. Called before main.
void SetInProcessStart(InProcessStart start);

// Calls it. kBackendUnavailable where this program does not have the code.
Status StartInProcess(Fd listening, bool keep_stderr);

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_IN_PROCESS_H_
