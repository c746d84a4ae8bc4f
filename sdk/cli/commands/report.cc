// SPDX-License-Identifier: Apache-2.0
//
// `shardctl report`: a checkpoint as a page for a browser.

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "sdk/cli/checkpoint.h"
#include "sdk/cli/command.h"
#include "sdk/cli/report/holdings.h"
#include "sdk/cli/report/page.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

constexpr const char* kHelp =
    R"(
The page needs nothing else: no network, no scripts, no other files. Checkpoints
of many files or tensors are summarized.

Example: shardctl report ckpt -o report.html)";

struct ReportArguments {
  std::string path;
  std::string output;
  bool json = false;
};

// Whole or not at all: who looks at an old page while this writes sees that.
void WriteWhole(const std::string& path, const std::string& text) {
  const std::string draft = path + ".part-" + std::to_string(::getpid());
  const auto fail = [&](const char* what) {
    const std::string why = std::strerror(errno);
    ::unlink(draft.c_str());
    throw Failure(std::string("cannot ") + what + " '" + path + "': " + why);
  };
  std::FILE* const file = std::fopen(draft.c_str(), "wbxe");
  if (file == nullptr) fail("make");
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !written) fail("write");
  if (std::rename(draft.c_str(), path.c_str()) != 0) fail("make");
}

int RunReport(const ReportArguments& arguments) {
  const CheckpointView view = ReadCheckpoint(arguments.path);
  const Holdings holdings = CountHoldings(view);
  const std::string page = ReportPage(view, holdings);
  WriteWhole(arguments.output, page);
  if (arguments.json) {
    Json json = SummaryJson(view);
    json["output"] = arguments.output;
    json["page_bytes"] = page.size();
    json["files"] = view.files.size();
    json["tensors"] = view.tensors.size();
    json["max_file_tensor_bytes"] = holdings.max_bytes;
    json["mean_file_tensor_bytes"] = holdings.mean_bytes;
    json["imbalance"] = holdings.imbalance();
    PrintJson(json);
  } else {
    PrintText("wrote " + Shown(arguments.output) + ", " +
              BytesText(page.size()) + "\n");
  }
  return kFine;
}

}  // namespace

void AddReport(CLI::App* app, Body* body) {
  const auto report = std::make_shared<ReportArguments>();
  CLI::App* const command = app->add_subcommand(
      "report", "Draw which rank holds what, as a page for a browser");
  command->footer(kHelp);
  command->add_option("path", report->path, "The checkpoint")->required();
  command->add_option("-o,--output", report->output, "The page: report.html")
      ->required();
  command->add_flag("--json", report->json, "One JSON document");
  command->callback(
      [report, body] { *body = [report] { return RunReport(*report); }; });
}

}  // namespace shardctl
