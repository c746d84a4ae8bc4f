// SPDX-License-Identifier: Apache-2.0
//
// Ranks whose kernels run on different instruction sets: they train together,
// hold the same parameters, and rank 0 warns where bits differ.

#include "core/engine/params/instruction_sets.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "kernels/cpu/target.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/comm/tcp_hosts.h"
#include "tests/core/engine/rank_training.h"
#include "tests/kernels/cpu/target_list.h"
#include "tests/ranks/ranks.h"
#include "tests/ranks/shared.h"

namespace shard::instruction_sets_test {
namespace {

using testing::Rank;
using testing::RunRanks;
using testing::Shared;
using testing::TcpHosts;

const InstructionSet kAvx3 = {"AVX3", true};
const InstructionSet kAvx2 = {"AVX2", true};
const InstructionSet kSse4 = {"SSE4", false};
const InstructionSet kSse2 = {"SSE2", false};

TEST(InstructionSetsTest, AWarningSaysWhichRanksHaveWhich) {
  const std::string warning =
      WarningOfSets({kAvx2, kAvx2, kSse4, kAvx2, kAvx3, kSse4, kSse4});
  EXPECT_EQ(warning.find("the processors of the ranks differ: ranks 0-1, 3 run "
                         "on AVX2; ranks 2, 5-6: SSE4, without fused "
                         "multiply-add; rank 4: AVX3. "),
            0u)
      << warning;
}

TEST(InstructionSetsTest, NoWarningWhereAllRoundAlike) {
  EXPECT_EQ(WarningOfSets({kAvx2}), "");
  EXPECT_EQ(WarningOfSets({kAvx2, kAvx3, kAvx2}), "");
  EXPECT_EQ(WarningOfSets({kSse4, kSse2}), "");
}

// The sets of this machine, by whether they fuse.
std::map<bool, std::vector<uint32_t>> SetsByKind() {
  std::map<bool, std::vector<uint32_t>> kinds;
  for (const uint32_t target : Targets()) {
    hwy::SetSupportedTargetsForTest(target);
    kinds[KernelTargetFuses()].push_back(target);
  }
  hwy::SetSupportedTargetsForTest(0);
  return kinds;
}

// What the warning counts on: that only the multiply-add makes bits differ.
TEST(InstructionSetsTest, UpdatesHaveTheSameBitsOnAllSetsOfAKind) {
  if (SetsByKind().size() == Targets().size()) {
    GTEST_SKIP() << "there is one instruction set of each kind here";
  }
  for (const char* const optimizer :
       {"adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw",
        "adamw?profile=apex", "lamb", "lion", "rmsprop", "rprop",
        "sgd?momentum=0.9"}) {
    for (const auto& [fuses, targets] : SetsByKind()) {
      std::vector<std::vector<float>> first;
      for (const uint32_t target : targets) {
        hwy::SetSupportedTargetsForTest(target);
        const auto params = Train(SmallTraining(1, 1, optimizer));
        if (first.empty()) first = params;
        EXPECT_EQ(params, first) << optimizer << " on " << KernelTargetName();
      }
      hwy::SetSupportedTargetsForTest(0);
    }
  }
}

constexpr int kRanks = 3;
// What ranks in processes of their own have at the end.
struct Board {
  float params[kRanks][kSmallElements];
  char warning[kRanks][512];
  std::atomic<int> warnings[kRanks] = {};
};

// Hears the warnings of a rank.
struct Heard {
  Board* board;
  int rank;

  Logger MakeLogger() {
    return Logger(
        [](int32_t /*level*/, const char* message, void* to) {
          const auto* const heard = static_cast<Heard*>(to);
          if (std::strstr(message, "processors of the ranks differ") ==
              nullptr) {
            return;
          }
          ++heard->board->warnings[heard->rank];
          std::strncpy(heard->board->warning[heard->rank], message, 511);
        },
        LogLevel::kWarning, this);
  }
};

// Trains on hosts whose instruction sets are `targets`, by rank.
void TrainOn(const std::vector<uint32_t>& targets, Board* board) {
  const Training training = SmallTraining(kRanks);
  const TcpHosts hosts({0, 2, kRanks});
  ExpectAllPassed(RunRanks(kRanks, [&](const Rank& rank) {
    const int me = rank.rank();
    hwy::SetSupportedTargetsForTest(targets[static_cast<size_t>(me)]);
    ASSERT_OK(hosts.Enter(me));
    Heard heard{board, me};
    TrainRank(training, hosts.Url(me),
              {.rank = me, .world_size = kRanks, .logger = heard.MakeLogger()},
              board->params[me]);
  }));
  for (int rank = 1; rank < kRanks; ++rank) {
    EXPECT_EQ(std::memcmp(board->params[0], board->params[rank],
                          sizeof(board->params[0])),
              0)
        << "rank " << rank << " has other parameters than rank 0";
    EXPECT_EQ(board->warnings[rank], 0) << "on rank " << rank;
  }
}

int Differences(const Board& one, const Board& other) {
  int count = 0;
  for (size_t i = 0; i < kSmallElements; ++i) {
    count += one.params[0][i] != other.params[0][i] ? 1 : 0;
  }
  return count;
}

TEST(InstructionSetsTest, HostsOfDifferentKindsTrainWithAWarning) {
  const auto kinds = SetsByKind();
  if (kinds.size() < 2) {
    GTEST_SKIP() << "all instruction sets of this machine fuse, or none does";
  }
  const uint32_t fused = kinds.at(true).front();
  const uint32_t lower = kinds.at(false).front();
  const Shared<Board> alike;
  TrainOn({fused, fused, fused}, &*alike);
  EXPECT_EQ(alike->warnings[0], 0) << alike->warning[0];
  const Shared<Board> mixed;
  TrainOn({fused, fused, lower}, &*mixed);
  EXPECT_EQ(mixed->warnings[0], 1);
  const std::string warning = mixed->warning[0];
  for (const std::string& part :
       {StrCat("ranks 0-1 run on ", hwy::TargetName(fused)),
        StrCat("rank 2: ", hwy::TargetName(lower),
               ", without fused multiply-add")}) {
    EXPECT_NE(warning.find(part), std::string::npos) << warning;
  }
  // Rank 2's part of the parameters has other bits, and only that.
  const int different = Differences(*mixed, *alike);
  EXPECT_GT(different, 0);
  EXPECT_LE(different, static_cast<int>(kSmallElements / kRanks) + 1);
}

TEST(InstructionSetsTest, HostsOfOneKindHaveTheSameBitsWithoutAWarning) {
  const std::vector<uint32_t> targets = [] {
    for (const auto& [fuses, sets] : SetsByKind()) {
      if (sets.size() > 1) return sets;
    }
    return std::vector<uint32_t>();
  }();
  if (targets.empty()) {
    GTEST_SKIP() << "there is one instruction set of each kind here";
  }
  const uint32_t first = targets.front();
  const Shared<Board> alike;
  TrainOn({first, first, first}, &*alike);
  const Shared<Board> mixed;
  TrainOn({first, first, targets.back()}, &*mixed);
  EXPECT_EQ(mixed->warnings[0], 0) << mixed->warning[0];
  EXPECT_EQ(Differences(*mixed, *alike), 0);
}

}  // namespace
}  // namespace shard::instruction_sets_test
