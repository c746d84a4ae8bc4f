// SPDX-License-Identifier: Apache-2.0
//
// A sum of blocks (block_sum.h) that is made in parts: the blocks so far are a
// sum in fp32, to which the next ones are added. It has the bits of a sum that
// is made at once, for elements are added in the same order, and none is
// rounded between the parts.
//
// Bytes per element, n blocks: n times their size, 4 that are read, and 4 that
// are written.
//
// Thread-safe; disjoint results may be computed at once. Pointers need no
// alignment beyond their type's.

#ifndef SHARD_KERNELS_CPU_PARTIAL_SUM_H_
#define SHARD_KERNELS_CPU_PARTIAL_SUM_H_

#include <cstddef>

#include "core/base/dtype.h"

namespace shard {

// Sets `out` to the f32 sum so far plus the blocks of `dtype`, added one after
// the other in their order. Null `sum`: there is none so far. `zeros`: there
// are others, of zeros. `out` overlaps nothing that is added. REQUIRES: dtype
// is f32, bf16 or f16; `sum` is not null, or there are blocks.
void ContinueSum(const float* sum, const void* const* sources,
                 size_t num_sources, bool zeros, DType dtype, size_t count,
                 float* out);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_PARTIAL_SUM_H_
