// SPDX-License-Identifier: Apache-2.0
//
// shardctl: the command line of libshard.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "sdk/cli/run.h"
#include "shard/shard.h"

namespace {

// The version of the tree it was built from: `run` needs no library.
#define SHARDCTL_TEXT_INNER(x) #x
#define SHARDCTL_TEXT(x) SHARDCTL_TEXT_INNER(x)
constexpr const char* kVersion =
    "shardctl (libshard) " SHARDCTL_TEXT(SHARD_VERSION_MAJOR) "." SHARDCTL_TEXT(
        SHARD_VERSION_MINOR) "." SHARDCTL_TEXT(SHARD_VERSION_PATCH);

constexpr const char* kRunHelp =
    R"(
Each rank finds its place in SHARD_RANK, SHARD_WORLD_SIZE, SHARD_LOCAL_RANK,
SHARD_LOCAL_WORLD_SIZE and SHARD_RENDEZVOUS; a program that opens the
communicator "env:" needs no more. OMP_NUM_THREADS is set to the CPUs per rank
unless it is set already.

With several ranks each line they print has "[rank] " in front, and their input
is empty. When one rank fails, the others are told to end (SIGTERM) and killed
5 s later. SIGINT, SIGTERM and SIGHUP are passed on; the second one kills. What
several ranks leave running in their process groups is killed at the end.

Exit code: 0 when all ranks ended with 0; else that of the rank that failed
first, or 128 + its signal; 124 after --timeout; 127 when there is no such
program, 126 when it cannot be run.

Example: shardctl run -n 4 -- ./train --steps 1000)";

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("shardctl: sharded data-parallel training with libshard");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);

  shardctl::RunOptions run;
  CLI::App* command =
      app.add_subcommand("run", "Start N ranks of a program on this host");
  command->footer(kRunHelp);
  command->add_option("-n,--ranks", run.ranks, "How many ranks to start")
      ->required()
      ->check(CLI::Range(1, 512));
  command
      ->add_option("--timeout", run.timeout,
                   "End the run after so many seconds (default: no limit)")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--name", run.name,
                   "Name of the meeting point (default: a random one)")
      ->check([](const std::string& name) {
        // The ranks would take it for a URL.
        return name.find(':') == std::string::npos
                   ? ""
                   : "'" + name + "' has a ':'; give a name, not a URL";
      });
  command->add_option("command", run.command, "The program and its arguments")
      ->required();
  // From the program on, all options are the program's, with or without "--".
  command->positionals_at_end();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return shardctl::Run(run);
}
