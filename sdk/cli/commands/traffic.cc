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
  // In memory: each buffer in whole pages.
  uint64_t param_pages = 0;
  uint64_t grad_pages = 0;
};

uint64_t RoundUpToPage(uint64_t bytes) {
  constexpr uint64_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

Whole WholeOf(const shard_plan* plan) {
  Whole whole;
  for (int32_t b = 0; b < shard_plan_num_buffers(plan); ++b) {
    shard_buffer_info buffer = SHARD_BUFFER_INFO_INIT;
    Check(shard_plan_buffer_info(plan, b, &buffer));
    const auto numel =
        static_cast<uint64_t>(buffer.full_numel + buffer.num_padded);
    const uint64_t params = numel * shard_dtype_size(buffer.dtype);
    (buffer.trainable != 0 ? whole.params : whole.frozen) += params;
    whole.param_pages += RoundUpToPage(params);
    if (buffer.trainable == 0) continue;
    const uint64_t grads = numel * shard_dtype_size(buffer.grad_dtype);
    whole.grads += grads;
    whole.grad_pages += RoundUpToPage(grads);
  }
  return whole;
}

}  // namespace

Traffic TrafficOf(const shard_plan* plan, const shard_plan_options& options,
                  int micro_batches) {
  shard_memory memory = SHARD_MEMORY_INIT;
  Check(shard_plan_memory_unshared(plan, &memory));
  const Whole whole = WholeOf(plan);
  Traffic traffic;
  // A plan shards only where that makes the memory smaller.
  traffic.shards_params =
      options.stage == 3 && memory.param_bytes < whole.param_pages;
  traffic.shards_grads =
      options.stage >= 2 && memory.grad_bytes < whole.grad_pages;

  const auto share = [](int32_t ranks) {
    return static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  };
  const int32_t world = options.world_size;
  const auto params = static_cast<double>(whole.params);
  traffic.reduce_bytes = (traffic.shards_grads ? micro_batches : 1) *
                         static_cast<double>(whole.grads) * share(world);
  if (!traffic.shards_params) {
    traffic.gather_bytes = params * share(world);
    return traffic;
  }
  const int32_t group =
      options.shard_group_size > 0 ? options.shard_group_size : world;
  const double gathers =
      options.keep_after_forward != 0 ? 1 : 2.0 * micro_batches;
  traffic.gather_bytes =
      gathers * (params + static_cast<double>(whole.frozen)) * share(group) +
      params * (share(world) - share(group));
  return traffic;
}

}  // namespace shardctl
