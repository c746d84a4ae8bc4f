// SPDX-License-Identifier: Apache-2.0
//
// ElementRange from UpdateList: the argument of the CUDA kernels that update a
// range, without the block of the step.

#ifndef SHARD_CORE_DEVICE_CUDA_ELEMENT_RANGE_H_
#define SHARD_CORE_DEVICE_CUDA_ELEMENT_RANGE_H_

#include <vector>

#include "core/device/update_list.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cuda/update_elements.h"

namespace shard::cuda {

// Returns the slices of a range, as the kernels find their tiles by them.
// REQUIRES: fewer than 2^32 tiles.
std::vector<ElementSlice> ElementSlices(const UpdateList& list,
                                        const UpdateRange& range);

// Returns a range of the list, with the gradients of the list. `slices` is
// where the device has the slices of ElementSlices, and `sources` where it has
// UpdateList::sources; both are null where nothing is read there.
ElementRange ElementRangeOf(const UpdateList& list, const UpdateRange& range,
                            const std::vector<ElementSlice>& made,
                            const ElementSlice* slices,
                            const void* const* sources);

// Returns the number of a range's tiles, or a few more: by slices there may be
// more of them.
uint64_t TilesOf(const ElementRange& range);

// Makes the kernel read other gradients, whether or not a norm pass has run.
// `table` is where the device has their list of pointers; null for at most
// kInlineSources.
void ReadGradients(const GradientSources& gradients, const void* const* table,
                   ElementRange* range);

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_ELEMENT_RANGE_H_
