// SPDX-License-Identifier: Apache-2.0
//
// `shardctl run`: reads its options.

#include <memory>
#include <string>

#include "sdk/cli/command.h"
#include "sdk/cli/commands/run.h"

namespace shardctl {

namespace {

constexpr const char* kRunHelp =
    R"(
Each rank finds its place in SHARD_RANK, SHARD_WORLD_SIZE, SHARD_LOCAL_RANK,
SHARD_LOCAL_WORLD_SIZE and SHARD_RENDEZVOUS; a program that opens the
communicator "env:" needs no more. OMP_NUM_THREADS is set to the CPUs per rank
unless it is set already.

With several ranks each line they print has "[rank] " in front, and their input
is empty. When one rank fails, the others have 1 s to end, are then told to
(SIGTERM), and killed 5 s later. SIGINT, SIGTERM and SIGHUP are passed on; the
second one kills. What several ranks leave running in their process groups is
killed at the end. When nobody reads the output, the ranks that print wait.

Exit code: 0 when all ranks ended with 0; else that of the rank that failed, or
128 + its signal; 124 after --timeout; 127 when there is no such program, 126
when it cannot be run. When several fail within 1 s, one that was killed comes
before one that ended, and that before one that ended with 65 (SHARD_RANK_LOST),
as a program does that ends because of another rank.

Example: shardctl run -n 4 -- ./train --steps 1000)";

}  // namespace

void AddRun(CommandLine* line) {
  const auto run = std::make_shared<RunOptions>();
  Command command = line->AddCommand(
      "run", "Start N ranks of a program on this host", kRunHelp);
  command.AddOption("-n,--ranks", &run->ranks, "How many ranks to start")
      .Required()
      .Between(1, 512);
  command
      .AddOption("--timeout", &run->timeout,
                 "End the run after so many seconds (default: no limit)")
      .Positive();
  command
      .AddOption("--name", &run->name,
                 "Name of the rendezvous point (default: a random one)")
      .Check([](const std::string& name) {
        // The ranks would take it for a URL.
        return name.find(':') == std::string::npos
                   ? ""
                   : "'" + name + "' has a ':'; give a name, not a URL";
      });
  command.AddOption("command", &run->command, "The program and its arguments")
      .Required();
  // From the program on, all options are the program's, with or without "--".
  command.EndOptionsAtPositionals();
  command.Runs([run] { return Run(*run); });
}

}  // namespace shardctl
