// SPDX-License-Identifier: Apache-2.0
//
// Helpers for plans that really shard in stages 2 and 3. Tensors that would
// take no less memory when sharded are kept whole, so a test with a small model
// may in fact run stage 1.

#ifndef SHARD_TESTS_API_SHARDED_PLANS_H_
#define SHARD_TESTS_API_SHARDED_PLANS_H_

#include <cstdint>
#include <string>

#include "tests/api/api_testing.h"

namespace shard_api_testing {

// Adds eight modules with one parameter of 1100 elements each. As units, they
// are enough for stages 2 and 3 to shard.
inline void AddBlocks(shard_model* model) {
  constexpr int64_t kNumel = 1100;
  for (int b = 0; b < 8; ++b) {
    int32_t module = 0;
    int32_t param = 0;
    EXPECT_OK(shard_model_add_module(
        model, 0, ("block" + std::to_string(b)).c_str(), "Block", &module));
    EXPECT_OK(shard_model_add_param(model, module, "weight", SHARD_F32, &kNumel,
                                    1, &param));
  }
}

// Expects a plan of several ranks to shard gradients from stage 2 on, and
// parameters in stage 3.
inline void ExpectShardsAsItsStage(const Plan& plan) {
  const shard_plan_info info = InfoOf(plan);
  EXPECT_EQ(info.shards_grads, info.stage >= 2 ? 1 : 0);
  EXPECT_EQ(info.shards_params, info.stage == 3 ? 1 : 0);
}

}  // namespace shard_api_testing

#endif  // SHARD_TESTS_API_SHARDED_PLANS_H_
