// SPDX-License-Identifier: Apache-2.0
//
// NCCL's variables of the environment: what is set, and what it does to
// libshard.

#ifndef SHARD_SDK_CLI_COMMANDS_NCCL_VARIABLES_H_
#define SHARD_SDK_CLI_COMMANDS_NCCL_VARIABLES_H_

#include <string>
#include <vector>

namespace shardctl {

struct NcclVariable {
  std::string name;   // "NCCL_DEBUG"
  std::string value;  // "INFO"
  std::string file;   // The configuration file that sets it, or "".
};

// Returns the variables that are set, by name: those of the environment, then
// those of the files that NCCL reads.
std::vector<NcclVariable> FindNcclVariables();

struct NcclEffect {
  std::string text;    // "harmless: NCCL writes a log"
  std::string remedy;  // Where something is wrong; else "".
};

// Returns what a variable does to libshard.
NcclEffect EffectOf(const NcclVariable& variable);

// Returns which of `interfaces` a value of NCCL_SOCKET_IFNAME names, by NCCL's
// rules: prefixes; with '=' in front, names; with '^' in front, all others.
std::vector<std::string> NamedInterfaces(
    const std::string& value, const std::vector<std::string>& interfaces);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_NCCL_VARIABLES_H_
