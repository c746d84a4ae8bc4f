// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/traffic.h"

#include "sdk/cli/dtypes.h"
#include "sdk/cli/handles.h"

namespace shardctl {

namespace {

struct Whole {
  uint64_t params = 0;  // Trainable ones.
  uint64_t frozen = 0;
  uint64_t grads = 0;
};

Whole WholeOf(const shard_plan* plan, int32_t num_buffers) {
  Whole whole;
  for (int32_t b = 0; b < num_buffers; ++b) {
    shard_buffer_info buffer = SHARD_BUFFER_INFO_INIT;
    Check(shard_plan_buffer_info(plan, b, &buffer));
    const auto numel =
        static_cast<uint64_t>(buffer.full_numel + buffer.num_padded);
    const uint64_t params = numel * shard_dtype_size(buffer.dtype);
    (buffer.trainable != 0 ? whole.params : whole.frozen) += params;
    if (buffer.trainable == 0) continue;
    whole.grads += numel * shard_dtype_size(buffer.grad_dtype);
  }
  return whole;
}

}  // namespace

Traffic TrafficOf(const shard_plan* plan, int micro_batches) {
  shard_plan_info info = SHARD_PLAN_INFO_INIT;
  Check(shard_plan_get_info(plan, &info));
  const Whole whole = WholeOf(plan, info.num_buffers);
  Traffic traffic;
  traffic.shards_params = info.shards_params != 0;
  traffic.shards_grads = info.shards_grads != 0;

  const auto share = [](int32_t ranks) {
    return static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  };
  const int32_t world = info.world_size;
  const auto params = static_cast<double>(whole.params);
  traffic.reduce_bytes = (traffic.shards_grads ? micro_batches : 1) *
                         static_cast<double>(whole.grads) * share(world);
  if (!traffic.shards_params) {
    traffic.gather_bytes = params * share(world);
    return traffic;
  }
  const int32_t group = info.shard_group_size;
  const double gathers = info.keep_after_forward != 0 ? 1 : 2.0 * micro_batches;
  traffic.gather_bytes =
      gathers * (params + static_cast<double>(whole.frozen)) * share(group) +
      params * (share(world) - share(group));
  return traffic;
}

}  // namespace shardctl
