// SPDX-License-Identifier: Apache-2.0
//
// Calls of each entry point of NCCL fail one by one while ranks train: every
// rank ends in time with the error, and new engines in the same process train
// right. So do calls of the driver that record events.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/hang_alarm.h"
#include "tests/core/base/run_delay.h"
#include "tests/core/engine/nccl_fault_trials.h"
#include "tests/core/engine/nccl_random_faults.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_failed_calls_test {
namespace {

using nccl_fault_trials::Call;
using nccl_fault_trials::End;
using nccl_fault_trials::Expected;
using nccl_fault_trials::Judge;
using nccl_fault_trials::kAtOnce;
using nccl_fault_trials::kEnd;
using nccl_fault_trials::RunTraining;
using nccl_random_faults::Case;
using nccl_random_faults::IsOf;
using nccl_random_faults::Kind;
using nccl_random_faults::kLong;
using nccl_random_faults::kSteps;
using nccl_random_faults::NumbersOf;
using testing::JudgeTime;
using testing::ResetWithNccl;
using testing::fake_nccl::Result;
namespace fake_cuda = testing::fake_cuda;
namespace fake_nccl = testing::fake_nccl;

// Calls of NCCL that one rank of a training makes fail once each, from the
// creation of its engine to its end.
TEST(NcclFailedCallTest, AnyCallMayFail) {
  Case drawn;
  drawn.kind = Kind::kFailedCall;
  drawn.form = {.world_size = 2, .stage = 3};
  drawn.rank = 1;
  drawn.result = Result::kSystemError;
  const std::vector<float>& expected = Expected(drawn.form, 1);
  Expected(drawn.form, kSteps);
  fake_cuda::Options gpus;
  gpus.devices = drawn.form.world_size;
  std::map<std::string, uint64_t> calls;
  {
    const testing::FakeNccl fake(gpus);
    RunTraining(drawn.form, nullptr, kSteps, kLong);
    calls = fake_nccl::Count({.rank = drawn.rank}).calls;
    // Some have no communicator, and are those of any rank.
    calls.merge(fake_nccl::Count().calls);
  }
  EXPECT_GE(calls.size(), 10u);
  std::set<std::string> failed;
  for (const auto& [symbol, count] : calls) {
    for (const uint64_t number : NumbersOf(count)) {
      drawn.symbol = symbol;
      drawn.number = number;
      const std::string text = drawn.Text();
      const testing::HangAlarm alarm(text);
      SCOPED_TRACE(text);
      ResetWithNccl(gpus);
      const auto ends =
          RunTraining(drawn.form, &drawn, kSteps, drawn.timeout());
      for (int r = 0; r < drawn.form.world_size; ++r) {
        EXPECT_EQ(Judge(drawn, r, ends), "");
        if (!ends[static_cast<size_t>(r)].first.status.ok()) {
          failed.insert(symbol);
        }
      }
      fake_nccl::ClearFaults();
      for (const End& end : RunTraining(drawn.form, nullptr, 1, kLong)) {
        EXPECT_OK(end.first.status);
        EXPECT_TRUE(end.values == expected);
      }
      EXPECT_EQ(fake_nccl::ViolationText(), "");
      // What cannot be ended, or freed, stays.
      if (symbol != "ncclCommAbort" && symbol != "ncclCommDestroy" &&
          symbol != "ncclMemFree") {
        testing::FakeNccl::Check();
      }
      if (HasFailure()) return;
    }
  }
  // An error of a call that ends communicators ends nothing else.
  for (const char* symbol : {"ncclCommInitRankConfig", "ncclGroupEnd",
                             "ncclReduceScatter", "ncclAllGather"}) {
    EXPECT_EQ(failed.count(symbol), 1u) << symbol;
  }
}

// Every k-th call of NCCL fails on all ranks, until the engines have ended.
TEST(NcclFailedCallTest, EveryKthCallMayFail) {
  Case drawn;
  drawn.kind = Kind::kFailedCall;
  drawn.form = {.world_size = 3, .stage = 2};
  drawn.result = Result::kSystemError;
  Expected(drawn.form, kSteps);
  const std::vector<float>& expected = Expected(drawn.form, 1);
  fake_cuda::Options gpus;
  gpus.devices = drawn.form.world_size;
  for (const uint64_t every : {1, 2, 3, 7, 40, 150, 300}) {
    const std::string text = StrCat("every call of ", every, " fails");
    const testing::HangAlarm alarm(text);
    SCOPED_TRACE(text);
    ResetWithNccl(gpus);
    fake_nccl::FailEveryCall("", every, drawn.result);
    const auto ends = RunTraining(drawn.form, nullptr, kSteps, kLong);
    EXPECT_GE(fake_nccl::NumFaults(), 1u);
    for (int r = 0; r < drawn.form.world_size; ++r) {
      const End& end = ends[static_cast<size_t>(r)];
      const Call& first = end.first;
      EXPECT_TRUE(IsOf(first.status, StatusCode::kUnavailable) ||
                  IsOf(first.status, StatusCode::kBackendUnavailable))
          << first.status.ToString();
      EXPECT_NE(first.status.message().find("rank "), std::string::npos);
      EXPECT_EQ(JudgeTime(end.slowest.name, end.slowest.seconds, kAtOnce,
                          end.run_delay),
                "");
      EXPECT_EQ(JudgeTime("the end", end.end_seconds, kEnd, end.run_delay), "");
    }
    fake_nccl::ClearFaults();
    for (const End& end : RunTraining(drawn.form, nullptr, 1, kLong)) {
      EXPECT_OK(end.first.status);
      EXPECT_TRUE(end.values == expected);
    }
    EXPECT_EQ(fake_nccl::ViolationText(), "");
    if (HasFailure()) return;
  }
}

// A call of the driver that fails around one of NCCL's may leave a collective
// on the device for which the other rank does not come: it is aborted at once.
TEST(NcclDriverCallTest, AFailureLeavesNoCollectiveOnTheDevice) {
  nccl_training::Form form;
  form.world_size = 2;
  fake_cuda::Options gpus;
  gpus.devices = form.world_size;
  const auto plan = nccl_training::MakePlan(form);
  const bool is_long = std::getenv("SHARD_TEST_LONG") != nullptr;
  const uint64_t most = is_long ? 40 : 10;
  for (const char* const symbol :
       {"cuEventCreate", "cuEventRecord", "cuEventQuery"}) {
    const bool is_query = symbol == std::string("cuEventQuery");
    int failed = 0;
    for (uint64_t number = 1; number <= most; ++number) {
      const std::string text = StrCat(symbol, " ", number);
      const testing::HangAlarm alarm(text);
      SCOPED_TRACE(text);
      const testing::FakeNccl fake(gpus);
      testing::RunDelay delay;
      std::vector<Call> slowest(static_cast<size_t>(form.world_size));
      std::vector<double> seconds(static_cast<size_t>(form.world_size));
      RunThreadRanks(
          form.world_size,
          [&](const std::shared_ptr<Communicator>& comm) {
            nccl_training::RankTraining rank(form, plan, comm, kLong);
            ASSERT_OK(rank.Create());
            ASSERT_OK(rank.Meet("created"));
            if (rank.rank() == 0) {
              fake_cuda::FailCall(symbol, number, cuda::CuResult::kOutOfMemory);
            }
            ASSERT_OK(rank.Meet("armed"));
            // As a host that trains from zeros: an error of set_param is its
            // rank's alone.
            Status status = rank.engine()->BroadcastParams(0);
            for (int step = 1; step <= 2 && status.ok(); ++step) {
              status = rank.Step(step);
            }
            if (rank.rank() == 0 && !status.ok()) ++failed;
            const auto index = static_cast<size_t>(rank.rank());
            slowest[index] = {rank.slowest().name, status,
                              rank.slowest().seconds};
            rank.End();
            seconds[index] = rank.seconds();
          },
          30, "direct=0");
      fake_cuda::ClearFailures();
      for (const double end : seconds) {
        EXPECT_EQ(JudgeTime("the end", end, kEnd, delay.seconds()), "");
      }
      for (const Call& call : slowest) {
        EXPECT_EQ(JudgeTime(call.name, call.seconds, kAtOnce, delay.seconds()),
                  "")
            << call.status.ToString();
      }
      if (HasFailure()) return;
    }
    // A query is made again.
    if (!is_query) {
      EXPECT_GT(failed, 0) << symbol;
    }
  }
}

}  // namespace
}  // namespace shard::nccl_failed_calls_test
