// SPDX-License-Identifier: Apache-2.0
//
// `shardctl verify`: reads a checkpoint, and compares it with its checksums.

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sdk/cli/checkpoint.h"
#include "sdk/cli/command.h"
#include "sdk/cli/progress.h"
#include "sdk/cli/table.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

constexpr const char* kVerifyHelp =
    R"(
Safetensors have no checksums: they are read, and that is all.

Exit code: 1 when something is damaged; all of it is listed.

Example: shardctl verify /data/checkpoints/step-001000)";

struct VerifyArguments {
  std::string path;
  int32_t threads = 4;
  bool json = false;
};

// Returns the problems that the library found. For a manifest that cannot be
// read there is no list.
std::vector<std::string> ProblemsOf(const Failure& failure) {
  const Json detail = Json::parse(failure.detail(), nullptr, false);
  std::vector<std::string> problems;
  if (detail.is_object() && detail.contains("problems")) {
    for (const Json& problem : detail["problems"]) {
      if (problem.is_string()) problems.push_back(problem.get<std::string>());
    }
  }
  if (problems.empty()) problems.push_back(failure.what());
  return problems;
}

int RunVerify(const VerifyArguments& arguments) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::string> problems;
  Json json = {{"path", arguments.path}};
  uint64_t bytes = 0;
  bool checksums = true;
  try {
    const Checkpoint handle = OpenCheckpoint(arguments.path);
    shard_checkpoint_info info = SHARD_CHECKPOINT_INFO_INIT;
    Check(shard_checkpoint_get_info(handle.get(), &info));
    bytes = info.file_bytes;
    checksums = info.format == SHARD_FORMAT_CHECKPOINT;
    Progress progress("verifying");
    shard_verify_options options = SHARD_VERIFY_OPTIONS_INIT;
    options.threads = arguments.threads;
    options.progress = Progress::Update;
    options.progress_user_data = &progress;
    Check(shard_checkpoint_verify(handle.get(), &options));
  } catch (const Failure& failure) {
    if (failure.code() != SHARD_CORRUPT) throw;
    problems = ProblemsOf(failure);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  if (arguments.json) {
    json["ok"] = problems.empty();
    json["problems"] = problems;
    json["checksums"] = checksums;
    json["file_bytes"] = bytes;
    json["seconds"] = seconds;
    PrintJson(json);
  } else if (problems.empty()) {
    PrintText(std::string(OutStyle().green) + "ok" + OutStyle().reset + ": " +
              Shown(arguments.path) + ", " + BytesText(bytes) + " in " +
              SecondsText(seconds) +
              (checksums ? "\n" : "; it has no checksums\n"));
  } else {
    std::string text;
    for (const std::string& problem : problems) {
      text += std::string(OutStyle().red) + "damaged" + OutStyle().reset +
              ": " + ShownMessage(problem) + "\n";
    }
    text += CountText(problems.size()) +
            (problems.size() == 1 ? " problem" : " problems") + " in " +
            Shown(arguments.path) +
            "; load another checkpoint, or copy this one again\n";
    PrintText(text);
  }
  return problems.empty() ? kFine : kDifferent;
}

}  // namespace

void AddVerify(CommandLine* line) {
  const auto verify = std::make_shared<VerifyArguments>();
  Command command = line->AddCommand(
      "verify", "Compare a checkpoint with its checksums", kVerifyHelp);
  command.AddOption("path", &verify->path, "The checkpoint").Required();
  command.AddOption("--threads", &verify->threads, "That read")
      .Between(1, 256)
      .ShowDefault();
  command.AddFlag("--json", &verify->json, "One JSON document");
  command.Runs([verify] { return RunVerify(*verify); });
}

}  // namespace shardctl
