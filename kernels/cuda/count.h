// SPDX-License-Identifier: Apache-2.0
//
// The argument of shard_count, which adds 1 to a word of the device, and stores
// it in a word that may be the host's. Useful warps: 1.

#ifndef SHARD_KERNELS_CUDA_COUNT_H_
#define SHARD_KERNELS_CUDA_COUNT_H_

#include <cstdint>
#include <type_traits>

namespace shard::cuda {

struct CountArgs {
  uint32_t* count;
  uint32_t* copy;
};
static_assert(std::is_trivially_copyable_v<CountArgs>);

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_COUNT_H_
