// SPDX-License-Identifier: Apache-2.0
//
// Training as one rank, which opens its communicator by a URL: for ranks that
// are processes, and for tests of how they meet.

#ifndef SHARD_TESTS_CORE_ENGINE_RANK_TRAINING_H_
#define SHARD_TESTS_CORE_ENGINE_RANK_TRAINING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/training.h"
#include "tests/core/flat/sharding.h"

namespace shard {

// The parameters of SmallTraining, one after the other.
constexpr size_t kSmallElements = 40 * 30 + 77;

inline Training SmallTraining(int world_size, int stage = 1,
                              const std::string& optimizer = "adamw") {
  Training training;
  training.model = ModelOf({{40, 30}, {77}});
  training.optimizer = optimizer;
  training.plan.world_size = world_size;
  training.plan.stage = stage;
  training.all_ranks = true;
  return training;
}

// Trains, and writes the parameters of this rank to `params`, one after the
// other. All are of f32.
inline void TrainRank(const Training& training, const std::string& url,
                      const CommOptions& options, float* params) {
  const auto comm = OpenCommunicator(url, options);
  ASSERT_OK(comm);
  PlanOptions plan_options = training.plan;
  auto groups = PlanGroups(*training.model, training.optimizer);
  ASSERT_OK(groups);
  plan_options.groups = *std::move(groups);
  const auto plan = Plan::Create(training.model, plan_options);
  ASSERT_OK(plan);
  ASSERT_TRUE(ShardsAsItsStage(**plan));
  {
    const auto engine = Engine::Create(*plan, *comm, training.engine);
    ASSERT_OK(engine);
    const size_t count = training.model->params().size();
    for (size_t p = 0; p < count; ++p) {
      const std::vector<float> values = InitialValues(training, p);
      ASSERT_OK((*engine)->SetParam(static_cast<ParamId>(p), values.data(),
                                    values.size() * sizeof(float)));
    }
    ASSERT_OK((*engine)->BroadcastParams(0));
    for (int step = 1; step <= training.steps; ++step) {
      for (size_t p = 0; p < count; ++p) {
        const auto grad = (*engine)->Grad(static_cast<ParamId>(p));
        ASSERT_OK(grad);
        Store(DType::kF32, GradientValues(training, options.rank, step, p),
              grad->data);
      }
      ASSERT_OK((*engine)->Step(training.step, nullptr));
      ASSERT_OK((*engine)->ZeroGrad());
    }
    for (size_t p = 0; p < count; ++p) {
      const auto tensor = (*engine)->Param(static_cast<ParamId>(p));
      ASSERT_OK(tensor);
      params = std::copy_n(static_cast<const float*>(tensor->data),
                           tensor->numel, params);
    }
  }
  ASSERT_OK((*comm)->Shutdown(Deadline::After(20)));
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_RANK_TRAINING_H_
