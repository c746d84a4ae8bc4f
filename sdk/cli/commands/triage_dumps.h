// SPDX-License-Identifier: Apache-2.0
//
// The comparison of `triage`: which collective was the first that ranks called
// differently, or did not all come to. Pure functions.
//
// A collective is known by its group and its number there, which are the same
// on all ranks; among collectives of different groups the first is the one that
// began first, by the clocks of the ranks' machines. One that ranks called
// differently goes before those that ranks did not come to, which may be on
// their way.

#ifndef SHARD_SDK_CLI_COMMANDS_TRIAGE_DUMPS_H_
#define SHARD_SDK_CLI_COMMANDS_TRIAGE_DUMPS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sdk/cli/commands/dump_file.h"

namespace shardctl {

// In the order in which they are told.
enum class DivergenceKind {
  kDifferent,   // Ranks called different things.
  kIncomplete,  // Ranks did not come to it.
  // All came, as far as is known, and it did not end well. On all ranks alike
  // it may be the host's own affair.
  kFailed,
};

// A call, and the ranks that made it.
struct CalledBy {
  DumpedCall call;
  std::vector<int64_t> ranks;
};

struct Divergence {
  DivergenceKind kind = DivergenceKind::kFailed;
  std::string group;
  std::string name;
  uint64_t number = 0;
  double begin = 0;               // That of the first rank.
  std::vector<CalledBy> calls;    // By the lowest of their ranks.
  std::vector<int64_t> running;   // Ranks that wait in it.
  std::vector<int64_t> posted;    // Ranks that announced it, and went on.
  std::vector<int64_t> failed;    // Ranks in which it failed.
  std::vector<int64_t> not_come;  // Ranks whose dumps do not have it.
};

struct Triage {
  int64_t world_size = 0;
  std::vector<int64_t> missing;  // Ranks without a dump.
  std::vector<int64_t> silent;   // Dump::is_silent().
  std::optional<Divergence> first;

  // Returns whether nothing is wrong.
  bool is_fine = true;
};

// Compares dumps of one run. Throws Failure for two of one rank, and for those
// of different world sizes. REQUIRES: not empty.
Triage CompareDumps(const std::vector<Dump>& dumps);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_TRIAGE_DUMPS_H_
