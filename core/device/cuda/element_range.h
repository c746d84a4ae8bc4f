// SPDX-License-Identifier: Apache-2.0
//
// ElementRange from UpdateList: the argument of the CUDA kernels that update
// elements, without the block of the step.

#ifndef SHARD_CORE_DEVICE_CUDA_ELEMENT_RANGE_H_
#define SHARD_CORE_DEVICE_CUDA_ELEMENT_RANGE_H_

#include <vector>

#include "core/device/update_list.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cuda/update_elements.h"

namespace shard::cuda {

// Returns the slices of a range, as the kernels find their tiles by them.
// REQUIRES: an element formula; fewer than 2^32 tiles.
std::vector<ElementSlice> ElementSlices(const UpdateList& list,
                                        const UpdateRange& range);

// Returns the range. `slices` is where the device has the slices of
// ElementSlices. `gradients` are those that the step reads
// (UpdateList::GradientsOf, or what the host gave instead); its list of
// pointers lies where the device reads it.
ElementRange ElementRangeOf(const UpdateRange& range,
                            const std::vector<ElementSlice>& made,
                            const ElementSlice* slices,
                            const GradientSources& gradients);

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_ELEMENT_RANGE_H_
