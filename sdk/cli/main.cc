// SPDX-License-Identifier: Apache-2.0
//
// shardctl: the command line of libshard.

#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "sdk/cli/command.h"
#include "sdk/cli/text.h"
#include "shard/shard.h"

namespace {

// The version of the tree that shardctl was built from; `doctor` shows that of
// the library it runs with.
#define SHARDCTL_TEXT_INNER(x) #x
#define SHARDCTL_TEXT(x) SHARDCTL_TEXT_INNER(x)
constexpr const char* kVersion =
    "shardctl (libshard) " SHARDCTL_TEXT(SHARD_VERSION_MAJOR) "." SHARDCTL_TEXT(
        SHARD_VERSION_MINOR) "." SHARDCTL_TEXT(SHARD_VERSION_PATCH);

constexpr const char* kHelp =
    R"(
A PATH of a checkpoint is its folder, or a root with several: then the one that
LATEST names. Most commands take a .safetensors file or a
model.safetensors.index.json as well.

With --json a command prints one JSON document on stdout: docs/shardctl.md has
its keys. Errors go to stderr.

Exit codes: 0 fine, 1 what was looked for is wrong or different, 2 wrong use,
3 an error. `run` ends as its ranks do.)";

// Prints a message, made harmless, for messages quote keys and paths.
void Say(const std::string& text) {
  std::fprintf(stderr, "shardctl: %s\n", shardctl::ShownMessage(text).c_str());
}

}  // namespace

// Memory can run out while the commands are made: they are made inside.
int main(int argc, char** argv) try {
  shardctl::CommandLine line(
      "shardctl", "shardctl: sharded data-parallel training with libshard",
      kHelp, kVersion);
  shardctl::AddRun(&line);
  shardctl::AddPlan(&line);
  shardctl::AddInspect(&line);
  shardctl::AddVerify(&line);
  shardctl::AddDiff(&line);
  shardctl::AddReshard(&line);
  shardctl::AddMerge(&line);
  shardctl::AddImport(&line);
  shardctl::AddReport(&line);
  shardctl::AddDoctor(&line);
  shardctl::AddTriage(&line);
  shardctl::AddAgent(&line);
  return line.Run(argc, argv);
} catch (const std::bad_alloc&) {
  // A longer message would need memory.
  std::fputs("shardctl: out of memory\n", stderr);
  return shardctl::kFailed;
} catch (const std::exception& error) {
  Say(error.what());
  return shardctl::kFailed;
}
