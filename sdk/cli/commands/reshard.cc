// SPDX-License-Identifier: Apache-2.0
//
// `shardctl reshard`: a checkpoint as another number of ranks would have saved
// it.

#include <memory>

#include "sdk/cli/command.h"
#include "sdk/cli/commands/convert.h"

namespace shardctl {

namespace {

constexpr const char* kHelp =
    R"(
No program needs this to load a checkpoint: any number of ranks loads any other.
It makes files of another number or element type, for other tools and for disks.
The step stays, so that FROM and ROOT must be different places.

Example: shardctl reshard ckpt/step-001000 ckpt-8 --ranks 8)";

}  // namespace

void AddReshard(CLI::App* app, Body* body) {
  const auto reshard = std::make_shared<ConvertArguments>();
  CLI::App* const command = app->add_subcommand(
      "reshard", "Write a checkpoint with another number of files");
  command->footer(kHelp);
  command->add_option("from", reshard->from, "The checkpoint")->required();
  command->add_option("root", reshard->to, "Where its copy goes")->required();
  command
      ->add_option("-n,--ranks", reshard->ranks,
                   "As from so many ranks: a data file each")
      ->required()
      ->check(CLI::Range(1, 1 << 20));
  AddConvertOptions(command, reshard.get());
  command->callback([reshard, body] {
    *body = [reshard] { return WriteAsCheckpoint(*reshard); };
  });
}

}  // namespace shardctl
