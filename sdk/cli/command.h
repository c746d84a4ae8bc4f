// SPDX-License-Identifier: Apache-2.0
//
// What a command of shardctl is: options, and something to do.
//
// Each file of commands/ adds its command to the App. Once the arguments are
// parsed, main() runs the Body of the one that was given. A Body prints its
// result on stdout and returns an exit code; it throws Failure for everything
// that keeps it from a result.

#ifndef SHARD_SDK_CLI_COMMAND_H_
#define SHARD_SDK_CLI_COMMAND_H_

#include <CLI/CLI.hpp>
#include <cmath>
#include <functional>
#include <string>

namespace shardctl {

// `run` has those of its ranks as well.
enum ExitCode : int {
  kFine = 0,
  kDifferent = 1,  // What was looked for is wrong, or different.
  kUsage = 2,
  kFailed = 3,
};

using Body = std::function<int()>;

// For options that are seconds, counts or rates: a number above 0, and neither
// nan nor inf, which CLI::PositiveNumber takes.
inline CLI::Validator PositiveFinite() {
  return CLI::Validator(
      [](const std::string& text) {
        double number = 0;
        if (CLI::detail::lexical_cast(text, number) && number > 0 &&
            std::isfinite(number)) {
          return std::string();
        }
        return "'" + text + "' is no number above 0";
      },
      "POSITIVE");
}

// Each sets *body when its command is the one that was given.
void AddDiff(CLI::App* app, Body* body);
void AddDoctor(CLI::App* app, Body* body);
void AddImport(CLI::App* app, Body* body);
void AddInspect(CLI::App* app, Body* body);
void AddMerge(CLI::App* app, Body* body);
void AddPlan(CLI::App* app, Body* body);
void AddReport(CLI::App* app, Body* body);
void AddReshard(CLI::App* app, Body* body);
void AddRun(CLI::App* app, Body* body);
void AddVerify(CLI::App* app, Body* body);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMAND_H_
