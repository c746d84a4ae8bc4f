// SPDX-License-Identifier: Apache-2.0

#include "core/flat/plan.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "api/error.h"
#include "api/handles.h"
#include "api/memory.h"
#include "api/options.h"
#include "core/optim/optimizer.h"

namespace {

using shard::InvalidArgument;
using shard::Partition;
using shard::PlanOptions;
using shard::Status;
using shard::api::Guard;

shard::StatusOr<PlanOptions> ToPlanOptions(const shard_plan_options* given) {
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
  SHARD_ASSIGN_OR_RETURN(
      const auto optimizer,
      shard::Optimizer::Parse(read.optimizer == nullptr ? "" : read.optimizer));

  PlanOptions options;
  options.stage = read.stage;
  options.world_size = read.world_size;
  if (read.partition != 0) {
    options.partition = static_cast<Partition>(read.partition);
  }
  options.manual_owners.assign(read.owners, read.owners + read.owners_len);
  if (read.bucket_bytes != 0) options.bucket_bytes = read.bucket_bytes;
  options.shard_buckets = read.shard_buckets == 1;
  options.optimizer = optimizer.ToString();
  for (const std::string& name : optimizer.state_names()) {
    options.states.push_back({name, shard::DType::kF32});
  }
  return options;
}

// The ABI's way to hand out a text of any length.
Status CopyText(const std::string& text, char* buffer, size_t capacity,
                size_t* length) {
  SHARD_API_REQUIRE(length);
  if (capacity > 0) {
    SHARD_API_REQUIRE(buffer);
    const size_t copied = std::min(text.size(), capacity - 1);
    std::memcpy(buffer, text.data(), copied);
    buffer[copied] = '\0';
  }
  *length = text.size();
  return Status();
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
    SHARD_ASSIGN_OR_RETURN(PlanOptions read, ToPlanOptions(options));
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

shard_error* shard_plan_memory(const shard_plan* plan,
                               shard_memory* memory) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(memory);
    return shard::api::WriteMemory([&] { return plan->plan->Memory(); },
                                   memory);
  });
}

shard_error* shard_plan_text(const shard_plan* plan, char* buffer,
                             size_t capacity, size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    return CopyText(plan->plan->ToText(), buffer, capacity, length);
  });
}

shard_error* shard_plan_json(const shard_plan* plan, char* buffer,
                             size_t capacity, size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    return CopyText(plan->plan->ToJson(), buffer, capacity, length);
  });
}

void shard_plan_free(shard_plan* plan) noexcept { delete plan; }

}  // extern "C"
