// SPDX-License-Identifier: Apache-2.0
//
// Ranks on two hosts that train by NCCL, over the fakes of the driver and of
// NCCL. Control data passes between real network helpers, and NCCL alone moves
// the tensors of steps. Sums in the order of ranks have the bits of ranks on
// processors that share memory, and a rank that is lost is named on all others.

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "core/observe/event.h"
#include "core/observe/observer.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/comm/tcp_hosts.h"
#include "tests/core/engine/nccl_calls.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_several_hosts_test {
namespace {

using nccl_calls::CallsIn;
using nccl_calls::CallsOf;
using nccl_calls::Clips;
using nccl_calls::ExpectedCalls;
using nccl_calls::Gpus;
using nccl_calls::NameOf;
using nccl_calls::TextOf;
using nccl_training::Form;
using nccl_training::MakePlan;
using nccl_training::RankTraining;
using testing::FakeNccl;

constexpr int kRanks = 3;
constexpr int kSteps = 3;
constexpr double kTimeout = 30;

// Calls `body` on each rank, which is a thread: rank 0 is alone on its host,
// and ranks 1 and 2 share one. A rank that `body` returns false for leaves
// without shutdown.
void RunOnTwoHosts(
    const std::function<bool(std::shared_ptr<Communicator>)>& body) {
  const testing::TcpHosts hosts(std::vector<int>{0, 1, 3});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ASSERT_OK(hosts.Enter(rank));
      CommOptions options;
      options.rank = rank;
      options.world_size = kRanks;
      options.timeout = kTimeout;
      auto comm = OpenCommunicator(hosts.Url(rank), options);
      ASSERT_OK(comm);
      ASSERT_EQ((*comm)->local_world_size(), rank == 0 ? 1 : 2);
      if (body(*comm)) EXPECT_OK((*comm)->Shutdown(Deadline::After(kTimeout)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The bytes of tensors that a rank has sent to other hosts, but by NCCL.
uint64_t Shipped(const Communicator& comm) {
  return comm.observer()->counters().Get(EventId::kShip).bytes;
}

// Makes the steps. Returns the parameters.
StatusOr<std::vector<float>> Train(
    RankTraining* rank, const std::function<void(int step)>& after_step) {
  SHARD_RETURN_IF_ERROR(rank->Create());
  SHARD_RETURN_IF_ERROR(rank->Fill());
  SHARD_RETURN_IF_ERROR(rank->Synchronize());
  after_step(0);
  for (int step = 1; step <= kSteps; ++step) {
    SHARD_RETURN_IF_ERROR(rank->Step(step));
    SHARD_RETURN_IF_ERROR(rank->Synchronize());
    after_step(step);
  }
  return rank->Read();
}

// Returns what ranks of one host learn that share their memory.
std::vector<float> LearnedOnProcessors(const Form& form) {
  std::vector<float> learned;
  RunThreadRanks(
      kRanks,
      [&](const std::shared_ptr<Communicator>& comm) {
        RankTraining rank(form, MakePlan(form), comm, kTimeout, "cpu");
        const auto values = Train(&rank, [](int) {});
        ASSERT_OK(values);
        EXPECT_EQ(rank.engine()->ToJson(),
                  R"({"device":"cpu","transport":"direct",)"
                  R"("sum_order":"ranks"})");
        if (comm->rank() == 0) learned = *values;
      },
      kTimeout, "direct=1");
  return learned;
}

class NcclSeveralHostsTest : public ::testing::TestWithParam<Form> {};

TEST_P(NcclSeveralHostsTest, TrainsWithTheBitsOfOneHost) {
  const Form form = GetParam();
  const std::vector<float> expected = LearnedOnProcessors(form);
  ASSERT_NE(expected, std::vector<float>(expected.size(), 1.0f));
  const FakeNccl fake(Gpus(form));
  const auto plan = MakePlan(form);
  RunOnTwoHosts([&](const std::shared_ptr<Communicator>& comm) {
    RankTraining rank(form, plan, comm, kTimeout);
    size_t before = 0;
    uint64_t shipped = 0;
    const auto values = Train(&rank, [&](int step) {
      const auto log = CallsOf(comm->rank());
      if (step > 0) {
        EXPECT_EQ(TextOf(CallsIn(std::span(log).subspan(before))),
                  TextOf(ExpectedCalls(*plan, form, Clips(step))))
            << "rank " << comm->rank() << ", step " << step;
        EXPECT_EQ(Shipped(*comm), shipped) << "step " << step;
      }
      before = log.size();
      shipped = Shipped(*comm);
    });
    EXPECT_OK(values);
    if (!values.ok()) return false;
    EXPECT_TRUE(*values == expected);
    const std::string json = rank.engine()->ToJson();
    EXPECT_NE(json.find(R"("transport":"nccl 2.28.9")"), json.npos) << json;
    EXPECT_NE(json.find(R"("sums":[{"ranks":3,"hosts":2,"f32":"ranks"}])"),
              json.npos)
        << json;
    EXPECT_OK(rank.Meet("all have read"));
    rank.End();
    return true;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Forms, NcclSeveralHostsTest,
    ::testing::Values(Form{.stage = 1, .deterministic = true},
                      Form{.stage = 3, .deterministic = true}),
    NameOf);

// Each rank is lost once: one whose host goes with it, and one that leaves
// another rank on its host.
TEST(NcclLostHostTest, TheRankIsNamedOnAllOthers) {
  for (const int lost : {0, 2}) {
    for (const int stage : {1, 3}) {
      const Form form = {.stage = stage};
      SCOPED_TRACE(StrCat(form.Text(), ": rank ", lost, " is lost"));
      const FakeNccl fake(Gpus(form));
      const auto plan = MakePlan(form);
      std::atomic<int> stepped{0};
      RunOnTwoHosts([&](const std::shared_ptr<Communicator>& comm) {
        SCOPED_TRACE(StrCat("rank ", comm->rank()));
        RankTraining rank(form, plan, comm, kTimeout);
        EXPECT_OK(rank.Create());
        EXPECT_OK(rank.Fill());
        EXPECT_OK(rank.Step(1));
        ++stepped;
        if (comm->rank() == lost) {
          // The others may still be in their step.
          EXPECT_TRUE(testing::ComesTrue([&] { return stepped == kRanks; }));
          return false;
        }
        Status status;
        for (int step = 2; status.ok(); ++step) status = rank.Step(step);
        ExpectError(status, StatusCode::kRankLost, {StrCat("rank ", lost)});
        EXPECT_EQ(status.rank(), lost) << status.ToString();
        // Long before anything has lasted for its timeout.
        EXPECT_LT(rank.seconds(), kTimeout / 2);
        EXPECT_EQ(rank.Update().rank(), lost);
        return false;
      });
    }
  }
}

}  // namespace
}  // namespace shard::nccl_several_hosts_test
