// SPDX-License-Identifier: Apache-2.0
//
// `shardctl reshard`: writes a checkpoint as another number of ranks would have
// saved it.

#include <memory>

#include "sdk/cli/command.h"
#include "sdk/cli/commands/convert.h"

namespace shardctl {

namespace {

constexpr const char* kReshardHelp =
    R"(
No program needs this to load a checkpoint: any number of ranks loads any other.
It makes files of another number or element type, for other tools and for disks.
The step stays, so that FROM and ROOT must be different places.

Example: shardctl reshard ckpt/step-001000 ckpt-8 --ranks 8)";

}  // namespace

void AddReshard(CommandLine* line) {
  const auto reshard = std::make_shared<ConvertArguments>();
  Command command = line->AddCommand(
      "reshard", "Write a checkpoint with another number of files",
      kReshardHelp);
  command.AddOption("from", &reshard->from, "The checkpoint").Required();
  command.AddOption("root", &reshard->to, "Where its copy goes").Required();
  command
      .AddOption("-n,--ranks", &reshard->ranks,
                 "As from so many ranks: a data file each")
      .Required()
      .Between(1, 1 << 20);
  AddConvertOptions(&command, reshard.get());
  command.Runs([reshard] { return WriteAsCheckpoint(*reshard); });
}

}  // namespace shardctl
