// SPDX-License-Identifier: Apache-2.0
//
// What `reshard`, `merge` and `import` have in common: they copy a checkpoint
// into another form, tensor by tensor.

#ifndef SHARD_SDK_CLI_COMMANDS_CONVERT_H_
#define SHARD_SDK_CLI_COMMANDS_CONVERT_H_

#include <cstdint>
#include <string>

#include "sdk/cli/command.h"

namespace shardctl {

struct ConvertArguments {
  std::string from;
  std::string to;
  std::string dtype;  // Empty: as they are.
  std::string content = "all";
  std::string max_shard_size;  // Empty: one file.
  int32_t ranks = 0;           // 0: as many as there were.
  int32_t threads = 4;
  bool expand_aliases = false;
  bool overwrite = false;
  bool json = false;
};

// Adds --dtype, --threads, --overwrite and --json. REQUIRES: `arguments` lives
// as long as the command's body.
void AddConvertOptions(Command* command, ConvertArguments* arguments);

// Opens `from`, and writes it as a checkpoint into the root `to`, or as
// safetensors to `to`; shows a bar meanwhile, and says what it has done.
int WriteAsCheckpoint(const ConvertArguments& arguments);
int WriteAsSafetensors(const ConvertArguments& arguments);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_CONVERT_H_
