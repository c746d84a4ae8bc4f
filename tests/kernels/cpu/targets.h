// SPDX-License-Identifier: Apache-2.0
//
// Tests that run once with each instruction set that this machine and the
// kernels have:
//
//   class MyTest : public EachTargetTest {};
//   TEST_P(MyTest, ...)
//   INSTANTIATE_TEST_SUITE_P(AllTargets, MyTest,
//                            testing::ValuesIn(KernelTargets()), TargetName);
//
// One thread: the instruction set is the process's.

#ifndef SHARD_TESTS_KERNELS_CPU_TARGETS_H_
#define SHARD_TESTS_KERNELS_CPU_TARGETS_H_

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/fused_step.h"

namespace shard {

class EachTargetTest : public testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

inline std::vector<uint32_t> KernelTargets() {
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

inline std::string TargetName(const testing::TestParamInfo<uint32_t>& info) {
  return hwy::TargetName(static_cast<int>(info.param));
}

}  // namespace shard

#endif  // SHARD_TESTS_KERNELS_CPU_TARGETS_H_
