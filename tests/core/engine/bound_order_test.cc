// SPDX-License-Identifier: Apache-2.0
//
// The order of copies to and from tensors that the host bound, and of the
// host's own work, which on an accelerator are streams: see async_host.h.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/core/base/expect_status.h"
#include "tests/core/engine/async_host.h"

namespace shard::bound_order_test {
namespace {

class BoundOrderTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Links, BoundOrderTest,
                         ::testing::Values("", "direct=0"),
                         [](const auto& info) {
                           return info.index == 0 ? "direct" : "apart";
                         });

// The host writes its gradients again as soon as they are declared.
TEST_P(BoundOrderTest, BoundGradientsAreCopiedBeforeTheHostsNextWrites) {
  for (const int stage : {1, 2}) {
    ExpectOrder(RunOf(stage, GetParam()), [&](AsyncHost* host) {
      // Whole gradients that ranks see are copied in the step.
      const bool copied = stage == 2 || !host->engine().SharesTensors();
      host->BindAll();
      for (int step = 1; step <= 2; ++step) {
        ASSERT_OK(host->engine().ZeroGrad());
        host->Backward([&](int32_t unit) {
          const std::vector<ParamId> params = host->ParamsOf(unit);
          std::vector<Engine::Tensor> grads;
          for (const ParamId param : params) {
            const auto grad = host->engine().Grad(param);
            ASSERT_OK(grad);
            grads.push_back(*grad);
            host->AddGrad(param, step);
          }
          ASSERT_OK(host->engine().MarkUnitGradsReady(unit));
          if (!copied) return;
          for (const Engine::Tensor& grad : grads) host->Fill(grad, kSpoiled);
        });
        host->Step();
      }
      host->ReadAll();
    });
  }
}

TEST_P(BoundOrderTest, ABoundTensorIsFilledBetweenTheHostsWritesAndReads) {
  ExpectOrder(RunOf(1, GetParam()), [](AsyncHost* host) {
    for (ParamId param = 0; param < host->num_params(); ++param) {
      const auto tensor = host->engine().Param(param);
      ASSERT_OK(tensor);
      auto& values = host->memory().values.emplace_back(tensor->numel);
      const std::span<float> bound(values);
      host->Do([bound] { std::ranges::fill(bound, kSpoiled); });
      ASSERT_OK(
          host->engine().Bind(param, {std::as_writable_bytes(bound), {}}));
      host->ReadBoundValuesAtOnce(param);
    }
  });
}

// Memory that is bound no more is the host's thread's.
TEST_P(BoundOrderTest, MemoryIsUnboundAfterItsCopies) {
  ExpectOrder(RunOf(1, GetParam()), [](AsyncHost* host) {
    host->BindAll();
    host->AddAllGrads(1);
    host->Step();
    // From the one that is copied last.
    for (ParamId param = host->num_params(); param-- > 0;) {
      ASSERT_OK(host->engine().Bind(param, {}));
      host->memory().reads.push_back(
          host->memory().values[static_cast<size_t>(param)]);
    }
  });
}

TEST(BoundValuesOrderTest, ParametersOnTheirWayAreCopiedAfterTheyHaveCome) {
  HostRun run = RunOf(1, "direct=0&delay=0.005");
  run.training.engine.overlap = true;
  ExpectOrder(run, [](AsyncHost* host) {
    host->Backward(1);
    host->Step();
    host->BindAll();
    for (ParamId param = 0; param < host->num_params(); ++param) {
      host->ReadBoundValues(param);
    }
  });
}

// With overlap, bound values are the old ones until their unit is acquired.
TEST(BoundValuesOrderTest, ValuesAreCopiedBetweenTheHostsReads) {
  for (const bool overlap : {false, true}) {
    HostRun run = RunOf(1, "direct=0");
    run.training.engine.overlap = overlap;
    ExpectOrder(run, [](AsyncHost* host) {
      host->BindAll();
      for (int step = 1; step <= 2; ++step) {
        ASSERT_OK(host->engine().ZeroGrad());
        host->Backward(step);
        host->Step();
        // From the one that is copied last.
        for (ParamId param = host->num_params(); param-- > 0;) {
          host->ReadBoundValuesAtOnce(param);
        }
        for (int32_t unit = 0; unit < host->num_units(); ++unit) {
          const std::vector<ParamId> params = host->ParamsOf(unit);
          for (const ParamId param : params) host->ReadBoundValues(param);
          ASSERT_OK(host->engine().UnitAcquire(unit, Pass::kForward, 0));
          for (const ParamId param : params) host->ReadBoundValues(param);
          ASSERT_OK(host->engine().UnitRelease(unit));
        }
      }
    });
  }
}

}  // namespace
}  // namespace shard::bound_order_test
