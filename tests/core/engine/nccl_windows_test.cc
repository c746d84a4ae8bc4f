// SPDX-License-Identifier: Apache-2.0
//
// Engines whose parameters and whole gradients are in windows of NCCL. The fake
// of NCCL refuses a collective whose buffers lie elsewhere in a window on
// another rank, which NCCL would read and write all the same.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_windows_test {
namespace {

using nccl_training::Form;
using nccl_training::MakePlan;
using nccl_training::RankTraining;
using testing::FakeNccl;
using testing::fake_nccl::Count;

constexpr int kMakesWindows = 23102;
constexpr int kSteps = 2;

testing::fake_cuda::Options Gpus(int count) {
  testing::fake_cuda::Options options;
  options.devices = count;
  return options;
}

struct Trained {
  std::vector<std::vector<float>> params;  // By rank.
  std::string json;                        // Of rank 0.
  MemoryReport memory;                     // Of rank 0.
};

// Trains with NCCL of a version.
Trained Train(const Form& form, int version) {
  const auto plan = MakePlan(form);
  Trained trained;
  trained.params.resize(static_cast<size_t>(form.world_size));
  RunThreadRanks(
      form.world_size,
      [&](const std::shared_ptr<Communicator>& comm) {
        RankTraining training(form, plan, comm, 20);
        ASSERT_OK(training.Create());
        ASSERT_OK(training.Fill());
        const std::vector<int32_t> units = {4, 3, 2, 1, 0};
        for (int step = 1; step <= kSteps; ++step) {
          ASSERT_OK(training.Step(step, units));
        }
        const auto params = training.Read();
        ASSERT_OK(params);
        trained.params[static_cast<size_t>(comm->rank())] = *params;
        if (comm->rank() == 0) {
          trained.json = training.engine()->ToJson();
          trained.memory = training.engine()->Memory();
        }
        ASSERT_OK(training.Meet("all have read"));
        const uint64_t windows =
            Count({.rank = comm->rank()}).Calls("ncclCommWindowRegister");
        EXPECT_EQ(windows > 0, version >= kMakesWindows);
      },
      20, "direct=0");
  return trained;
}

void ExpectSame(const Trained& got, const Trained& expected) {
  for (size_t rank = 0; rank < got.params.size(); ++rank) {
    EXPECT_FALSE(got.params[rank].empty());
    EXPECT_TRUE(got.params[rank] == expected.params[rank]) << "rank " << rank;
  }
}

bool Has(const std::string& json, const std::string& text) {
  return json.find(text) != std::string::npos;
}

std::string WindowBytes(const MemoryReport& memory) {
  return StrCat("\"window_bytes\":", memory.param_bytes + memory.grad_bytes,
                "}");
}

struct Case {
  const char* name;
  Form form;
};

class NcclWindowsTest : public ::testing::TestWithParam<Case> {};

TEST_P(NcclWindowsTest, HaveTheBitsOfPlainMemory) {
  const Form form = GetParam().form;
  Trained plain;
  {
    const FakeNccl fake(Gpus(form.world_size));
    plain = Train(form, 22809);
  }
  const FakeNccl fake(Gpus(form.world_size), {.version = kMakesWindows});
  const Trained windows = Train(form, kMakesWindows);
  ExpectSame(windows, plain);
  // Sums of sharded gradients are no memory that collectives share.
  MemoryReport shared = windows.memory;
  if (form.stage > 1 && !form.whole_grads) shared.grad_bytes = 0;
  EXPECT_TRUE(Has(windows.json, WindowBytes(shared))) << windows.json;
  EXPECT_FALSE(Has(plain.json, "window_bytes")) << plain.json;
}

INSTANTIATE_TEST_SUITE_P(
    Forms, NcclWindowsTest,
    ::testing::Values(
        Case{"stage0", {.stage = 0}}, Case{"stage1", {}},
        Case{"deterministic", {.deterministic = true}},
        Case{"groups", {.world_size = 4, .stage = 3, .shard_group_size = 2}},
        Case{"stage2", {.stage = 2}}, Case{"stage3", {.stage = 3}},
        Case{"stage2_whole_grads", {.stage = 2, .whole_grads = true}},
        Case{"stage3_whole_grads", {.stage = 3, .whole_grads = true}}),
    [](const auto& info) { return std::string(info.param.name); });

// Where NCCL fails for one rank, the engines of all are made without windows.
TEST(NcclWindowsTest, AnEngineIsMadeWithoutThem) {
  const Form form;
  Trained plain;
  {
    const FakeNccl fake(Gpus(form.world_size));
    plain = Train(form, 22809);
  }
  const FakeNccl fake(Gpus(form.world_size), {.version = kMakesWindows});
  testing::fake_nccl::FailCall("ncclCommWindowRegister", 2,
                               testing::fake_nccl::Result::kUnhandledCudaError,
                               {.rank = 1}, "Cuda failure 2 'out of memory'");
  const Trained other = Train(form, kMakesWindows);
  ExpectSame(other, plain);
  EXPECT_TRUE(
      Has(other.json, R"("no_windows":"rank 1: ncclCommWindowRegister: )"))
      << other.json;
  EXPECT_FALSE(Has(other.json, "\"registered_bytes\":0")) << other.json;
  EXPECT_EQ(Count().Calls("ncclCommInitRankConfig"), 2u * 3u);
}

// An error of a window would end an engine that goes on without.
TEST(NcclWindowsTest, AChangedPlanHasNone) {
  const FakeNccl fake(Gpus(3), {.version = kMakesWindows});
  const Form form;
  const auto plan = MakePlan(form);
  RunThreadRanks(
      3,
      [&](const std::shared_ptr<Communicator>& comm) {
        RankTraining training(form, plan, comm, 20);
        ASSERT_OK(training.Create());
        ASSERT_OK(training.Fill());
        const testing::fake_nccl::Target me = {.rank = comm->rank()};
        EXPECT_EQ(Count(me).Calls("ncclCommWindowRegister"), 2u);
        ASSERT_OK(
            training.engine()->SetTrainable(std::vector{ParamId{1}}, false, 0));
        EXPECT_EQ(Count(me).Calls("ncclCommWindowRegister"), 2u);
        EXPECT_EQ(Count(me).Calls("ncclCommWindowDeregister"), 2u);
        const std::string json = training.engine()->ToJson();
        EXPECT_FALSE(Has(json, "window")) << json;
        ASSERT_OK(training.Meet("all have changed"));
      },
      20, "direct=0");
}

}  // namespace
}  // namespace shard::nccl_windows_test
