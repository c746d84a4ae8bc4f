// SPDX-License-Identifier: Apache-2.0
//
// `shardctl doctor`: checks whether this machine is fit for libshard.

#include <stdlib.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sdk/cli/command.h"
#include "sdk/cli/commands/machine.h"
#include "sdk/cli/table.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

constexpr const char* kDoctorHelp =
    R"(
Looks at the library, the CPU, memory, limits, what ranks can meet by, GPUs, and
a folder for checkpoints, in which it makes a file of 8 MiB for a moment.

With --nccl also at what ranks on several GPUs need: the library NCCL, its
variables, network interfaces and shared memory. Each GPU then makes NCCL's calls
alone, and all of them together; each check ends after --timeout seconds, and 20
more for an NCCL that is late.

Exit code: 0 also where it warns; with --strict 1 then.

Example: shardctl doctor /data/checkpoints)";

struct DoctorArguments {
  std::string folder = ".";
  bool nccl = false;
  double timeout = 60;  // NCCL takes a few seconds to start.
  bool strict = false;
  bool json = false;
};

constexpr const char* kLevels[] = {"ok", "info", "warn"};

Json ToJson(const std::vector<Finding>& findings, size_t warnings) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"section", finding.section},
                    {"name", finding.name},
                    {"level", kLevels[finding.level]},
                    {"found", finding.found},
                    {"remedy", finding.remedy}});
  }
  return {{"warnings", warnings}, {"findings", std::move(list)}};
}

std::string ToText(const std::vector<Finding>& findings, size_t warnings) {
  const Style& style = OutStyle();
  std::string text;
  std::string section;
  for (const Finding& finding : findings) {
    if (finding.section != section) {
      text += (section.empty() ? "" : "\n") + std::string(style.bold) +
              finding.section + style.reset + "\n";
      section = finding.section;
    }
    const bool warn = finding.level == Finding::kWarn;
    const char* const color = warn                            ? style.yellow
                              : finding.level == Finding::kOk ? style.green
                                                              : style.dim;
    // Four columns: "ok", "-" or "warn".
    const std::string level =
        finding.level == Finding::kInfo ? "-" : kLevels[finding.level];
    text += "  " + std::string(color) + level + style.reset +
            std::string(6 - level.size(), ' ') + finding.name + ": " +
            Shown(finding.found) + "\n";
    if (warn) text += "        remedy: " + finding.remedy + "\n";
  }
  text += "\n";
  text += warnings == 0   ? "nothing to warn of\n"
          : warnings == 1 ? "1 warning\n"
                          : std::to_string(warnings) + " warnings\n";
  return text;
}

// The communicators that are tried here are none of a job, whose files they
// would replace with their own.
void WriteNoFilesOfJobs() {
  for (const char* name :
       {"SHARD_LOG_FILE", "SHARD_TRACE", "SHARD_METRICS", "SHARD_DUMP"}) {
    ::unsetenv(name);
  }
}

int RunDoctor(const DoctorArguments& arguments) {
  WriteNoFilesOfJobs();
  std::vector<Finding> findings;
  LookAtLibrary(&findings);
  LookAtCpu(&findings);
  LookAtMemory(&findings);
  LookAtLimits(&findings);
  LookAtBackends(&findings);
  const Json cuda = DescribeGpus();
  LookAtGpus(cuda, &findings);
  if (arguments.nccl) LookAtNccl(cuda, arguments.timeout, &findings);
  LookAtFolder(arguments.folder, &findings);
  const auto warnings = static_cast<size_t>(std::count_if(
      findings.begin(), findings.end(),
      [](const Finding& f) { return f.level == Finding::kWarn; }));
  if (arguments.json) {
    PrintJson(ToJson(findings, warnings));
  } else {
    PrintText(ToText(findings, warnings));
  }
  return arguments.strict && warnings > 0 ? kDifferent : kFine;
}

}  // namespace

void AddDoctor(CommandLine* line) {
  const auto doctor = std::make_shared<DoctorArguments>();
  Command command = line->AddCommand(
      "doctor", "Whether this machine is fit: library, CPU, limits, disk",
      kDoctorHelp);
  command.AddOption("folder", &doctor->folder, "Where checkpoints would be")
      .ShowDefault();
  command.AddFlag("--nccl", &doctor->nccl,
                  "Also check NCCL, and try it on each GPU");
  command
      .AddOption("--timeout", &doctor->timeout,
                 "With --nccl: seconds that NCCL may take for a check "
                 "(default: 60)")
      .Positive();
  command.AddFlag("--strict", &doctor->strict, "Exit code 1 for a warning");
  command.AddFlag("--json", &doctor->json, "One JSON document");
  command.Runs([doctor] { return RunDoctor(*doctor); });
}

}  // namespace shardctl
