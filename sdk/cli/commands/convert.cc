// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/convert.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "sdk/cli/checkpoint.h"
#include "sdk/cli/command.h"
#include "sdk/cli/deferred_signals.h"
#include "sdk/cli/dtypes.h"
#include "sdk/cli/output_file.h"
#include "sdk/cli/progress.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

shard_convert_options ToOptions(const ConvertArguments& arguments,
                                Progress* progress) {
  shard_convert_options options = SHARD_CONVERT_OPTIONS_INIT;
  options.content = ParseContent(arguments.content);
  options.overwrite = arguments.overwrite ? 1 : 0;
  options.threads = arguments.threads;
  if (!arguments.dtype.empty()) {
    options.dtype = ParseParamDType(arguments.dtype);
  }
  options.world_size = arguments.ranks;
  options.expand_aliases = arguments.expand_aliases ? 1 : 0;
  if (!arguments.max_shard_size.empty()) {
    options.max_shard_bytes = ParseBytes(arguments.max_shard_size);
  }
  options.progress = Progress::Update;
  options.progress_user_data = progress;
  return options;
}

// Prints a summary of the output, which is opened again for it.
int Report(const ConvertArguments& arguments, const std::string& written,
           double seconds) {
  const CheckpointView view = ReadCheckpoint(written);
  if (arguments.json) {
    Json json = SummaryJson(view);
    json["from"] = arguments.from;
    json["files"] = Json::array();
    for (const FileView& file : view.files) {
      json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
    }
    json["tensors"] = view.info.num_tensors;
    json["seconds"] = seconds;
    PrintJson(json);
    return kFine;
  }
  const auto files = static_cast<uint64_t>(view.info.num_files);
  const auto tensors = static_cast<uint64_t>(view.info.num_tensors);
  PrintText("wrote " + Shown(view.path) + ": " + CountText(tensors) +
            (tensors == 1 ? " tensor, " : " tensors, ") +
            BytesText(view.info.file_bytes) + " in " + CountText(files) +
            (files == 1 ? " file, " : " files, ") + SecondsText(seconds) +
            "\n");
  return kFine;
}

double SecondsSince(const std::chrono::steady_clock::time_point& begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace

void AddConvertOptions(Command* command, ConvertArguments* arguments) {
  command->AddOption("--dtype", &arguments->dtype,
                     "What floats become: " + std::string(kParamDTypes) +
                         " (default: as they are)");
  command->AddOption("--threads", &arguments->threads, "That read and write")
      .Between(1, 256)
      .ShowDefault();
  command->AddFlag("--overwrite", &arguments->overwrite,
                   "Replace what is there");
  command->AddFlag("--json", &arguments->json, "One JSON document");
}

int WriteAsCheckpoint(const ConvertArguments& arguments) {
  const auto begin = std::chrono::steady_clock::now();
  CheckFolderAt(arguments.to);
  const Checkpoint from = OpenCheckpoint(arguments.from);
  {
    const DeferredSignals signals;
    Progress progress("writing");
    const shard_convert_options options = ToOptions(arguments, &progress);
    Check(shard_checkpoint_convert(from.get(), arguments.to.c_str(), &options));
  }
  shard_checkpoint_info info = SHARD_CHECKPOINT_INFO_INIT;
  Check(shard_checkpoint_get_info(from.get(), &info));
  // Safetensors have no step; a checkpoint made of them is of step 0.
  char folder[32];
  std::snprintf(folder, sizeof(folder), "/step-%06lld",
                static_cast<long long>(std::max<int64_t>(info.step, 0)));
  return Report(arguments, arguments.to + folder, SecondsSince(begin));
}

int WriteAsSafetensors(const ConvertArguments& arguments) {
  const auto begin = std::chrono::steady_clock::now();
  CheckFolderOf(arguments.to);
  const Checkpoint from = OpenCheckpoint(arguments.from);
  // A link stays a link.
  const std::string to = FileOf(arguments.to);
  {
    const DeferredSignals signals;
    Progress progress("writing");
    const shard_convert_options options = ToOptions(arguments, &progress);
    Check(shard_checkpoint_export(from.get(), to.c_str(), &options));
  }
  // Several files are opened by their index.
  std::string written = to;
  if (std::FILE* const file = std::fopen(written.c_str(), "rb")) {
    std::fclose(file);
  } else {
    written += ".index.json";
  }
  return Report(arguments, written, SecondsSince(begin));
}

}  // namespace shardctl
