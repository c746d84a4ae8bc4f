// SPDX-License-Identifier: Apache-2.0
//
// The instruction sets on which this machine can run the kernels.

#ifndef SHARD_TESTS_KERNELS_CPU_TARGET_LIST_H_
#define SHARD_TESTS_KERNELS_CPU_TARGET_LIST_H_

#include <hwy/targets.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/target.h"

namespace shard {

// Returns Highway's bits of the instruction sets that the kernels were compiled
// for and the processor has, the best first. REQUIRES: no other thread calls
// kernels meanwhile.
inline std::vector<uint32_t> Targets() {
  std::vector<uint32_t> targets;
  const auto supported = static_cast<uint32_t>(hwy::SupportedTargets());
  for (uint32_t bit = 1; bit != 0; bit <<= 1) {
    // Only sets that the kernels were compiled for can be forced.
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
