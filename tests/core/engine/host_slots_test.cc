// SPDX-License-Identifier: Apache-2.0
//
// Where parameters are sharded over several hosts, the ranks of a host have one
// copy of each slot into which they gather a unit: the results are those of
// ranks that share all memory, in every bit, and reports of memory count one.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/run_on_hosts.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::host_slots_test {
namespace {

using Values = std::vector<std::vector<float>>;

struct Form {
  const char* name = "";
  std::vector<int> begins;  // The first rank of each host, and their number.
  int shard_group_size = 0;
  bool shares = true;
  bool helpers = false;
  bool begin_step = false;
  int prefetch = 1;
  const char* device = "cpu";
  MissingGrads missing_grads = MissingGrads::kError;
};

UnitTraining TrainingOf(const Form& form) {
  UnitTraining training;
  training.model = BlockModel(12);
  training.plan.stage = 3;
  training.plan.world_size = form.begins.back();
  training.plan.shard_group_size = form.shard_group_size;
  training.plan.prefetch = form.prefetch;
  training.plan.deterministic = true;
  training.engine.device = form.device;
  training.engine.missing_grads = form.missing_grads;
  training.begin_step = form.begin_step;
  training.steps = 3;
  return training;
}

// Expects that what a host's first rank writes into a unit that all have
// acquired is what its other ranks read there, if they share it.
void ExpectOneSlotPerHost(bool shares, Communicator* comm, Engine* engine) {
  const auto soon = [] { return Deadline::After(30); };
  for (int32_t unit = 1; unit < 5; ++unit) {
    ASSERT_OK(engine->UnitAcquire(unit, Pass::kForward, 0));
    ASSERT_OK(engine->Synchronize(0));
    const int32_t buffer = engine->plan().unit(unit).buffers.front();
    const auto tensor = engine->Param(
        engine->plan().buffer(buffer).layout.slots().front().param);
    ASSERT_OK(tensor);
    auto* const value = static_cast<float*>(tensor->data);
    const float before = *value;
    ASSERT_OK(comm->Barrier("read", soon()));
    if (comm->local_rank() == 0) *value = 1000;
    ASSERT_OK(comm->Barrier("written", soon()));
    EXPECT_EQ(*value == 1000, shares || comm->local_rank() == 0);
    ASSERT_OK(comm->Barrier("compared", soon()));
    if (comm->local_rank() == 0) *value = before;
    ASSERT_OK(comm->Barrier("restored", soon()));
    ASSERT_OK(engine->UnitRelease(unit));
  }
}

void ExpectPlannedMemory(bool shares, const Communicator& comm,
                         const Engine& engine) {
  const MemoryReport planned = engine.plan().Memory(false);
  const int ranks = comm.local_world_size();
  EXPECT_EQ(engine.SharesSlots(), shares);
  EXPECT_EQ(engine.Memory().HostTotal(ranks, false, shares),
            planned.HostTotal(ranks, false, shares));
  EXPECT_GT(planned.param_slot_bytes, 0u);
  EXPECT_EQ(planned.HostTotal(ranks, false, false) -
                planned.HostTotal(ranks, false, true),
            static_cast<uint64_t>(ranks - 1) * planned.param_slot_bytes);
}

// Trains, and returns what each rank has read before each step and after the
// last. Without `on_hosts` all ranks share all memory.
std::vector<std::vector<Values>> Train(const Form& form, bool on_hosts) {
  UnitTraining training = TrainingOf(form);
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  EXPECT_TRUE(ShardsAsItsStage(**plan));
  std::vector<std::vector<Values>> read(
      static_cast<size_t>(form.begins.back()));
  const auto body = [&](const std::shared_ptr<Communicator>& comm) {
    auto made = CreateEngine(*plan, comm, training.engine);
    ASSERT_OK(made);
    Engine& engine = **made;
    if (on_hosts) ExpectPlannedMemory(form.shares, *comm, engine);
    UnitTrainer trainer(training, &engine);
    trainer.Fill();
    auto& mine = read[static_cast<size_t>(comm->rank())];
    for (int step = 1; step <= training.steps; ++step) {
      mine.push_back(trainer.Read());
      if (training.begin_step) ASSERT_OK(engine.BeginStep(training.step));
      trainer.Forward();
      trainer.Backward(step, true);
      ASSERT_OK(trainer.Step(nullptr));
      ASSERT_OK(engine.ZeroGrad());
    }
    mine.push_back(trainer.Read());
    if (on_hosts) ExpectOneSlotPerHost(form.shares, comm.get(), &engine);
  };
  if (on_hosts) {
    RunOnHosts(form.begins, form.helpers, body);
  } else {
    RunThreadRanks(form.begins.back(), body, 30, "direct=1");
  }
  return read;
}

class HostSlotsTest : public ::testing::TestWithParam<Form> {};

TEST_P(HostSlotsTest, OneSlotPerHostHasTheBitsOfRanksThatShareMemory) {
  const Form& form = GetParam();
  const auto read = Train(form, /*on_hosts=*/true);
  const auto expected = Train(form, /*on_hosts=*/false);
  for (size_t r = 0; r < read.size(); ++r) {
    EXPECT_EQ(read[r], expected[0]) << "on rank " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, HostSlotsTest,
    ::testing::Values(
        Form{.name = "two_and_one", .begins = {0, 2, 3}},
        Form{.name = "one_and_three", .begins = {0, 1, 4}},
        Form{.name = "one_host", .begins = {0, 2}},
        Form{.name = "helpers", .begins = {0, 2, 3}, .helpers = true},
        Form{.name = "no_prefetch", .begins = {0, 2, 3}, .prefetch = 0},
        Form{.name = "begun", .begins = {0, 2, 3}, .begin_step = true},
        Form{.name = "group_on_a_host",
             .begins = {0, 2, 4},
             .shard_group_size = 2},
        Form{.name = "group_on_a_part_of_a_host",
             .begins = {0, 1, 4},
             .shard_group_size = 2,
             .shares = false},
        Form{.name = "async",
             .begins = {0, 2, 3},
             .prefetch = 2,
             .device = "cpu-async?max_delay=0.0002&seed=21&host=async"},
        Form{.name = "missing_gradients",
             .begins = {0, 2, 3},
             .missing_grads = MissingGrads::kSkip}),
    [](const auto& info) { return std::string(info.param.name); });

// One rank holds a unit for longer than the other, and so has another slot
// left for the third.
TEST(HostSlotsTest, RanksThatReleaseUnitsInOtherOrdersAreOutOfStep) {
  const Form form = {.begins = {0, 2, 3}};
  UnitTraining training = TrainingOf(form);
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  RunOnHosts(
      form.begins, false,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = CreateEngine(*plan, comm, training.engine);
        ASSERT_OK(engine);
        UnitTrainer trainer(training, engine->get());
        trainer.Fill();
        const int depth = (*plan)->unit(1).depth;
        std::vector<int32_t> units;
        for (size_t u = 0; u < (*plan)->units().size(); ++u) {
          if ((*plan)->units()[u].depth == depth) {
            units.push_back(static_cast<int32_t>(u));
          }
        }
        ASSERT_GE(units.size(), 3u);
        const bool keeps = comm->rank() == 1;
        const auto acquire = [&](size_t u) {
          return (*engine)->UnitAcquire(units[u], Pass::kForward, 5);
        };
        const auto release = [&](size_t u) {
          return (*engine)->UnitRelease(units[u]);
        };
        ASSERT_OK(acquire(0));
        if (!keeps) ASSERT_OK(release(0));
        ASSERT_OK(acquire(1));
        ASSERT_OK(release(1));
        Status status = acquire(2);
        if (status.ok()) status = (*engine)->Synchronize(5);
        ExpectError(status, StatusCode::kDesync,
                    {"into slot 0 of its host", "into slot 1 of its host",
                     "acquire and release units in the same order"});
      },
      /*ends=*/false);
}

// A rank in join takes part in the gathering of the others, into their slots.
TEST(HostSlotsTest, ARankThatHasJoinedHelps) {
  const Form form = {.begins = {0, 2, 3}};
  UnitTraining training = TrainingOf(form);
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  std::vector<Values> read[2];
  for (const bool on_hosts : {true, false}) {
    read[on_hosts].resize(3);
    const auto body = [&](const std::shared_ptr<Communicator>& comm) {
      const auto engine = CreateEngine(*plan, comm, training.engine);
      ASSERT_OK(engine);
      UnitTrainer trainer(training, engine->get());
      trainer.Fill();
      for (int epoch = 0; epoch < 2; ++epoch) {
        for (int step = 1; step <= 3; ++step) {
          // Ranks have 1 to 3 batches.
          if (step > 1 + (comm->rank() + epoch) % 3) break;
          trainer.Forward();
          trainer.Backward(10 * epoch + step, true);
          ASSERT_OK(trainer.Step(nullptr));
          ASSERT_OK((*engine)->ZeroGrad());
        }
        int64_t steps = 0;
        ASSERT_OK((*engine)->Join(30, &steps));
      }
      read[on_hosts][static_cast<size_t>(comm->rank())] = trainer.Read();
    };
    if (on_hosts) {
      RunOnHosts(form.begins, false, body);
    } else {
      RunThreadRanks(form.begins.back(), body, 30, "direct=1");
    }
  }
  for (size_t r = 0; r < 3; ++r) EXPECT_EQ(read[1][r], read[0][0]) << r;
}

}  // namespace
}  // namespace shard::host_slots_test
