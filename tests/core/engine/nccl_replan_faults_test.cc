// SPDX-License-Identifier: Apache-2.0
//
// Faults while the plan of an engine changes that needs more memory for
// reductions, and so other communicators of NCCL beside those that it has: all
// ranks get the error in time, the engine is of no use any more, and new
// engines in the same process train right. What NCCL can do without changes
// nothing.

#include <gtest/gtest.h>

#include <climits>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/hang_alarm.h"
#include "tests/core/base/run_delay.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/nccl_random_faults.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"
#include "tests/ranks/ranks.h"

namespace shard::nccl_replan_faults_test {
namespace {

using nccl_random_faults::IsOf;
using nccl_random_faults::kLong;
using nccl_random_faults::kShort;
using nccl_training::Form;
using nccl_training::MakePlan;
using nccl_training::RankTraining;
using testing::JudgeTime;
using testing::fake_nccl::Result;
namespace fake_cuda = testing::fake_cuda;
namespace fake_nccl = testing::fake_nccl;

constexpr int kRanks = 3;
constexpr int kFaulty = 1;
// Beyond the timeout, and of what nobody waits for until then.
constexpr double kSlack = kSanitized ? 5 : 1;
// The parameter of the last unit, whose gradients are the most.
constexpr ParamId kFrozen = nccl_training::kUnits - 1;

struct Fault {
  const char* name;
  // What the faulty rank does before the plan changes; null: it leaves.
  std::function<void()> arm;
  StatusCode code = StatusCode::kOk;
  bool lasts = false;  // Until the deadline.
};

struct End {
  Status status;
  std::string call;
  double seconds = 0;  // Of the slowest call.
  Status later;
  double later_seconds = 0;
  double end_seconds = 0;
  std::vector<float> values;
};

// Trains a step, changes the plan and trains another step.
Status Train(const Fault* fault, RankTraining* rank, End* end) {
  SHARD_RETURN_IF_ERROR(rank->Create());
  SHARD_RETURN_IF_ERROR(rank->Fill());
  SHARD_RETURN_IF_ERROR(rank->Step(1));
  SHARD_RETURN_IF_ERROR(rank->Synchronize());
  SHARD_RETURN_IF_ERROR(rank->Meet("the plan changes next"));
  if (fault != nullptr && rank->rank() == kFaulty) {
    if (fault->arm == nullptr) return Cancelled("this rank leaves");
    fault->arm();
  }
  SHARD_RETURN_IF_ERROR(rank->Meet("armed"));
  SHARD_RETURN_IF_ERROR(rank->SetTrainable({kFrozen}, true));
  SHARD_RETURN_IF_ERROR(rank->Step(2));
  SHARD_ASSIGN_OR_RETURN(end->values, rank->Read());
  return rank->Meet("all have read");
}

struct Outcome {
  std::vector<End> ends;
  double run_delay = 0;
};

Outcome RunTraining(int stage, const Fault* fault, double timeout) {
  Outcome outcome;
  outcome.ends.resize(kRanks);
  testing::RunDelay delay;
  const Form form = {.world_size = kRanks,
                     .stage = stage,
                     .deterministic = true,
                     .freezes_last = true};
  const auto plan = MakePlan(form);
  const std::string url =
      StrCat("threads:", kRanks, "?direct=0&name=", testing::UniqueName());
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      const auto comm =
          OpenCommunicator(url, {.rank = r, .world_size = kRanks});
      ASSERT_OK(comm);
      End& end = outcome.ends[static_cast<size_t>(r)];
      RankTraining rank(form, plan, *comm, timeout);
      end.status = Train(fault, &rank, &end);
      end.call = rank.call();
      end.seconds = rank.slowest().seconds;
      const bool leaves = end.status.code() == StatusCode::kCancelled;
      if (!end.status.ok() && !leaves) {
        end.later = rank.Update();
        end.later_seconds = rank.seconds();
      }
      rank.End();
      end.end_seconds = rank.seconds();
    });
  }
  for (std::thread& thread : threads) thread.join();
  outcome.run_delay = delay.seconds();
  return outcome;
}

class NcclReplanFaultsTest : public ::testing::TestWithParam<int> {};

