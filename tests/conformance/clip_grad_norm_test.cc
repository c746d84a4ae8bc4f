// SPDX-License-Identifier: Apache-2.0
//
// Compares clipping with the results of torch.nn.utils.clip_grad_norm_, through
// the engine: at 1 to 4 ranks, with parameters cut evenly or owned whole, on
// every instruction set of this machine.

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/optim/groups.h"
#include "kernels/cpu/target.h"
#include "tests/conformance/golden.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/thread_ranks.h"

namespace shard::clip_grad_norm_test {
namespace {

using nlohmann::json;

// Plans plain SGD with lr 1: from parameters of 0 it goes to minus the clipped
// gradient.
StatusOr<std::shared_ptr<const Plan>> MakePlan(
    const std::vector<std::vector<float>>& grads, Partition partition,
    int world_size) {
  auto model = std::make_shared<Model>();
  for (const auto& grad : grads) {
    SHARD_RETURN_IF_ERROR(
        model
            ->AddParam(kRootModule, StrCat("p", model->params().size()),
                       DType::kF32, {static_cast<int64_t>(grad.size())})
            .status());
  }
  PlanOptions options;
  options.world_size = world_size;
  options.partition = partition;
  options.alignment_bytes = 4;
  SHARD_ASSIGN_OR_RETURN(options.groups, PlanGroups(*model, "sgd?lr=1"));
  return Plan::Create(model, options);
}

void RunCase(const json& golden, Partition partition, int world_size) {
  const auto grads = golden.at("grads").get<std::vector<std::vector<float>>>();
  const auto clipped =
      golden.at("clipped").get<std::vector<std::vector<double>>>();
  StepOptions options;
  options.max_grad_norm = golden.at("max_norm");
  const json& type = golden.at("norm_type");
  options.grad_norm_type = type.is_string()
                               ? std::numeric_limits<double>::infinity()
                               : type.get<double>();
  SCOPED_TRACE(StrCat("norm ", options.grad_norm_type, ", max ",
                      options.max_grad_norm, ", ", world_size, " ranks, ",
                      partition == Partition::kEven ? "even, " : "greedy, ",
                      KernelTargetName()));
  const auto plan = MakePlan(grads, partition, world_size);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  RunThreadRanks(world_size, [&](const std::shared_ptr<Communicator>& comm) {
    auto made = CreateEngine(*plan, comm, EngineOptions());
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    Engine& engine = **made;
    ASSERT_TRUE(engine.BroadcastParams(0).ok());
    for (size_t p = 0; p < grads.size(); ++p) {
      std::copy(grads[p].begin(), grads[p].end(),
                FloatsOf(*engine.Grad(static_cast<ParamId>(p))));
    }
    StepReport report;
    const Status stepped = engine.Step(options, &report);
    ASSERT_TRUE(stepped.ok()) << stepped.ToString();
    // torch accumulates in fp32.
    const double total = golden.at("total_norm");
    EXPECT_NEAR(report.grad_norm, total, 2e-6 * total);
    for (size_t p = 0; p < clipped.size(); ++p) {
      const float* param = FloatsOf(*engine.Param(static_cast<ParamId>(p)));
      for (size_t i = 0; i < clipped[p].size(); ++i) {
        EXPECT_NEAR(static_cast<double>(-param[i]), clipped[p][i],
                    2e-7 + 2e-6 * std::abs(clipped[p][i]))
            << "parameter " << p << ", element " << i;
      }
    }
  });
}

TEST(ClipGradNormTest, MatchesTorch) {
  const json document = LoadGolden("clip_grad_norm.json");
  const json cases = document.value("cases", json::array());
  std::set<std::string> types;
  // As in optimizers_test.
  const auto supported =
      static_cast<uint32_t>(hwy::SupportedTargets() & HWY_TARGETS);
  for (const json& golden : cases) {
    types.insert(golden.at("norm_type").dump());
    for (uint32_t bit = 1; bit != 0; bit <<= 1) {
      if ((supported & bit) == 0) continue;
      if ((TestsAreOn("guarded") || TestsAreOn("tcp") ||
           testing::TestsAreOnGpu()) &&
          bit != (supported & -supported)) {
        continue;
      }
      hwy::SetSupportedTargetsForTest(bit);
      for (int world_size = 1; world_size <= 4; ++world_size) {
        RunCase(golden, Partition::kEven, world_size);
        RunCase(golden, Partition::kGreedy, world_size);
      }
    }
    hwy::SetSupportedTargetsForTest(0);
  }
  EXPECT_EQ(cases.size(), 12u);
  EXPECT_EQ(types.size(), 4u);
}

}  // namespace
}  // namespace shard::clip_grad_norm_test
