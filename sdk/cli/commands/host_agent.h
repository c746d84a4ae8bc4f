// SPDX-License-Identifier: Apache-2.0
//
// `shardctl agent`: starts the ranks of this host for a `shardctl run --hosts`,
// which reaches it by its stdin and stdout, and ends them when that is gone.

#ifndef SHARD_SDK_CLI_COMMANDS_HOST_AGENT_H_
#define SHARD_SDK_CLI_COMMANDS_HOST_AGENT_H_

namespace shardctl {

// Runs until all ranks have ended, and returns the exit code of the process.
// Messages go to stderr.
int RunAgent();

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_HOST_AGENT_H_
