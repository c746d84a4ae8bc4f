// SPDX-License-Identifier: Apache-2.0
//
// Ranks: the ranks of one start of a job, on this host (OwnHostRanks) or on
// several (RemoteRanks).
//
// Nothing here waits: the caller polls, and calls Advance. Threads: one.

#ifndef SHARD_SDK_CLI_COMMANDS_RANKS_H_
#define SHARD_SDK_CLI_COMMANDS_RANKS_H_

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "sdk/cli/commands/local_ranks.h"
#include "sdk/cli/commands/rank_output.h"

namespace shardctl {

using Clock = std::chrono::steady_clock;

// At most 30 years, so that no sum overflows.
Clock::time_point After(double seconds);

// Returns random bytes as text of twice as many digits.
std::string RandomHex(size_t bytes);

// The end of a rank that did not end with 0, or of a host.
struct RankFailure {
  std::string text;  // "rank 3 ended with code 1"
  int code;          // For shardctl.
  int order;         // A failure of smaller order explains more.
};

// Ranks that cannot be started: decided at once, and no restart helps.
inline constexpr int kStartFailed = -1;

// Returns the failure that the end of a rank is, if it is one. `host`: the name
// of its host, where there are several.
std::optional<RankFailure> FailureOf(const RankEnd& end,
                                     const std::string& host = "");
RankFailure FailureOf(const StartError& error);

class Ranks {
 public:
  virtual ~Ranks() = default;

  // Returns the failures since the last call, and does what is due.
  virtual std::vector<RankFailure> Advance() = 0;

  // Returns the ranks that have not ended yet.
  virtual int alive() const = 0;

  // Returns whether nothing more will come.
  virtual bool done() const { return alive() == 0; }

  // Passes a signal on to all processes of the ranks.
  virtual void Signal(int signal) = 0;

  // Ends what the ranks have left. REQUIRES: done().
  virtual void Clear() = 0;

  virtual void AddToPoll(std::vector<pollfd>*) const {}

  // Returns when Advance is to be called at the latest.
  virtual std::optional<Clock::time_point> NextTime() const {
    return std::nullopt;
  }
};

class OwnHostRanks final : public Ranks {
 public:
  // Starts them. `output` outlives this.
  OwnHostRanks(const RankSetup& setup, RankOutput* output);

  std::vector<RankFailure> Advance() override;
  int alive() const override { return ranks_.alive(); }
  void Signal(int signal) override { ranks_.Signal(signal); }
  void Clear() override { ranks_.KillAndReap(); }

 private:
  LocalRanks ranks_;
  std::vector<RankFailure> failures_;
};

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_RANKS_H_
