// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/device.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/square_sums.h"
#include "kernels/cuda/update_tensors.h"

namespace shard::cuda {

SHARD_KERNEL(shard_sum_squares, UpdateTensorsArgs) {
  if (args.block->drops_updates()) return;
  ForEachOnWarp(launch, args.squares.num_groups, [&](uint64_t group) {
    SumGroup(args, static_cast<uint32_t>(group));
  });
}

}  // namespace shard::cuda
