// SPDX-License-Identifier: Apache-2.0
//
// The kernels of this folder as host code, for tests: they run on memory of the
// host, with the bits that they have on a GPU, but for those of a NaN.

#ifndef SHARD_KERNELS_CUDA_HOST_KERNELS_H_
#define SHARD_KERNELS_CUDA_HOST_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace shard::cuda {

struct HostKernel {
  const char* name;  // In the modules of a GPU.
  size_t arg_bytes;  // Of its only argument.
  // Runs a launch of `blocks` blocks of `threads` threads.
  void (*run)(const void* args, uint32_t blocks, uint32_t threads);
};

std::span<const HostKernel> HostKernels();

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_HOST_KERNELS_H_
