// SPDX-License-Identifier: Apache-2.0

#include "core/flat/plan.h"

#include <memory>
#include <string>
#include <utility>

#include "api/error.h"
#include "api/handles.h"
#include "api/memory.h"
#include "api/options.h"
#include "api/text.h"
#include "core/optim/groups.h"

namespace {

using shard::InvalidArgument;
using shard::Partition;
using shard::PlanOptions;
using shard::Status;
using shard::api::Guard;

shard::StatusOr<PlanOptions> ToPlanOptions(const shard::Model& model,
                                           const shard_plan_options* given) {
  shard_plan_options read;
  SHARD_RETURN_IF_ERROR(
      shard::api::ReadOptions("shard_plan_options", given, &read));
  if (read.partition < 0 || read.partition > SHARD_PARTITION_MANUAL) {
    return InvalidArgument("partition ", read.partition,
                           " is unknown; known: 1 (even), 2 (greedy), "
                           "3 (bucket), 4 (manual)");
  }
  if (read.shard_buckets != 0 && read.shard_buckets != 1) {
    return InvalidArgument("shard_buckets is ", read.shard_buckets,
                           "; allowed: 0 or 1");
  }
  if (read.bucket_bytes < 0) {
    return InvalidArgument("bucket_bytes ", read.bucket_bytes, " is negative");
  }
  if (read.owners_len > 0 && read.owners == nullptr) {
    return InvalidArgument("owners is NULL but owners_len is ",
                           read.owners_len);
  }
  if (read.f32_grads != 0 && read.f32_grads != 1) {
    return InvalidArgument("f32_grads is ", read.f32_grads,
                           "; allowed: 0 or 1");
  }

  PlanOptions options;
  options.stage = read.stage;
  options.world_size = read.world_size;
  if (read.partition != 0) {
    options.partition = static_cast<Partition>(read.partition);
  }
  options.manual_owners.assign(read.owners, read.owners + read.owners_len);
  if (read.bucket_bytes != 0) options.bucket_bytes = read.bucket_bytes;
  options.shard_buckets = read.shard_buckets == 1;
  options.f32_grads = read.f32_grads == 1;
  if (read.masters != 0) {
    options.masters = static_cast<shard::Masters>(read.masters);
  }
  options.seed = read.seed;
  SHARD_ASSIGN_OR_RETURN(
      options.groups,
      shard::PlanGroups(model,
                        read.optimizer == nullptr ? "" : read.optimizer));
  return options;
}

}  // namespace

extern "C" {

shard_error* shard_plan_create(const shard_model* model,
                               const shard_plan_options* options,
                               shard_plan** plan) noexcept {
  if (plan != nullptr) *plan = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(model);
    SHARD_API_REQUIRE(plan);
    SHARD_ASSIGN_OR_RETURN(PlanOptions read,
                           ToPlanOptions(model->model, options));
    SHARD_ASSIGN_OR_RETURN(
        auto made,
        shard::Plan::Create(std::make_shared<const shard::Model>(model->model),
                            std::move(read)));
    *plan = new shard_plan{std::move(made)};
    return Status();
  });
}

uint64_t shard_plan_fingerprint(const shard_plan* plan) noexcept {
  return plan == nullptr ? 0 : plan->plan->fingerprint();
}

int32_t shard_plan_num_groups(const shard_plan* plan) noexcept {
  if (plan == nullptr) return 0;
  return static_cast<int32_t>(plan->plan->options().groups.size());
}

shard_error* shard_plan_memory(const shard_plan* plan,
                               shard_memory* memory) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(memory);
    return shard::api::WriteMemory([&] { return plan->plan->Memory(true); },
                                   memory);
  });
}

shard_error* shard_plan_text(const shard_plan* plan, char* buffer,
                             size_t capacity, size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    return shard::api::CopyText(plan->plan->ToText(), buffer, capacity, length);
  });
}

shard_error* shard_plan_json(const shard_plan* plan, char* buffer,
                             size_t capacity, size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    return shard::api::CopyText(plan->plan->ToJson(), buffer, capacity, length);
  });
}

void shard_plan_free(shard_plan* plan) noexcept { delete plan; }

}  // extern "C"
