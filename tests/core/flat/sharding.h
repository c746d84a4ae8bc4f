// SPDX-License-Identifier: Apache-2.0
//
// Checks that a plan shards the tensors of its stage. A plan keeps tensors
// whole that would take no less memory when sharded, so a test of stage 2 or 3
// with a small model may in fact run stage 1.

#ifndef SHARD_TESTS_CORE_FLAT_SHARDING_H_
#define SHARD_TESTS_CORE_FLAT_SHARDING_H_

#include <gtest/gtest.h>

#include "core/flat/plan.h"

namespace shard {

// Succeeds when the plan shards gradients from stage 2 on, parameters in stage
// 3, and nothing else. Options that change this are taken into account, and one
// rank shards nothing.
inline ::testing::AssertionResult ShardsAsItsStage(const Plan& plan) {
  const PlanOptions& options = plan.options();
  const bool ranks = options.world_size > 1;
  const bool grads = ranks && options.stage >= 2 && !options.whole_grads;
  const bool params = ranks && options.stage == 3 &&
                      options.shard_group_size != 1 &&
                      !options.keep_after_forward;
  if (plan.shards_grads() == grads && plan.shards_params() == params) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "gradients are " << (plan.shards_grads() ? "sharded" : "whole")
         << ", parameters are " << (plan.shards_params() ? "sharded" : "whole")
         << ": " << plan.Summary();
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_FLAT_SHARDING_H_
