// SPDX-License-Identifier: Apache-2.0
//
// Ranks on several hosts have one copy of the parameters on each host, in the
// stages that do not shard them: the results are those of ranks that share all
// memory, in every bit, and reports of memory count one copy.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/params/all_ranks.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/run_on_hosts.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::host_params_test {
namespace {

using Values = std::vector<std::vector<float>>;

struct Form {
  const char* name = "";
  int stage = 1;
  bool overlap = false;
  bool begin_step = false;
  int passes = 1;
  int shard_group_size = 0;
  const char* device = "cpu";
  const char* optimizer = "adamw";
  void (*change)(Engine* engine, int step) = nullptr;  // Before each step.
};

// Moves all parameters to other places, and back.
void Replan(Engine* engine, int step) {
  if (step == 1) return;
  ASSERT_OK(engine->SetTrainable(std::vector<ParamId>{0}, step == 3, 0));
}

// Overwrites a parameter, by copies that one rank has or all have.
void WriteBack(Engine* engine, int step) {
  const int writer = step == 2 ? 1 : kAllRanks;
  ASSERT_OK(engine->Summon(kRootModule, writer, 0));
  if (writer == kAllRanks || engine->comm()->rank() == writer) {
    const auto tensor = engine->WritableParam(0);
    ASSERT_OK(tensor);
    auto* const values = static_cast<float*>(tensor->data);
    for (int64_t i = 0; i < tensor->numel; ++i) values[i] += 0.25f;
  }
  ASSERT_OK(engine->EndSummon(true, 0));
}

constexpr Form kForms[] = {
    {.name = "stage0", .stage = 0},
    {.name = "stage1"},
    {.name = "stage2", .stage = 2},
    {.name = "overlap", .overlap = true},
    {.name = "begun", .stage = 2, .begin_step = true},
    {.name = "begun_overlap", .overlap = true, .begin_step = true},
    {.name = "two_passes", .passes = 2},
    {.name = "groups", .shard_group_size = 2},
    {.name = "whole_parameters", .optimizer = "lamb"},
    {.name = "replanned", .change = Replan},
    {.name = "stage2_replanned", .stage = 2, .change = Replan},
    {.name = "written_back", .change = WriteBack},
    {.name = "async",
     .device = "cpu-async?max_delay=0.0002&seed=11&host=async"},
    {.name = "stage2_async",
     .stage = 2,
     .overlap = true,
     .device = "cpu-async?max_delay=0.0002&seed=12&host=async"},
};

UnitTraining TrainingOf(const Form& form, int world_size) {
  UnitTraining training;
  training.model = BlockModel(12);
  training.optimizer = form.optimizer;
  training.plan.stage = form.stage;
  training.plan.world_size = world_size;
  training.plan.shard_group_size =
      world_size % 2 == 0 ? form.shard_group_size : 0;
  training.plan.deterministic = true;
  training.engine.overlap = form.overlap;
  training.engine.device = form.device;
  training.passes = form.passes;
  training.begin_step = form.begin_step;
  training.steps = 3;
  return training;
}

// Expects that what a host's first rank writes into a parameter is what its
// other ranks read there, and ranks of other hosts do not.
void ExpectOneCopyPerHost(const std::vector<int>& begins, Communicator* comm,
                          const Engine& engine) {
  const auto host = static_cast<float>(
      std::upper_bound(begins.begin(), begins.end(), comm->rank()) -
      begins.begin());
  const auto soon = [] { return Deadline::After(30); };
  const auto params = static_cast<ParamId>(engine.plan().places().size());
  for (ParamId param = 0; param < params; ++param) {
    const auto tensor = engine.Param(param);
    ASSERT_OK(tensor);
    auto* const values = static_cast<float*>(tensor->data);
    float* const last = values + (tensor->numel - 1);
    const float before = *last;
    ASSERT_OK(comm->Barrier("read", soon()));
    if (comm->local_rank() == 0) *last = 1000 + host;
    ASSERT_OK(comm->Barrier("written", soon()));
    EXPECT_EQ(*last, 1000 + host) << "parameter " << param;
    ASSERT_OK(comm->Barrier("compared", soon()));
    if (comm->local_rank() == 0) *last = before;
    ASSERT_OK(comm->Barrier("restored", soon()));
  }
}

void ExpectPlannedMemory(const Communicator& comm, const Engine& engine) {
  const MemoryReport planned = engine.plan().Memory(false);
  const MemoryReport measured = engine.Memory();
  EXPECT_EQ(measured.param_bytes, planned.param_bytes);
  const int ranks = comm.local_world_size();
  EXPECT_EQ(measured.HostTotal(ranks, engine.SharesParams()),
            planned.HostTotal(ranks, true));
  EXPECT_EQ(planned.HostTotal(ranks, false) - planned.HostTotal(ranks, true),
            static_cast<uint64_t>(ranks - 1) * planned.param_bytes);
}

// Trains, and returns the parameters that each rank has read before each step
// and after the last. Without `on_hosts` all ranks share all memory.
std::vector<std::vector<Values>> Train(const Form& form,
                                       const UnitTraining& training,
                                       const std::vector<int>& begins,
                                       bool helpers, bool on_hosts) {
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  std::vector<std::vector<Values>> read(static_cast<size_t>(begins.back()));
  const auto body = [&](const std::shared_ptr<Communicator>& comm) {
    auto made = CreateEngine(*plan, comm, training.engine);
    ASSERT_OK(made);
    Engine& engine = **made;
    EXPECT_EQ(engine.SharesTensors(), !on_hosts);
    EXPECT_TRUE(engine.SharesParams());
    if (on_hosts) ExpectPlannedMemory(*comm, engine);
    UnitTrainer trainer(training, &engine);
    trainer.Fill();
    auto& mine = read[static_cast<size_t>(comm->rank())];
    for (int step = 1; step <= training.steps; ++step) {
      if (form.change != nullptr) form.change(&engine, step);
      mine.push_back(trainer.Read());
      if (training.begin_step) ASSERT_OK(engine.BeginStep(training.step));
      for (int pass = 1; pass <= training.passes; ++pass) {
        trainer.Forward();
        trainer.Backward(10 * step + pass, pass == training.passes);
      }
      StepReport report;
      ASSERT_OK(trainer.Step(&report));
      ASSERT_OK(engine.ZeroGrad());
    }
    mine.push_back(trainer.Read());
    EXPECT_TRUE(engine.SharesParams());
    if (on_hosts) ExpectOneCopyPerHost(begins, comm.get(), engine);
  };
  if (on_hosts) {
    RunOnHosts(begins, helpers, body);
  } else {
    RunThreadRanks(begins.back(), body, 30, "direct=1");
  }
  return read;
}

using Case = std::tuple<Form, std::vector<int>, bool>;

class HostParamsTest : public ::testing::TestWithParam<Case> {};

TEST_P(HostParamsTest, OneCopyPerHostHasTheBitsOfRanksThatShareMemory) {
  const auto& [form, begins, helpers] = GetParam();
  UnitTraining training = TrainingOf(form, begins.back());
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  EXPECT_TRUE(ShardsAsItsStage(**plan));
  const auto read = Train(form, training, begins, helpers, /*on_hosts=*/true);
  training.engine.overlap = false;
  const auto expected =
      Train(form, training, begins, false, /*on_hosts=*/false);
  for (size_t r = 0; r < read.size(); ++r) {
    EXPECT_EQ(read[r], expected[0]) << "on rank " << r;
  }
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const auto& begins = std::get<1>(info.param);
  std::string name = std::get<0>(info.param).name;
  for (size_t h = 0; h + 1 < begins.size(); ++h) {
    StrAppend(&name, h == 0 ? "_" : "", begins[h + 1] - begins[h]);
  }
  return name;
}

// Hosts of unequal numbers of ranks; and one host of all.
INSTANTIATE_TEST_SUITE_P(
    Mirrored, HostParamsTest,
    ::testing::Combine(::testing::ValuesIn(kForms),
                       ::testing::Values(std::vector<int>{0, 2, 3},
                                         std::vector<int>{0, 1, 4},
                                         std::vector<int>{0, 2}),
                       ::testing::Values(false)),
    NameOf);

INSTANTIATE_TEST_SUITE_P(Tcp, HostParamsTest,
                         ::testing::Combine(::testing::Values(kForms[1]),
                                            ::testing::Values(std::vector<int>{
                                                0, 2, 3}),
                                            ::testing::Values(true)),
                         NameOf);

// The other rank of a host updates a part of what this one is about to read.
TEST(HostParamsOrderTest, AStepComesAfterTheReadsOfAllRanksOfAHost) {
  const std::vector<int> begins = {0, 2, 3};
  const UnitTraining training =
      TrainingOf({.device = "cpu-async?max_delay=0.0002&seed=13&host=async"},
                 begins.back());
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  RunOnHosts(begins, false, [&](const std::shared_ptr<Communicator>& comm) {
    const auto engine = CreateEngine(*plan, comm, training.engine);
    ASSERT_OK(engine);
    UnitTrainer trainer(training, engine->get());
    trainer.Fill();
    trainer.Forward();
    trainer.Backward(1, true);
    const auto tensor = (*engine)->Param(0);
    ASSERT_OK(tensor);
    const auto* const values = static_cast<const float*>(tensor->data);
    std::vector<float> read;
    (*engine)->host_stream().Call("read late", [&] {
      // Time for a rank that does not wait.
      if (comm->rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
      }
      read.assign(values, values + tensor->numel);
      return Status();
    });
    StepReport report;
    ASSERT_OK(trainer.Step(&report));
    std::vector<float> initial(read.size());
    for (size_t i = 0; i < initial.size(); ++i) {
      initial[i] = InitialValue(0, static_cast<int64_t>(i));
    }
    EXPECT_EQ(read, initial) << "on rank " << comm->rank();
    EXPECT_NE(trainer.Read()[0], initial);
  });
}

// Returns the name that /proc/self/maps has for the memory at an address.
std::string NameOfMemory(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream text(line);
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char dash = 0;
    text >> std::hex >> begin >> dash >> end;
    if (at < begin || at >= end) continue;
    const size_t name = line.find_first_of("/[");
    return name == std::string::npos ? "" : line.substr(name);
  }
  return "unmapped";
}

TEST(HostParamsMemoryTest, ARankThatIsAloneTakesNoneOfItsHelper) {
  const std::vector<int> begins = {0, 2, 3};
  const UnitTraining training = TrainingOf({}, begins.back());
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  RunOnHosts(begins, true, [&](const std::shared_ptr<Communicator>& comm) {
    const auto engine = CreateEngine(*plan, comm, training.engine);
    ASSERT_OK(engine);
    const auto param = (*engine)->Param(0);
    ASSERT_OK(param);
    const std::string name = NameOfMemory(param->data);
    const bool is_helpers = name.find("libshard-net") != std::string::npos;
    EXPECT_EQ(is_helpers, comm->rank() < 2) << name;
    if (comm->rank() == 2) {
      EXPECT_EQ(name, "");
    }
  });
}

}  // namespace
}  // namespace shard::host_params_test
