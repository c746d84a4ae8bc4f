// SPDX-License-Identifier: Apache-2.0
//
// The instruction sets that the kernels can be made to run on here.

#ifndef SHARD_TESTS_KERNELS_CPU_TARGET_LIST_H_
#define SHARD_TESTS_KERNELS_CPU_TARGET_LIST_H_

#include <hwy/targets.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/target.h"

namespace shard {

// Highway's bits of those that the kernels were compiled for and the processor
// has, the best first. Calls of kernels in other threads go wrong meanwhile.
inline std::vector<uint32_t> Targets() {
  std::vector<uint32_t> targets;
  const auto supported = static_cast<uint32_t>(hwy::SupportedTargets());
  for (uint32_t bit = 1; bit != 0; bit <<= 1) {
    // Only what the kernels were compiled for can be forced.
    hwy::SetSupportedTargetsForTest(bit);
    if ((supported & bit) != 0 && std::string(KernelTargetName()) ==
                                      hwy::TargetName(static_cast<int>(bit))) {
      targets.push_back(bit);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  return targets;
}

}  // namespace shard

#endif  // SHARD_TESTS_KERNELS_CPU_TARGET_LIST_H_
