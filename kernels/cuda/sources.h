// SPDX-License-Identifier: Apache-2.0
//
// Sources: the gradients that a kernel sums. The first kInlineSources pointers
// are in the kernel's argument, which the driver copies at the launch; the
// others are in memory of the device.

#ifndef SHARD_KERNELS_CUDA_SOURCES_H_
#define SHARD_KERNELS_CUDA_SOURCES_H_

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"
#include "kernels/cuda/device.h"

namespace shard::cuda {

inline constexpr uint32_t kInlineSources = 32;

struct Sources {
  uint32_t count;
  DType dtype;
  const void* const* table;  // All pointers; read from kInlineSources on.
  const void* pointers[kInlineSources];

  SHARD_DEVICE const void* operator[](uint32_t w) const {
    // Two branches instead of one would take a register more than the updates
    // have.
    const void* found = pointers[w % kInlineSources];
    if (w >= kInlineSources) found = table[w];
    return found;
  }
};

// Returns the sources of a list in memory of the host. `table` is where the
// device has the same list; null for at most kInlineSources.
inline Sources SourcesOf(const void* const* data, size_t count, DType dtype,
                         const void* const* table) {
  Sources made = {};
  made.count = static_cast<uint32_t>(count);
  made.dtype = dtype;
  made.table = table;
  for (size_t w = 0; w < count && w < kInlineSources; ++w) {
    made.pointers[w] = data[w];
  }
  return made;
}

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_SOURCES_H_
