// SPDX-License-Identifier: Apache-2.0
//
// RemoteRanks: the ranks of several hosts. A command for each host, by default
// ssh, starts an agent there (host_agent.h), to which it is the only
// connection.
//
// A host is lost when its command ends before the agent has said that its ranks
// have ended, when it does not answer within RunOptions::host_timeout, or when
// it is silent for so long. Its agent then ends its ranks by itself, because
// its stdin is closed or silent.

#ifndef SHARD_SDK_CLI_COMMANDS_REMOTE_RANKS_H_
#define SHARD_SDK_CLI_COMMANDS_REMOTE_RANKS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sdk/cli/commands/ranks.h"
#include "sdk/cli/commands/remote_host.h"
#include "sdk/cli/commands/run.h"

namespace shardctl {

// Where the ranks of several hosts meet: the same for all starts of a job, so
// that a rank of an earlier start is refused by its restart count.
struct Meeting {
  std::string host;
  int port = 0;
  std::string secret;  // For SHARD_TOKEN; "": the user has chosen one.
};

Meeting ChooseMeeting(const RunOptions& options);

class RemoteRanks final : public Ranks {
 public:
  // Starts the commands. `columns` is the width of the terminal that shows
  // rank 0; 0: there is none. `options` and `output` outlive this.
  RemoteRanks(const RunOptions& options, const Meeting& meeting,
              const std::string& job, int restart, int columns,
              RankOutput* output);

  std::vector<RankFailure> Advance() override;
  int alive() const override;
  bool done() const override;
  void Signal(int signal) override;
  void Clear() override {}
  void AddToPoll(std::vector<pollfd>* entries) const override;
  std::optional<Clock::time_point> NextTime() const override;

 private:
  std::vector<std::unique_ptr<RemoteHost>> hosts_;
  RankOutput* const output_;
  bool paused_ = false;
};

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_REMOTE_RANKS_H_
