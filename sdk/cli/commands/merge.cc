// SPDX-License-Identifier: Apache-2.0
//
// `shardctl merge`: writes a checkpoint as safetensors.

#include <memory>

#include "sdk/cli/command.h"
#include "sdk/cli/commands/convert.h"

namespace shardctl {

namespace {

constexpr const char* kMergeHelp =
    R"(
By default only what a model is: parameters and buffers. States become tensors
named state.KEY.NAME with --content all. Several files are named after the one
that is given, with an index: model-00001-of-00002.safetensors and so on,
model.safetensors.index.json.

Example: shardctl merge ckpt model.safetensors --dtype bf16 --max-shard-size 5GB)";

}  // namespace

void AddMerge(CommandLine* line) {
  const auto merge = std::make_shared<ConvertArguments>();
  merge->content = "model";
  Command command = line->AddCommand(
      "merge", "Write a checkpoint as safetensors", kMergeHelp);
  command.AddOption("from", &merge->from, "The checkpoint").Required();
  command.AddOption("to", &merge->to, "A file that ends in .safetensors")
      .Required();
  command.AddOption("--content", &merge->content, "all, model or optimizer")
      .OneOf({"all", "model", "optimizer"})
      .ShowDefault();
  command.AddOption("--max-shard-size", &merge->max_shard_size,
                    "Several files when there is more: 5GB, 500MiB");
  command.AddFlag("--expand-aliases", &merge->expand_aliases,
                  "Tied tensors under each of their names");
  AddConvertOptions(&command, merge.get());
  command.Runs([merge] { return WriteAsSafetensors(*merge); });
}

}  // namespace shardctl
