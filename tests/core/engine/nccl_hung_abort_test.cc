// SPDX-License-Identifier: Apache-2.0
//
// An engine whose NCCL does not finish an abort: each rank has its error at the
// deadline, later calls fail at once, and the engine ends within the bound of
// an abort, with its memory left behind. The host goes on.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/nccl/rank_comms.h"
#include "core/engine/engine.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/run_delay.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_hung_abort_test {
namespace {

using nccl::RankComms;
using nccl_training::Form;
using nccl_training::MakePlan;
using nccl_training::RankTraining;
using testing::ComesTrue;
using testing::JudgeTime;
namespace fake_nccl = testing::fake_nccl;

constexpr int kRanks = 2;
constexpr double kTimeout = kSanitized ? 3 : 1;
constexpr double kSlack = kSanitized ? 5 : 1;
// For a collective that was given up, and to end an engine after the abort.
constexpr double kEnd = 2;

struct Rank {
  Status first;
  double seconds = 0;  // Of the slowest call until then.
  std::vector<Status> later;
  double later_seconds = 0;
  double end_seconds = 0;
};

// Trains until a collective is stuck on rank 1.
Status Train(RankTraining* rank, const fake_nccl::Target& hangs) {
  SHARD_RETURN_IF_ERROR(rank->Create());
  SHARD_RETURN_IF_ERROR(rank->Fill());
  SHARD_RETURN_IF_ERROR(rank->Step(1));
  SHARD_RETURN_IF_ERROR(rank->Synchronize());
  SHARD_RETURN_IF_ERROR(rank->Meet("trained"));
  if (rank->rank() == 1) {
    fake_nccl::HangCalls("ncclCommAbort", hangs);
    fake_nccl::StickAt(2, {.rank = 1});
  }
  SHARD_RETURN_IF_ERROR(rank->Meet("stuck"));
  SHARD_RETURN_IF_ERROR(rank->Step(2));
  return rank->Synchronize();
}

void ExpectInTime(int stage, const fake_nccl::Target& hangs) {
  if (kAddressSanitized) GTEST_SKIP() << "what hangs is left, which is a leak";
  const Form form = {.world_size = kRanks, .stage = stage};
  testing::fake_cuda::Options gpus;
  gpus.devices = kRanks;
  testing::ResetWithNccl(gpus);
  const auto plan = MakePlan(form);
  testing::RunDelay delay;
  std::vector<Rank> ranks(kRanks);
  RunThreadRanks(
      kRanks,
      [&](const std::shared_ptr<Communicator>& comm) {
        Rank& rank = ranks[static_cast<size_t>(comm->rank())];
        RankTraining training(form, plan, comm, kTimeout);
        rank.first = Train(&training, hangs);
        rank.seconds = training.slowest().seconds;
        for (int call = 0; call < 2; ++call) {
          rank.later.push_back(training.Update());
          rank.later_seconds = std::max(rank.later_seconds, training.seconds());
        }
        training.End();
        rank.end_seconds = training.seconds();
      },
      20, "direct=0");
  const double waited = delay.seconds();
  std::string times;
  for (int r = 0; r < kRanks; ++r) {
    const Rank& rank = ranks[static_cast<size_t>(r)];
    SCOPED_TRACE(StrCat("rank ", r, ": ", rank.first.ToString()));
    EXPECT_EQ(rank.first.code(), StatusCode::kDeadlineExceeded);
    EXPECT_NE(rank.first.message().find("took longer than"), std::string::npos);
    for (const Status& later : rank.later) EXPECT_FALSE(later.ok());
    const auto judge = [&](const char* what, double seconds, double most) {
      times += JudgeTime(StrCat("rank ", r, ", ", what), seconds, most, waited);
    };
    judge("a call", rank.seconds, kTimeout + kSlack);
    judge("a later call", rank.later_seconds, 1 + kSlack);
    judge("the end", rank.end_seconds,
          RankComms::kAbortSeconds + kEnd + kSlack);
  }
  EXPECT_EQ(times, "");
  EXPECT_TRUE(ComesTrue([] { return fake_nccl::NumHanging() > 0; }));
  fake_nccl::ReleaseCalls();
  EXPECT_TRUE(ComesTrue([] { return fake_nccl::CountAlive().comms == 0; }));
  EXPECT_EQ(fake_nccl::ViolationText(), "");
}

TEST(NcclHungAbortTest, AllRanksReturnInTime) { ExpectInTime(1, {}); }

TEST(NcclHungAbortTest, TheOthersAreNotHeldUp) { ExpectInTime(3, {.rank = 1}); }

}  // namespace
}  // namespace shard::nccl_hung_abort_test
