// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/count.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/kernel.h"

namespace shard::cuda {

SHARD_KERNEL(shard_count, CountArgs) {
  ForEachOnWarp(launch, 1, [&](uint64_t) {
    ForEachLane([&](int lane) {
      if (lane == 0) StoreShared(++*args.count, args.copy);
    });
  });
}

}  // namespace shard::cuda
