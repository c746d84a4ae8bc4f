// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_COLLECTIVES_NCCL_CONF_FILES_H_
#define SHARD_CORE_COLLECTIVES_NCCL_CONF_FILES_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shard::nccl {

// A variable of NCCL's, and where it is set.
struct Setting {
  std::string value;
  std::string file;  // Empty: the environment.
};

// Returns the files that NCCL reads, in its order: the one that NCCL_CONF_FILE
// names, or else .nccl.conf in the user's folder, and /etc/nccl.conf. The
// folder is the one that the system has for the user, not $HOME.
std::vector<std::string> ConfFiles();

// Finds a variable as NCCL does: in the environment, and then in the files.
// NCCL reads these at its first call, and so the environment has them
// afterwards.
std::optional<Setting> FindSetting(std::string_view variable);

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_CONF_FILES_H_
