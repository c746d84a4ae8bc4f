// SPDX-License-Identifier: Apache-2.0
//
// Runs kernels of kernels/cuda, compiled for the host.

#ifndef SHARD_TESTS_KERNELS_CUDA_RUN_KERNEL_H_
#define SHARD_TESTS_KERNELS_CUDA_RUN_KERNEL_H_

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "kernels/cuda/host_kernels.h"

namespace shard::testing {

inline const cuda::HostKernel& FindKernel(std::string_view name) {
  for (const cuda::HostKernel& kernel : cuda::HostKernels()) {
    if (kernel.name == name) return kernel;
  }
  ADD_FAILURE() << "no kernel is named " << name;
  return cuda::HostKernels()[0];
}

struct Grid {
  uint32_t blocks;
  uint32_t threads;
};

// Less than a tile's work, and more warps than most tests have tiles.
inline constexpr Grid kGrids[] = {{1, 32}, {1, 96}, {3, 64}, {17, 256}};

template <class Args>
void RunKernel(std::string_view name, const Args& args, const Grid& grid) {
  const cuda::HostKernel& kernel = FindKernel(name);
  ASSERT_EQ(kernel.arg_bytes, sizeof(args));
  kernel.run(&args, grid.blocks, grid.threads);
}

// Returns whether two floats have the same bits; NaN is equal to NaN.
inline bool SameFloat(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_KERNELS_CUDA_RUN_KERNEL_H_
