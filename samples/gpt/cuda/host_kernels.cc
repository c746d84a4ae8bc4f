// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/cuda/host_kernels.h"

#include "samples/gpt/cuda/kernels.cu"

namespace gpt_cuda {

std::span<const host_kernel> host_kernels() {
#define GPT_HOST_KERNEL(name) \
  {"gpt_" #name, sizeof(gpt_##name##_args), gpt_##name},
  static constexpr host_kernel kKernels[] = {GPT_KERNELS(GPT_HOST_KERNEL)};
#undef GPT_HOST_KERNEL
  return kKernels;
}

}  // namespace gpt_cuda
