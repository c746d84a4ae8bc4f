// SPDX-License-Identifier: Apache-2.0
//
// The bytes that the kernels of a step read and write, for StepReport. Computed
// on the host, from the list and the latched block. Pure.

#ifndef SHARD_CORE_ENGINE_STEP_STEP_BYTES_H_
#define SHARD_CORE_ENGINE_STEP_STEP_BYTES_H_

#include <cstdint>

#include "core/base/dtype.h"
#include "core/device/update_list.h"
#include "kernels/cpu/gradients.h"

namespace shard {

// Returns the bytes of Stream::AddToNorm.
uint64_t NormBytes(const UpdateList& list, const UpdateRange& range,
                   NormPass pass);

// Returns the bytes of Stream::Update of a step that is not skipped.
// `gradients` are those that are read; `grad_dtype` is the plan's. The bytes of
// matrix products, which mostly stay in the caches, are not counted.
uint64_t UpdateBytes(const UpdateList& list, const UpdateRange& range,
                     const StepBlock& block, const GradientSources& gradients,
                     DType grad_dtype);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_STEP_BYTES_H_
