// SPDX-License-Identifier: Apache-2.0
//
// HostMath: the roots of the computations between the passes of a tensor
// formula, on the host. Kernels of a GPU give the same computations a struct of
// their own.

#ifndef SHARD_KERNELS_FORMULA_HOST_MATH_H_
#define SHARD_KERNELS_FORMULA_HOST_MATH_H_

#include <cmath>

namespace shard {

struct HostMath {
  double Sqrt(double x) const { return std::sqrt(x); }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_HOST_MATH_H_
