// SPDX-License-Identifier: Apache-2.0
//
// Tests that run on each instruction set this machine has, one by one:
//
//   class StepTest : public TargetTest {};
//   TEST_P(StepTest, Something) { ... }
//   INSTANTIATE_TEST_SUITE_P(AllTargets, StepTest,
//                            testing::ValuesIn(Targets()), TargetNameOf);
//
// hwy/highway.h is not included, so that formulas are the plain ones.

#ifndef SHARD_TESTS_KERNELS_CPU_TARGETS_H_
#define SHARD_TESTS_KERNELS_CPU_TARGETS_H_

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/fused_step.h"

namespace shard {

class TargetTest : public testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

inline std::vector<uint32_t> Targets() {
  std::vector<uint32_t> targets;
  const auto supported = static_cast<uint32_t>(hwy::SupportedTargets());
  for (uint32_t bit = 1; bit != 0; bit <<= 1) {
    // Only what the kernel was compiled for can be forced.
    hwy::SetSupportedTargetsForTest(bit);
    if ((supported & bit) != 0 && std::string(KernelTargetName()) ==
                                      hwy::TargetName(static_cast<int>(bit))) {
      targets.push_back(bit);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  return targets;
}

inline std::string TargetNameOf(const testing::TestParamInfo<uint32_t>& info) {
  return hwy::TargetName(static_cast<int>(info.param));
}

}  // namespace shard

#endif  // SHARD_TESTS_KERNELS_CPU_TARGETS_H_
