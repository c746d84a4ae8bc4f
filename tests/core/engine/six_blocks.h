// SPDX-License-Identifier: Apache-2.0
//
// A small model that stages 2 and 3 shard, in units of one depth.

#ifndef SHARD_TESTS_CORE_ENGINE_SIX_BLOCKS_H_
#define SHARD_TESTS_CORE_ENGINE_SIX_BLOCKS_H_

#include <memory>

#include "core/base/strings.h"
#include "core/model/model.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/unit_training.h"

namespace shard {

// Returns a training of a root with one parameter of 10 elements and of six
// blocks, 'b0' to 'b5', each a unit of two pages with a weight and a bias. The
// root is unit 0, 'b0' unit 1, and so on.
inline UnitTraining SixBlocks() {
  UnitTraining training;
  training.model = std::make_shared<Model>("Root");
  EXPECT_OK(training.model->AddParam(kRootModule, "base", DType::kF32, {10}));
  for (int b = 0; b < 6; ++b) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("b", b), "Block");
    EXPECT_OK(training.model->AddParam(block, "weight", DType::kF32, {1100}));
    EXPECT_OK(training.model->AddParam(block, "bias", DType::kF32, {3}));
  }
  training.wrap = "class?names=Block";
  return training;
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_SIX_BLOCKS_H_
