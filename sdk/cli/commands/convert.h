// SPDX-License-Identifier: Apache-2.0
//
// The common part of `reshard`, `merge` and `import`: copies a checkpoint into
// another form, tensor by tensor.

#ifndef SHARD_SDK_CLI_COMMANDS_CONVERT_H_
#define SHARD_SDK_CLI_COMMANDS_CONVERT_H_

#include <cstdint>
#include <string>

#include "sdk/cli/command.h"

namespace shardctl {

struct ConvertArguments {
  std::string from;
  std::string to;
  std::string dtype;  // Empty: tensors keep their types.
  std::string content = "all";
  std::string max_shard_size;  // Empty: one file.
  int32_t ranks = 0;           // 0: as many as the source has.
  int32_t threads = 4;
  bool expand_aliases = false;
  bool overwrite = false;
  bool json = false;
};

// Adds --dtype, --threads, --overwrite and --json. REQUIRES: `arguments` lives
// as long as the command's body.
void AddConvertOptions(Command* command, ConvertArguments* arguments);

// Open `from`, and write it as a checkpoint into the root `to`, or as
// safetensors to `to`. They show a bar meanwhile, print a summary, and return
// the exit code.
int WriteAsCheckpoint(const ConvertArguments& arguments);
int WriteAsSafetensors(const ConvertArguments& arguments);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_CONVERT_H_
