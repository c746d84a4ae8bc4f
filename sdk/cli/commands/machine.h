// SPDX-License-Identifier: Apache-2.0
//
// The checks of this machine that `doctor` makes. Each gives a finding and,
// where something is not as it should be, a remedy.
//
// Nothing is changed, but for a file of a few MiB that is made in the folder
// under test, and unlinked before anything is written to it.

#ifndef SHARD_SDK_CLI_COMMANDS_MACHINE_H_
#define SHARD_SDK_CLI_COMMANDS_MACHINE_H_

#include <string>
#include <vector>

#include "sdk/cli/text.h"

namespace shardctl {

struct Finding {
  enum Level { kOk, kInfo, kWarn };

  std::string section;  // "library", "cpu", ...
  std::string name;     // Unique in its section.
  Level level = kOk;
  std::string found;
  std::string remedy;  // For kWarn.
};

// Checks which library is loaded, and whether it is the one of the header.
void LookAtLibrary(std::vector<Finding>* findings);
void LookAtCpu(std::vector<Finding>* findings);
void LookAtMemory(std::vector<Finding>* findings);
void LookAtLimits(std::vector<Finding>* findings);
// Checks threads, shared memory, and libraries that are loaded at run time.
void LookAtBackends(std::vector<Finding>* findings);
// Returns the object "cuda" of shard_devices_json.
Json DescribeGpus();
// Lists the GPUs, and the libraries for them.
void LookAtGpus(const Json& cuda, std::vector<Finding>* findings);
// Checks NCCL, and makes calls of it on each GPU. `seconds`: that NCCL may take
// for a check. One that is late then has 20 more (shard_comm_check_device).
void LookAtNccl(const Json& cuda, double seconds,
                std::vector<Finding>* findings);
void LookAtFolder(const std::string& folder, std::vector<Finding>* findings);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_MACHINE_H_
