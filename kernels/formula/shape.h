// SPDX-License-Identifier: Apache-2.0
//
// Helpers of tensor formulas for shapes. A shape of 0 dimensions is that of one
// element.

#ifndef SHARD_KERNELS_FORMULA_SHAPE_H_
#define SHARD_KERNELS_FORMULA_SHAPE_H_

#include <cstdint>
#include <limits>

namespace shard {

// Returns the product of the sizes. Saturates at the greatest number; the sizes
// of a tensor that exists reach it only beside a size of 0.
inline int64_t ShapeNumel(const int64_t* shape, int ndim) {
  for (int i = 0; i < ndim; ++i) {
    if (shape[i] == 0) return 0;
  }
  int64_t numel = 1;
  for (int i = 0; i < ndim; ++i) {
    if (__builtin_mul_overflow(numel, shape[i], &numel)) {
      return std::numeric_limits<int64_t>::max();
    }
  }
  return numel;
}

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_SHAPE_H_
