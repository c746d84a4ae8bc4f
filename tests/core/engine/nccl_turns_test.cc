// SPDX-License-Identifier: Apache-2.0
//
// The calls of a training on one communicator of NCCL are made in turn: those
// of the host's thread, of the streams' threads and of the watchdog. NCCL
// forbids two at once, and mostly does nothing about them. The fake sees two
// only while both are there, so here each call takes long.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_turns_test {
namespace {

using nccl_training::Form;
using nccl_training::MakePlan;
using nccl_training::RankTraining;
using testing::FakeNccl;

constexpr double kTimeout = 60;
constexpr int kSteps = 3;

// Returns what the ranks learn; all learn the same.
std::vector<float> Learned(const Form& form,
                           const testing::fake_nccl::Options& options) {
  std::vector<float> learned;
  testing::fake_cuda::Options gpus;
  gpus.devices = form.world_size;
  const FakeNccl fake(gpus, options);
  const auto plan = MakePlan(form);
  RunThreadRanks(
      form.world_size,
      [&](const std::shared_ptr<Communicator>& comm) {
        RankTraining training(form, plan, comm, kTimeout);
        ASSERT_OK(training.Create());
        ASSERT_OK(training.Fill());
        for (int step = 1; step <= kSteps; ++step) {
          ASSERT_OK(training.Step(step));
        }
        const auto values = training.Read();
        ASSERT_OK(values);
        if (comm->rank() == 0) learned = *values;
        training.End();
      },
      kTimeout, "direct=0");
  EXPECT_EQ(testing::fake_nccl::ViolationText(), "");
  return learned;
}

class NcclTurnsTest : public ::testing::TestWithParam<Form> {};

// A call goes on in later ones, between which others are made.
TEST_P(NcclTurnsTest, SlowCallsDoNotMeet) {
  testing::fake_nccl::Options slow;
  slow.call_delay = std::chrono::microseconds(300);
  slow.polls.collective = 2;
  slow.polls.group = 2;
  const std::vector<float> expected = Learned(GetParam(), {});
  ASSERT_FALSE(expected.empty());
  EXPECT_TRUE(Learned(GetParam(), slow) == expected);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, NcclTurnsTest,
    ::testing::Values(Form{.stage = 1, .overlap = true},
                      Form{.stage = 1, .overlap = true, .deterministic = true},
                      Form{.stage = 3, .overlap = true},
                      // A communicator of all ranks, and two of some.
                      Form{.world_size = 4,
                           .stage = 3,
                           .shard_group_size = 2,
                           .overlap = true,
                           .reports = true}),
    [](const auto& info) {
      const Form& form = info.param;
      return StrCat("stage", form.stage,
                    form.shard_group_size > 0 ? "_groups" : "",
                    form.deterministic ? "_deterministic" : "");
    });

}  // namespace
}  // namespace shard::nccl_turns_test
