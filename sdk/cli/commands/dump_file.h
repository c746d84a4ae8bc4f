// SPDX-License-Identifier: Apache-2.0
//
// A dump of the last collectives of one rank, as docs/observability.md
// describes it. A dump may be cut, damaged or made up: each value is checked.

#ifndef SHARD_SDK_CLI_COMMANDS_DUMP_FILE_H_
#define SHARD_SDK_CLI_COMMANDS_DUMP_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardctl {

// A collective, as all ranks of it call it. Values that a call does not have
// are "" and -1.
struct DumpedCall {
  std::string operation;
  std::string what;
  uint64_t bytes = 0;
  std::string dtype;
  std::string recv_dtype;
  int64_t ranks = -1;
  int64_t stride = -1;
  int64_t root = -1;

  bool operator==(const DumpedCall&) const = default;
};

struct DumpedCollective {
  std::string group;
  std::string name;  // Of the group.
  uint64_t number = 0;
  DumpedCall call;
  double begin = 0;               // Seconds since 1970.
  std::optional<double> seconds;  // None while it runs.
  std::string state;              // running, posted, done or failed
  std::string error;              // The code of a failure.

  bool is_running() const { return state == "running"; }
  bool is_posted() const { return state == "posted"; }
  bool has_failed() const { return state == "failed"; }
};

struct DumpError {
  std::string code;
  int64_t rank = -1;
  std::string message;
};

struct Dump {
  std::string path;
  int64_t rank = 0;
  int64_t world_size = 0;
  std::string host;
  int64_t pid = 0;
  std::string reason;
  std::optional<DumpError> error;
  uint64_t recorded = 0;  // Collectives, of which the last ones follow.
  std::vector<DumpedCollective> collectives;

  // Returns whether the rank has written nothing since it opened its
  // communicator.
  bool is_silent() const { return reason == "opened"; }
};

// Reads a dump. Throws Failure, with the path and the value that is wrong.
Dump ReadDump(const std::string& path);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_DUMP_FILE_H_
