// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic: the arithmetic A over which formulas are written
// (kernels/formula/all.h), on one float of a lane. The same bits as
// VectorArithmetic of kernels/cpu on processors with a fused multiply-add, but
// for the bits of a NaN.

#ifndef SHARD_KERNELS_CUDA_ARITHMETIC_H_
#define SHARD_KERNELS_CUDA_ARITHMETIC_H_

#include "kernels/cuda/device.h"

namespace shard::cuda {

struct Arithmetic {
  using V = float;

  SHARD_DEVICE V Set(double x) const { return static_cast<float>(x); }
  SHARD_DEVICE V Add(V x, V y) const { return x + y; }
  SHARD_DEVICE V Sub(V x, V y) const { return x - y; }
  SHARD_DEVICE V Mul(V x, V y) const { return x * y; }
  SHARD_DEVICE V Div(V x, V y) const { return cuda::Div(x, y); }
  SHARD_DEVICE V MulAdd(V x, V y, V z) const { return cuda::MulAdd(x, y, z); }
  SHARD_DEVICE V Sqrt(V x) const { return cuda::Sqrt(x); }
  // The comparisons give y where y is NaN.
  SHARD_DEVICE V Max(V x, V y) const { return x != x ? x : (x > y ? x : y); }
  SHARD_DEVICE V Min(V x, V y) const { return x != x ? x : (x < y ? x : y); }
  SHARD_DEVICE V IfPositive(V x, V yes, V no) const {
    return x > 0.0f ? yes : no;
  }
};

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_ARITHMETIC_H_
