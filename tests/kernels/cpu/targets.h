// SPDX-License-Identifier: Apache-2.0
//
// TargetsTest: a fixture that runs its tests on each instruction set of this
// machine, one by one.

#ifndef SHARD_TESTS_KERNELS_CPU_TARGETS_H_
#define SHARD_TESTS_KERNELS_CPU_TARGETS_H_

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <string>

#include "kernels/cpu/target.h"
#include "tests/kernels/cpu/target_list.h"

namespace shard {

class TargetsTest : public testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

// Expects `result()` to return the same on all instruction sets.
template <class Result>
void ExpectSameOnAllTargets(const Result& result) {
  hwy::SetSupportedTargetsForTest(Targets().front());
  const auto expected = result();
  for (const uint32_t target : Targets()) {
    hwy::SetSupportedTargetsForTest(target);
    EXPECT_EQ(result(), expected) << KernelTargetName();
  }
  hwy::SetSupportedTargetsForTest(0);
}

#define SHARD_ON_ALL_TARGETS(Fixture)                                      \
  INSTANTIATE_TEST_SUITE_P(                                                \
      AllTargets, Fixture, testing::ValuesIn(Targets()),                   \
      [](const auto& info) {                                               \
        return std::string(hwy::TargetName(static_cast<int>(info.param))); \
      })

}  // namespace shard

#endif  // SHARD_TESTS_KERNELS_CPU_TARGETS_H_
