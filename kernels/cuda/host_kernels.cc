// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/host_kernels.h"

#include "kernels/cuda/update_elements.cu"

namespace shard::cuda {

std::span<const HostKernel> HostKernels() {
  static constexpr HostKernel kKernels[] = {
#define SHARD_HOST_KERNEL(Name) \
  {"shard_update_" #Name, sizeof(UpdateElementsArgs), shard_update_##Name},
      SHARD_ELEMENT_FORMULAS(SHARD_HOST_KERNEL)
#undef SHARD_HOST_KERNEL
  };
  return kKernels;
}

}  // namespace shard::cuda
