// SPDX-License-Identifier: Apache-2.0
//
// `shardctl import`: writes safetensors as a checkpoint of step 0.

#include <memory>

#include "sdk/cli/command.h"
#include "sdk/cli/commands/convert.h"

namespace shardctl {

namespace {

constexpr const char* kImportHelp =
    R"(
All tensors become parameters, without optimizer states. An engine loads
safetensors as they are too; a checkpoint has checksums and is cut for ranks.

Example: shardctl import model.safetensors ckpt --ranks 8)";

}  // namespace

void AddImport(CommandLine* line) {
  const auto import = std::make_shared<ConvertArguments>();
  Command command = line->AddCommand(
      "import", "Write safetensors as a checkpoint", kImportHelp);
  command
      .AddOption("from", &import->from,
                 "A .safetensors file or a model.safetensors.index.json")
      .Required();
  command.AddOption("root", &import->to, "Where the checkpoint goes")
      .Required();
  command.AddOption("-n,--ranks", &import->ranks, "Data files (default: 1)")
      .Between(1, 1 << 20);
  AddConvertOptions(&command, import.get());
  command.Runs([import] { return WriteAsCheckpoint(*import); });
}

}  // namespace shardctl
