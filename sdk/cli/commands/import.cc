// SPDX-License-Identifier: Apache-2.0
//
// `shardctl import`: safetensors as a checkpoint of step 0.

#include <memory>

#include "sdk/cli/command.h"
#include "sdk/cli/commands/convert.h"

namespace shardctl {

namespace {

constexpr const char* kHelp =
    R"(
All tensors become parameters, without optimizer states. An engine loads
safetensors as they are too; a checkpoint has checksums and is cut for ranks.

Example: shardctl import model.safetensors ckpt --ranks 8)";

}  // namespace

void AddImport(CLI::App* app, Body* body) {
  const auto import = std::make_shared<ConvertArguments>();
  CLI::App* const command =
      app->add_subcommand("import", "Write safetensors as a checkpoint");
  command->footer(kHelp);
  command
      ->add_option("from", import->from,
                   "A .safetensors file or a model.safetensors.index.json")
      ->required();
  command->add_option("root", import->to, "Where the checkpoint goes")
      ->required();
  command->add_option("-n,--ranks", import->ranks, "Data files (default: 1)")
      ->check(CLI::Range(1, 1 << 20));
  AddConvertOptions(command, import.get());
  command->callback([import, body] {
    *body = [import] { return WriteAsCheckpoint(*import); };
  });
}

}  // namespace shardctl
