// SPDX-License-Identifier: Apache-2.0
//
// What tensor formulas ask of a shape. A shape of 0 dimensions is that of one
// element.

#ifndef SHARD_KERNELS_FORMULA_SHAPE_H_
#define SHARD_KERNELS_FORMULA_SHAPE_H_

#include <cstdint>

namespace shard {

// 0 when any size is, however large the others are. REQUIRES: otherwise the
// product fits, as it does for any tensor in memory.
inline int64_t ShapeNumel(const int64_t* shape, int ndim) {
  int64_t numel = 1;
  for (int i = 0; i < ndim; ++i) {
    if (shape[i] == 0) return 0;
  }
  for (int i = 0; i < ndim; ++i) numel *= shape[i];
  return numel;
}

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_SHAPE_H_
