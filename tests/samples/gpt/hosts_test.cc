// SPDX-License-Identifier: Apache-2.0
//
// Ranks on several hosts, whose number of ranks differs, train the model that
// the threads of one process train, to the bit. namespaces_training_tests runs
// this with hosts that have networks of their own.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/comm/tcp_hosts.h"
#include "tests/samples/gpt/train_gpt_fixture.h"

namespace hosts_test {
namespace {

// Starts a process for each rank, as a launcher of several hosts does.
std::string CommandOf(const shard::testing::TcpHosts& hosts, int ranks,
                      const std::string& arguments) {
  std::string start;
  std::string wait;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string number = std::to_string(rank);
    start += "SHARD_RANK=" + number +
             " SHARD_WORLD_SIZE=" + std::to_string(ranks) +
             " SHARD_RENDEZVOUS='" + hosts.Url(rank) + "' " +
             hosts.CommandPrefix(rank) + "samples/gpt/train_gpt " + arguments +
             " & rank" + number + "=$!; ";
    wait += "wait $rank" + number + (rank + 1 < ranks ? " && " : "; ");
  }
  return "{ " + start + wait + "}";
}

class HostsTest : public TrainGptTest {
 protected:
  // Returns arguments for 6 steps of a model of so many blocks that it shards.
  std::string Deep(const std::string& arguments) const {
    return Tiny(
        "--layers 6 --width 32 --steps 6 --val-every 3 --warm-up 3 "
        "--timeout 20 --deterministic --sample 60 " +
        arguments);
  }

  // Expects that both runs have the same losses, and parameters that write the
  // same text.
  void ExpectSameRun(const Outcome& run, const std::vector<std::string>& log,
                     const Outcome& expected) {
    EXPECT_EQ(Log(run, 8), log);
    EXPECT_EQ(SampleOf(run), SampleOf(expected));
  }
};

TEST_F(HostsTest, GiveTheBitsOfThreads) {
  const bool networks = shard::testing::HostsAreNamespaces();
  const bool is_long = std::getenv("SHARD_TEST_LONG") != nullptr;
  // Under a sanitizer, and with networks, which change what the helpers do, and
  // not the ranks: each number of ranks with one optimizer.
  const bool few = shard::kSanitized || (networks && !is_long);
  for (const char* optimizer : {"adamw", "muon"}) {
    for (const int ranks : {2, 4, 8}) {
      const bool is_adamw = std::string(optimizer) == "adamw";
      if (few && (ranks == 2) != is_adamw) continue;
      if (ranks == 8 && !(networks && is_long)) continue;
      const std::string with = std::string("--optimizer ") + optimizer;
      const Outcome threads = Run(Deep(
          "--rank-threads " + std::to_string(ranks) + " --stage 1 " + with));
      const std::vector<std::string> log = Log(threads, 8);
      EXPECT_LT(Losses(log)[6], Losses(log)[0]);  // The model learns.
      for (const char* how :
           {" --stage 1", " --stage 2 --overlap", " --stage 3 --prefetch 0",
            " --stage 3 --overlap"}) {
        const shard::testing::TcpHosts hosts(ranks);
        SCOPED_TRACE(with + ", hosts of " + hosts.Shape() + " ranks," + how);
        std::printf("hosts of %s ranks: %s%s\n", hosts.Shape().c_str(),
                    with.c_str(), how);
        const Outcome run =
            RunCommand(CommandOf(hosts, ranks, Deep(with + how)));
        ExpectSameRun(run, log, threads);
        const bool shards =
            std::string(how).find("--stage 3") != std::string::npos;
        EXPECT_EQ(MemoryOf(run).params < MemoryOf(threads).params, shards);
      }
    }
  }
}

}  // namespace
}  // namespace hosts_test
