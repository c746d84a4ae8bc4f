// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_COLLECTIVES_NCCL_CONF_FILES_H_
#define SHARD_CORE_COLLECTIVES_NCCL_CONF_FILES_H_

#include <optional>
#include <string>
#include <string_view>

namespace shard::nccl {

// A variable of NCCL's, and where it is set.
struct Setting {
  std::string value;
  std::string file;  // Empty: the environment.
};

// Finds a variable as NCCL does: in the environment, in the file that
// NCCL_CONF_FILE names or else ~/.nccl.conf, and in /etc/nccl.conf. NCCL reads
// the files at its first call, and so the environment has them afterwards.
std::optional<Setting> FindSetting(std::string_view variable);

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_CONF_FILES_H_
