// SPDX-License-Identifier: Apache-2.0

#include "core/plan_file/plan_file.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "api/error.h"
#include "api/handles.h"

using shard::Status;
using shard::api::Guard;

extern "C" {

shard_error* shard_plan_encode(const shard_plan* plan, void* buffer,
                               size_t capacity, size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(length);
    if (capacity > 0) SHARD_API_REQUIRE(buffer);
    SHARD_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                           shard::EncodePlan(*plan->plan));
    std::copy_n(bytes.begin(), std::min(capacity, bytes.size()),
                static_cast<std::byte*>(buffer));
    *length = bytes.size();
    return Status();
  });
}

shard_error* shard_plan_decode(const void* bytes, size_t length,
                               shard_plan** plan) noexcept {
  if (plan != nullptr) *plan = nullptr;
  return Guard([&]() -> Status {
    if (length > 0) SHARD_API_REQUIRE(bytes);
    SHARD_API_REQUIRE(plan);
    SHARD_ASSIGN_OR_RETURN(auto decoded,
                           shard::DecodePlan(std::span(
                               static_cast<const std::byte*>(bytes), length)));
    *plan = new shard_plan{std::move(decoded)};
    return Status();
  });
}

}  // extern "C"
