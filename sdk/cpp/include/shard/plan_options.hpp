// SPDX-License-Identifier: Apache-2.0
//
// The options of plans. shard/plan.h has the meaning and the default of each
// field: 0, an empty text, list or function is the default.

#ifndef SHARD_PLAN_OPTIONS_HPP_
#define SHARD_PLAN_OPTIONS_HPP_

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "shard/arguments.hpp"
#include "shard/callback.hpp"
#include "shard/plan.h"

namespace shard {

enum class Partition : shard_partition {
  by_default = 0,
  even = SHARD_PARTITION_EVEN,
  greedy = SHARD_PARTITION_GREEDY,
  bucket = SHARD_PARTITION_BUCKET,
  manual = SHARD_PARTITION_MANUAL
};

enum class Masters : shard_masters {
  by_default = 0,
  f32 = SHARD_MASTERS_F32,
  none_nearest = SHARD_MASTERS_NONE_NEAREST,
  none_stochastic = SHARD_MASTERS_NONE_STOCHASTIC
};

// The options of shard_plan_options.
struct PlanOptions {
  std::int32_t stage = 0;
  std::int32_t world_size = 0;
  Partition partition = Partition::by_default;
  bool shard_buckets = false;
  std::int64_t bucket_bytes = 0;
  std::vector<std::int32_t> owners = {};
  std::string optimizer = {};
  bool f32_grads = false;
  Masters masters = Masters::by_default;
  std::uint64_t seed = 0;
  std::string wrap = {};
  // Returns true when a module is to be a unit. Called within Plan::create, on
  // its thread; what it throws, Plan::create throws.
  Function<bool(ModuleId module, std::int64_t nonwrapped_numel)>
      wrap_predicate = {};
  DType param_dtype = {};
  std::int32_t shard_group_size = 0;
  std::string f32_classes = {};
  std::int64_t buffer_bytes = 0;
  std::int32_t prefetch = 0;
  bool whole_grads = false;
  bool deterministic = false;
  bool keep_after_forward = false;
  bool require_sharding = false;
};

// The options of shard_placement.
struct Placement {
  std::int32_t ranks_per_host = 0;
  bool separate_memory = false;
  std::string device = {};
};

namespace detail {

// The wrap predicate during one call.
struct WrapCall {
  static std::int32_t call(std::int32_t module, std::int64_t nonwrapped_numel,
                           void* user_data) noexcept {
    auto& self = *static_cast<WrapCall*>(user_data);
    // There is no way to end the plan here: no module becomes a unit any more.
    if (self.thrown != nullptr) return 0;
    return guarded(self.model, self.thrown, std::int32_t{0}, [&] {
      return std::int32_t{self.predicate(ModuleId{module}, nonwrapped_numel)};
    });
  }

  const Function<bool(ModuleId, std::int64_t)>& predicate;
  const void* model = nullptr;
  std::exception_ptr thrown = nullptr;
};

// Returns the options of the C interface, which point into the arguments.
inline shard_plan_options to_c(const PlanOptions& options, WrapCall& wrap) {
  return {
      .struct_size = sizeof(shard_plan_options),
      .stage = options.stage,
      .world_size = options.world_size,
      .partition = static_cast<shard_partition>(options.partition),
      .shard_buckets = options.shard_buckets,
      .bucket_bytes = options.bucket_bytes,
      .owners = options.owners.data(),
      .num_owners = options.owners.size(),
      .optimizer = option(options.optimizer),
      .f32_grads = options.f32_grads,
      .masters = static_cast<shard_masters>(options.masters),
      .seed = options.seed,
      .wrap = option(options.wrap),
      .wrap_predicate = options.wrap_predicate ? &WrapCall::call : nullptr,
      .wrap_user_data = &wrap,
      .param_dtype = static_cast<shard_dtype>(options.param_dtype),
      .shard_group_size = options.shard_group_size,
      .f32_classes = option(options.f32_classes),
      .buffer_bytes = options.buffer_bytes,
      .prefetch = options.prefetch,
      .whole_grads = options.whole_grads,
      .deterministic = options.deterministic,
      .keep_after_forward = options.keep_after_forward,
      .require_sharding = options.require_sharding,
      .reserved = 0,
  };
}

inline shard_placement to_c(const Placement& placement) {
  return {
      .struct_size = sizeof(shard_placement),
      .ranks_per_host = placement.ranks_per_host,
      .separate_memory = placement.separate_memory,
      .device = option(placement.device),
  };
}

}  // namespace detail
}  // namespace shard

#endif  // SHARD_PLAN_OPTIONS_HPP_
