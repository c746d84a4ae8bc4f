// SPDX-License-Identifier: Apache-2.0
//
// The sum of a block over the ranks of a set: in the order of ranks and in
// fp32, rounded once, to nearest, to the dtype of the result. So its bits
// depend neither on who moves the blocks nor on the number of elements.
//
// Bytes per element, n blocks: n times their size, and the result's, which is
// read too where it is added to.
//
// Thread-safe; disjoint results may be computed at once. Pointers need no
// alignment beyond their type's.

#ifndef SHARD_KERNELS_CPU_BLOCK_SUM_H_
#define SHARD_KERNELS_CPU_BLOCK_SUM_H_

#include <cstddef>

#include "core/base/dtype.h"

namespace shard {

// The blocks that one rank sums. Dtypes are f32, bf16 or f16.
struct BlockSum {
  // Blocks of `count` elements: this rank's, which is number `own_index` of
  // `ranks`, or null, which stands for zeros; and those of the others, in their
  // order and without gaps.
  const void* own = nullptr;
  int own_index = 0;
  const void* peers = nullptr;
  int ranks = 1;
  DType dtype = DType::kF32;
  size_t count = 0;
  // `own`, with dtypes that are equal, or memory that overlaps no block.
  void* recv = nullptr;
  DType recv_dtype = DType::kF32;
  bool add = false;  // The sum is added to the old value of `recv`.
};

void SumBlocks(const BlockSum& sum);

// Does the same with the blocks that there are, in their order. `zeros`: there
// are others, of zeros.
void SumSources(const void* const* sources, size_t num_sources, bool zeros,
                DType dtype, size_t count, void* recv, DType recv_dtype,
                bool add);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_BLOCK_SUM_H_
