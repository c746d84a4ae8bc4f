// SPDX-License-Identifier: Apache-2.0
//
// Runs one part of gpu_check, for tools/gpu_check:
//
//   gpu_check_part PART [--device cuda:0] [--only TEXT] [--elements N]
//
// Returns 0 when all checks hold, 1 when one does not, or when the part could
// not be run, which the last line then says.

#include <CLI/CLI.hpp>
#include <exception>
#include <map>
#include <string>

#include "tests/gpu_check/gpu.h"
#include "tests/gpu_check/parts.h"
#include "tests/gpu_check/training.h"

namespace shard::gpu_check {
namespace {

const std::map<std::string, void (*)(const Options&, Report*)> kParts = {
    {"load", Load},         {"bits", Bits},
    {"staged", Staged},     {"bandwidth", Bandwidth},
    {"overhead", Overhead}, {"graphs", Graphs},
    {"muon", MuonSteps},    {"offload", OffloadedSteps},
};

int Main(int argc, char** argv) {
  CLI::App app("One part of gpu_check.");
  std::string part;
  Options options;
  app.add_option("part", part)->required()->check(CLI::IsMember(kParts));
  app.add_option("--device", options.device, "As shard_engine_options.device");
  app.add_option("--only", options.only,
                 "Of bits and staged, the checks whose names have this text");
  app.add_option("--elements", options.elements, "Of the bandwidth's tensors")
      ->check(CLI::Range(std::int64_t{1} << 14, std::int64_t{1} << 40));
  CLI11_PARSE(app, argc, argv);
  Report report(part);
  try {
    // While it lives, no training makes the device's context anew.
    const Gpu gpu(OrdinalOf(options.device));
    const std::string described = gpu.Describe();
    report.Text("device", described);
    options.judged = WhatIsJudged(described, options.elements);
    kParts.at(part)(options, &report);
  } catch (const std::exception& error) {
    report.Check("the part runs", false, error.what());
  }
  return report.ok() ? 0 : 1;
}

}  // namespace
}  // namespace shard::gpu_check

int main(int argc, char** argv) { return shard::gpu_check::Main(argc, argv); }