TEST_P(NcclReplanFaultsTest, EndInTimeOnAllRanks) {
  const fake_nccl::Target target = {.rank = kFaulty};
  const std::vector<Fault> faults = {
      {"ncclGetUniqueId fails",
       [] { fake_nccl::FailCall("ncclGetUniqueId", 1, Result::kSystemError); },
       StatusCode::kUnavailable},
      {"ncclCommInitRankConfig fails",
       [] {
         fake_nccl::FailCall("ncclCommInitRankConfig", 1,
                             Result::kInternalError);
       },
       StatusCode::kInternal},
      {"ncclCommInitRankConfig is not done",
       [=] {
         fake_nccl::SlowCall("ncclCommInitRankConfig", 1, INT_MAX, target);
       },
       StatusCode::kDeadlineExceeded, true},
      {"NCCL's part of a rank is dead", [] { fake_nccl::Kill(kFaulty); },
       StatusCode::kDeadlineExceeded, true},
      {"the first collective is stuck", [=] { fake_nccl::StickAt(1, target); },
       StatusCode::kDeadlineExceeded, true},
      {"the first collective fails later",
       [=] { fake_nccl::FailAsyncAt(1, Result::kRemoteError, target); },
       StatusCode::kUnavailable},
      {"a rank leaves", nullptr, StatusCode::kRankLost},
      {"ncclMemAlloc fails",
       [] { fake_nccl::FailCall("ncclMemAlloc", 1, Result::kSystemError); }},
      {"ncclCommRegister fails",
       [=] {
         fake_nccl::FailCall("ncclCommRegister", 1, Result::kSystemError,
                             target);
       }},
  };
  fake_cuda::Options gpus;
  gpus.devices = kRanks;
  std::vector<float> expected;
  {
    const testing::FakeNccl fake(gpus);
    const Outcome whole = RunTraining(GetParam(), nullptr, kLong);
    for (const End& end : whole.ends) ASSERT_OK(end.status);
    expected = whole.ends[0].values;
    // The change has made communicators.
    EXPECT_EQ(fake_nccl::Count().Calls("ncclCommInitRankConfig"),
              uint64_t{2 * kRanks});
  }
  for (const Fault& fault : faults) {
    const std::string text = StrCat("stage ", GetParam(), ": ", fault.name);
    const testing::HangAlarm alarm(text);
    SCOPED_TRACE(text);
    testing::ResetWithNccl(gpus);
    const double timeout = fault.lasts ? kShort : kLong;
    const Outcome outcome = RunTraining(GetParam(), &fault, timeout);
    const double most = (fault.lasts ? timeout : 1) + kSlack;
    std::string times;
    for (int r = 0; r < kRanks; ++r) {
      const End& end = outcome.ends[static_cast<size_t>(r)];
      SCOPED_TRACE(
          StrCat("rank ", r, ", ", end.call, ": ", end.status.ToString()));
      const auto judge = [&](const std::string& what, double seconds,
                             double allowed) {
        times += JudgeTime(StrCat("rank ", r, ", ", what), seconds, allowed,
                           outcome.run_delay);
      };
      judge("the end", end.end_seconds, 2 + kSlack);
      const bool leaves = end.status.code() == StatusCode::kCancelled;
      if (leaves) continue;
      judge(end.call, end.seconds,
            most +
                (fault.arm == nullptr ? outcome.ends[kFaulty].end_seconds : 0));
      if (fault.code == StatusCode::kOk) {
        EXPECT_OK(end.status);
        EXPECT_TRUE(end.values == expected);
        continue;
      }
      EXPECT_TRUE(IsOf(end.status, fault.code));
      EXPECT_FALSE(end.later.ok());
      judge("a later step", end.later_seconds, 1 + kSlack);
      if (fault.code == StatusCode::kRankLost) {
        EXPECT_EQ(end.status.rank(), kFaulty);
        EXPECT_EQ(end.later.rank(), kFaulty);
      }
    }
    EXPECT_EQ(times, "");
    fake_nccl::ClearFaults();
    const Outcome again = RunTraining(GetParam(), nullptr, kLong);
    for (const End& end : again.ends) {
      EXPECT_OK(end.status);
      EXPECT_TRUE(end.values == expected);
    }
    testing::FakeNccl::Check();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, NcclReplanFaultsTest, ::testing::Values(1, 3));

}  // namespace
}  // namespace shard::nccl_replan_faults_test
