// SPDX-License-Identifier: Apache-2.0
//
// `shardctl report`: draws a checkpoint as a page for a browser.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "sdk/cli/checkpoint.h"
#include "sdk/cli/command.h"
#include "sdk/cli/output_file.h"
#include "sdk/cli/report/page.h"
#include "sdk/cli/report/storage_map.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

constexpr const char* kReportHelp =
    R"(
The page needs nothing else: no network, no scripts, no other files. Checkpoints
of many files or tensors are summarized.

Example: shardctl report ckpt -o report.html)";

struct ReportArguments {
  std::string path;
  std::string output;
  bool json = false;
};

int RunReport(const ReportArguments& arguments) {
  const bool to_stdout = IsStdout(arguments.output);
  if (to_stdout && arguments.json) {
    throw Failure("--json prints on stdout, where '" + Shown(arguments.output) +
                  "' puts the page; give another --output");
  }
  const CheckpointView view = ReadCheckpoint(arguments.path);
  const StorageMap storage = BuildStorageMap(view);
  const std::string page = ReportPage(view, storage);
  WriteOutput(arguments.output, page);
  if (arguments.json) {
    Json json = SummaryJson(view);
    json["output"] = arguments.output;
    json["page_bytes"] = page.size();
    json["files"] = view.files.size();
    json["tensors"] = view.tensors.size();
    json["max_file_tensor_bytes"] = storage.max_bytes;
    json["mean_file_tensor_bytes"] = storage.mean_bytes;
    json["imbalance"] = storage.imbalance();
    PrintJson(json);
  } else if (!to_stdout) {
    PrintText("wrote " + Shown(arguments.output) + ", " +
              BytesText(page.size()) + "\n");
  }
  return kFine;
}

}  // namespace

void AddReport(CommandLine* line) {
  const auto report = std::make_shared<ReportArguments>();
  Command command = line->AddCommand(
      "report", "Draw which rank holds what, as a page for a browser",
      kReportHelp);
  command.AddOption("path", &report->path, "The checkpoint").Required();
  command
      .AddOption("-o,--output", &report->output,
                 "The page: report.html, /dev/stdout")
      .Required();
  command.AddFlag("--json", &report->json, "One JSON document");
  command.Runs([report] { return RunReport(*report); });
}

}  // namespace shardctl
