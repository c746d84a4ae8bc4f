// SPDX-License-Identifier: Apache-2.0
//
// Real ranks for tests: forks N processes, runs a function in each, and waits
// for all of them, however they end. A test never hangs: at the deadline the
// remaining ranks are killed and reported as timed out.
//
// The function may use EXPECT_* and ASSERT_*: a failure in a rank makes that
// rank fail, and its text is printed by the rank.
//
// REQUIRES: the calling process has no other threads (it forks).

#ifndef SHARD_TESTS_RANKS_RANKS_H_
#define SHARD_TESTS_RANKS_RANKS_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace shard::testing {

// The rank that a function runs as.
class Rank {
 public:
  Rank(int rank, int world_size, int pipe)
      : rank_(rank), world_size_(world_size), pipe_(pipe) {}

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // Appends to this rank's report immediately, so that the text survives a
  // SIGKILL.
  void Report(std::string_view text) const;

 private:
  const int rank_;
  const int world_size_;
  const int pipe_;
};

struct RankResult {
  int rank = -1;
  bool timed_out = false;
  int exit_code = -1;  // -1 when a signal ended the rank.
  int signal = 0;      // 0 when the rank exited by itself.
  double seconds = 0;  // From the fork of all ranks to the end of this one.
  std::string report;
  bool passed() const { return !timed_out && exit_code == 0; }
  // Returns "rank 1: killed by signal 9 after 0.1 s, report '...'".
  std::string ToString() const;
};

using RankFunction = std::function<void(const Rank&)>;

// Runs `function` in `world_size` processes and returns the results in rank
// order.
std::vector<RankResult> RunRanks(int world_size, const RankFunction& function,
                                 double seconds = 60);

// Expects that every rank passed.
void ExpectAllPassed(const std::vector<RankResult>& results);

// Returns "test-<16 random digits>", so that two tests never use one name, in
// any sandbox.
std::string UniqueName();

// Returns the number of open file descriptors of this process.
int CountOpenFiles();

}  // namespace shard::testing

#endif  // SHARD_TESTS_RANKS_RANKS_H_
