// SPDX-License-Identifier: Apache-2.0
//
// Compares the memory that the kernel reports for two real ranks with the
// plan's prediction.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "core/optim/groups.h"
#include "tests/ranks/ranks.h"

namespace shard {
namespace {

constexpr int kWorldSize = 2;

StatusOr<std::shared_ptr<const Plan>> MakePlan(Partition partition) {
  auto model = std::make_shared<Model>("Test");
  // 12 M elements are large enough that the rest of the process is noise.
  for (int i = 0; i < 12; ++i) {
    SHARD_RETURN_IF_ERROR(
        model->AddParam(kRootModule, StrCat("p", i), DType::kF32, {1000, 1000})
            .status());
  }
  SHARD_RETURN_IF_ERROR(model->SetTrainable(3, false));
  PlanOptions options;
  options.world_size = kWorldSize;
  options.partition = partition;
  SHARD_ASSIGN_OR_RETURN(options.groups, PlanGroups(*model, "adamw"));
  return Plan::Create(std::move(model), options);
}

// Returns this process's proportional set size. It counts shared pages in
// parts, so that the sum over ranks is the memory that the machine spends.
double PssBytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  while (file >> word) {
    double kilobytes = 0;
    if (word == "Pss:" && file >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

class MemoryTest : public ::testing::TestWithParam<Partition> {};

TEST_P(MemoryTest, RealUseIsWithinOnePercentOfThePlan) {
  const auto plan = MakePlan(GetParam());
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const std::string url = "shm:" + testing::UniqueName();
  const auto results =
      testing::RunRanks(kWorldSize, [&](const testing::Rank& rank) {
        const CommOptions options = {.rank = rank.rank(),
                                     .world_size = kWorldSize};
        const auto comm = OpenCommunicator(url, options);
        ASSERT_TRUE(comm.ok()) << comm.status().ToString();
        const Deadline deadline = Deadline::After(60);
        const double before = PssBytes();
        ASSERT_GT(before, 0);
        ASSERT_TRUE((*comm)->Barrier("measured before", deadline).ok());

        auto engine = Engine::Create(*plan, *comm);
        ASSERT_TRUE(engine.ok()) << engine.status().ToString();
        ASSERT_TRUE((*engine)->BroadcastParams(60).ok());
        // A training rank reads every parameter and writes every gradient.
        double sum = 0;
        for (const EngineBuffer& buffer : (*engine)->memory().buffers()) {
          const int64_t numel = buffer.plan->layout.padded_numel();
          const auto* params = static_cast<const float*>(buffer.ParamAt(0));
          for (int64_t i = 0; i < numel; ++i) {
            sum += static_cast<double>(params[i]);
            if (!buffer.grads.empty()) {
              static_cast<float*>(buffer.GradAt(rank.rank(), 0))[i] = 1;
            }
          }
        }
        EXPECT_EQ(sum, 0);
        StepReport report;
        ASSERT_TRUE((*engine)->Step(StepOptions(), &report).ok());
        ASSERT_TRUE((*comm)->Barrier("all in use", deadline).ok());
        rank.Report(StrCat(PssBytes() - before));
        ASSERT_TRUE((*comm)->Barrier("measured", deadline).ok());
      });
  testing::ExpectAllPassed(results);
  double measured = 0;
  for (const auto& result : results) measured += std::stod(result.report);
  const auto predicted =
      static_cast<double>((*plan)->Memory(true).HostTotal(kWorldSize, true));
  EXPECT_NEAR(measured / predicted, 1.0, 0.01)
      << "measured " << measured << ", predicted " << predicted;
}

INSTANTIATE_TEST_SUITE_P(Partitions, MemoryTest,
                         ::testing::Values(Partition::kEven,
                                           Partition::kGreedy));

}  // namespace
}  // namespace shard
