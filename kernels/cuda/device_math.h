// SPDX-License-Identifier: Apache-2.0
//
// DeviceMath: the functions of doubles that the computations of the host and of
// kernels are given.

#ifndef SHARD_KERNELS_CUDA_DEVICE_MATH_H_
#define SHARD_KERNELS_CUDA_DEVICE_MATH_H_

#include "kernels/cuda/device.h"
#include "kernels/cuda/power.h"

namespace shard::cuda {

struct DeviceMath {
  SHARD_DEVICE double Sqrt(double x) const { return cuda::Sqrt(x); }
  SHARD_DEVICE double Power(double x, double y) const {
    return cuda::Power(x, y);
  }
};

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_DEVICE_MATH_H_
