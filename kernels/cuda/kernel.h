// SPDX-License-Identifier: Apache-2.0
//
// SHARD_KERNEL(name, Args) { body }: a kernel whose only argument is an Args.
// Its body sees `args` and `launch`. For nvcc it is a kernel that modules know
// by its name; for the host a HostKernel's run (host_kernels.h).

#ifndef SHARD_KERNELS_CUDA_KERNEL_H_
#define SHARD_KERNELS_CUDA_KERNEL_H_

#include <cstdint>

#include "kernels/cuda/device.h"

namespace shard::cuda {

// The most threads of a block.
inline constexpr int kMaxThreads = 256;
// The blocks that a multiprocessor must have room for: so many registers per
// thread that none is spilled, and enough loads on their way with two.
inline constexpr int kMinBlocks = 2;

#ifdef __CUDACC__
#define SHARD_KERNEL(name, Args)                                           \
  static SHARD_DEVICE void name##_body(const Args& args,                   \
                                       const Launch& launch);              \
  extern "C" __global__ void __launch_bounds__(::shard::cuda::kMaxThreads, \
                                               ::shard::cuda::kMinBlocks)  \
      name(const __grid_constant__ Args args) {                            \
    name##_body(args, Launch());                                           \
  }                                                                        \
  static SHARD_DEVICE void name##_body(const Args& args,                   \
                                       [[maybe_unused]] const Launch& launch)
#else
#define SHARD_KERNEL(name, Args)                                          \
  static void name##_body(const Args& args, const Launch& launch);        \
  static void name(const void* args, uint32_t blocks, uint32_t threads) { \
    name##_body(*static_cast<const Args*>(args), {blocks, threads});      \
  }                                                                       \
  static void name##_body(const Args& args,                               \
                          [[maybe_unused]] const Launch& launch)
#endif

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_KERNEL_H_
