// SPDX-License-Identifier: Apache-2.0
//
// The options of a plan that ranks must agree on, in one list: the fingerprint
// hashes the list and a plan's facts name its entries, so that no option is
// hashed without a name.

#ifndef SHARD_CORE_FLAT_PLAN_FIELDS_H_
#define SHARD_CORE_FLAT_PLAN_FIELDS_H_

#include <cstdint>

#include "core/flat/plan.h"

namespace shard {

// Part of every fingerprint. Raise it when the same inputs would be laid out,
// or hashed, differently.
inline constexpr uint32_t kLayoutVersion = 5;

// Calls `visit(name, value)` for each option but the groups. The bytes of
// `value` are hashed, so its type is part of the fingerprint. wrap, f32_classes
// and manual_owners are left out: the units, dtypes and places that follow from
// them are compared instead. So is require_sharding, which changes no plan.
template <typename Visit>
void VisitAgreedOptions(const PlanOptions& options, const Visit& visit) {
  visit("layout version", kLayoutVersion);
  visit("stage", static_cast<int32_t>(options.stage));
  visit("world_size", static_cast<int32_t>(options.world_size));
  visit("partition", options.partition);
  visit("bucket_bytes", options.bucket_bytes);
  visit("shard_buckets", static_cast<int32_t>(options.shard_buckets));
  visit("buffer_bytes", options.buffer_bytes);
  visit("param_dtype", options.param_dtype);
  visit("shard_group_size", static_cast<int32_t>(options.shard_group_size));
  visit("prefetch", static_cast<int32_t>(options.prefetch));
  visit("whole_grads", static_cast<int32_t>(options.whole_grads));
  visit("keep_after_forward", static_cast<int32_t>(options.keep_after_forward));
  visit("deterministic", static_cast<int32_t>(options.deterministic));
  visit("alignment_bytes", options.alignment_bytes);
  visit("f32_grads", static_cast<int32_t>(options.f32_grads));
  visit("masters", options.masters);
  visit("seed", options.seed);
}

}  // namespace shard

#endif  // SHARD_CORE_FLAT_PLAN_FIELDS_H_
