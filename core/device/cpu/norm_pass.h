// SPDX-License-Identifier: Apache-2.0
//
// Stream::AddToNorm: computes the sum over the sources and its norm tile by
// tile, so that the sum is read again from the L1 cache.
//
// Bytes per element, W sources: W times their size; and 4 where the sum is
// kept. Thread-safe; ranges and sums must differ.

#ifndef SHARD_CORE_DEVICE_CPU_NORM_PASS_H_
#define SHARD_CORE_DEVICE_CPU_NORM_PASS_H_

#include <cstddef>

#include "core/device/step_block.h"
#include "core/device/update_list.h"

namespace shard::cpu {

void AddToNorm(const UpdateList& list, size_t range, NormPass pass,
               const StepBlock& block, NormSum* sum);

// Stream::FinishNorm.
void FinishNorm(NormPass pass, const NormSum* sums, size_t count,
                StepBlock* block);

}  // namespace shard::cpu

#endif  // SHARD_CORE_DEVICE_CPU_NORM_PASS_H_
