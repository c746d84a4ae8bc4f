// SPDX-License-Identifier: Apache-2.0
//
// The kernels of this folder as host code, for tests: they run on memory of the
// host.

#ifndef SHARD_SAMPLES_GPT_CUDA_HOST_KERNELS_H_
#define SHARD_SAMPLES_GPT_CUDA_HOST_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpt_cuda {

struct host_kernel {
  const char* name;  // In the module of a GPU.
  std::size_t arg_bytes;
  // Runs a launch of `blocks` blocks of `threads` threads.
  void (*run)(const void* args, std::uint32_t blocks, std::uint32_t threads);
};

std::span<const host_kernel> host_kernels();

}  // namespace gpt_cuda

#endif  // SHARD_SAMPLES_GPT_CUDA_HOST_KERNELS_H_
