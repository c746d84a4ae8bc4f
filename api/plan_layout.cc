// SPDX-License-Identifier: Apache-2.0
//
// The layout of a plan: parameters, flat buffers, the ranges of ranks.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "api/error.h"
#include "api/handles.h"
#include "api/options.h"
#include "api/plan_ids.h"
#include "core/base/dtype.h"
#include "core/flat/layout.h"
#include "core/flat/plan.h"

namespace {

using shard::FlatBufferPlan;
using shard::InvalidArgument;
using shard::Plan;
using shard::SlotSlice;
using shard::Status;
using shard::api::CheckId;
using shard::api::CheckStored;
using shard::api::Guard;

// REQUIRES: an id that was checked, here and below.
const FlatBufferPlan& BufferAt(const Plan& plan, int32_t buffer) {
  return plan.buffer(buffer);
}

shard_param_info InfoOf(const shard_plan& handle, int32_t param) {
  const Plan& plan = *handle.plan;
  const auto index = static_cast<size_t>(param);
  const shard::ParamPlace& place = plan.place(param);
  const shard::Model::Param& declared = plan.model().params()[index];
  shard_param_info info = SHARD_PARAM_INFO_INIT;
  info.begin = place.offset;
  info.numel = declared.numel;
  std::copy(declared.shape.begin(), declared.shape.end(), info.shape);
  info.ndim = static_cast<int32_t>(declared.shape.size());
  info.dtype = static_cast<int32_t>(declared.dtype);
  info.trainable = declared.trainable ? 1 : 0;
  info.group = declared.group;
  info.unit = plan.UnitOf(param);
  info.buffer = place.buffer;
  info.num_names =
      static_cast<int32_t>(handle.directory().NamesOf(param).size());
  const bool owned = declared.numel > 0;  // Nobody owns nothing.
  const int64_t last = info.begin + info.numel - 1;
  info.first_rank = owned ? plan.OwnerOf(place.buffer, info.begin) : -1;
  info.last_rank = owned ? plan.OwnerOf(place.buffer, last) : -1;
  return info;
}

shard_buffer_info InfoOf(const FlatBufferPlan& buffer) {
  shard_buffer_info info = SHARD_BUFFER_INFO_INIT;
  info.full_numel = buffer.layout.numel();
  info.num_padded = buffer.layout.padded_numel() - buffer.layout.numel();
  info.shard_numel = buffer.layout.shard_numel();
  info.num_params = static_cast<int32_t>(buffer.layout.slots().size());
  info.unit = buffer.unit;
  info.dtype = static_cast<int32_t>(buffer.dtype);
  info.trainable = buffer.trainable ? 1 : 0;
  info.group = buffer.trainable ? buffer.group : -1;
  info.grad_dtype =
      buffer.trainable ? static_cast<int32_t>(buffer.grad_dtype) : 0;
  return info;
}

shard_slice ToC(const SlotSlice& slice) {
  shard_slice c = SHARD_SLICE_INIT;
  c.begin = slice.flat_begin;
  c.numel = slice.numel;
  c.param_begin = slice.param_begin;
  c.param = slice.param;
  return c;
}

// Writes slices into the first `capacity` structs of the host's. The structs
// are as far apart as the first one's struct_size says.
Status WriteSlices(const std::vector<SlotSlice>& slices, shard_slice* out,
                   size_t capacity) {
  if (capacity == 0) return Status();
  SHARD_RETURN_IF_ERROR(
      shard::api::CheckStructSize("shard_slice", out->struct_size));
  const size_t size = out->struct_size;
  auto* at = reinterpret_cast<unsigned char*>(out);
  for (size_t i = 0; i < std::min(capacity, slices.size()); ++i, at += size) {
    auto* slice = reinterpret_cast<shard_slice*>(at);
    slice->struct_size = size;
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_slice", slice));
    shard::api::WriteResult(ToC(slices[i]), slice);
  }
  return Status();
}

}  // namespace

extern "C" {

shard_error* shard_plan_param_info(const shard_plan* plan, int32_t param,
                                   shard_param_info* info) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(info);
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_param_info", info));
    SHARD_API_REQUIRE(plan);
    SHARD_RETURN_IF_ERROR(CheckStored(*plan->plan, param));
    shard::api::WriteResult(InfoOf(*plan, param), info);
    return Status();
  });
}

shard_error* shard_plan_buffer_info(const shard_plan* plan, int32_t buffer,
                                    shard_buffer_info* info) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(info);
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_buffer_info", info));
    SHARD_API_REQUIRE(plan);
    SHARD_RETURN_IF_ERROR(
        CheckId("buffer", buffer, plan->plan->buffers().size()));
    shard::api::WriteResult(InfoOf(BufferAt(*plan->plan, buffer)), info);
    return Status();
  });
}

shard_error* shard_plan_buffer_param(const shard_plan* plan, int32_t buffer,
                                     int32_t index, int32_t* param) noexcept {
  if (param != nullptr) *param = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(param);
    SHARD_RETURN_IF_ERROR(
        CheckId("buffer", buffer, plan->plan->buffers().size()));
    const auto slots = BufferAt(*plan->plan, buffer).layout.slots();
    if (index < 0 || static_cast<size_t>(index) >= slots.size()) {
      return InvalidArgument("index ", index, " is outside buffer ", buffer,
                             ", which has ", slots.size(), " parameters");
    }
    *param = slots[static_cast<size_t>(index)].param;
    return Status();
  });
}

shard_error* shard_plan_rank_range(const shard_plan* plan, int32_t buffer,
                                   int32_t rank, shard_range* range) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(range);
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_range", range));
    SHARD_API_REQUIRE(plan);
    SHARD_RETURN_IF_ERROR(
        CheckId("buffer", buffer, plan->plan->buffers().size()));
    const shard::FlatLayout& layout = BufferAt(*plan->plan, buffer).layout;
    if (rank < 0 || rank >= layout.world_size()) {
      return InvalidArgument("rank ", rank, " is outside the world size ",
                             layout.world_size());
    }
    const int place = plan->plan->RangeOf(rank);
    shard_range out = SHARD_RANGE_INIT;
    out.begin = place * layout.shard_numel();
    out.numel = layout.shard_numel();
    out.num_padded = layout.PaddingOf(place);
    shard::api::WriteResult(out, range);
    return Status();
  });
}

shard_error* shard_plan_slices(const shard_plan* plan, int32_t buffer,
                               int64_t begin, int64_t numel,
                               shard_slice* slices, size_t capacity,
                               size_t* count) noexcept {
  if (count != nullptr) *count = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(count);
    if (capacity > 0) SHARD_API_REQUIRE(slices);
    SHARD_RETURN_IF_ERROR(
        CheckId("buffer", buffer, plan->plan->buffers().size()));
    if (begin < 0 || numel < 0) {
      return InvalidArgument("begin ", begin, " and numel ", numel,
                             " are no range of elements: both are at least 0");
    }
    // The range is cut at the buffer's end: begin + numel might overflow.
    const shard::FlatLayout& layout = BufferAt(*plan->plan, buffer).layout;
    const int64_t from = std::min(begin, layout.padded_numel());
    const auto found = layout.Slices(
        from, from + std::min(numel, layout.padded_numel() - from));
    SHARD_RETURN_IF_ERROR(WriteSlices(found, slices, capacity));
    *count = found.size();
    return Status();
  });
}

shard_error* shard_plan_param_view(const shard_plan* plan, int32_t param,
                                   void* data, int64_t numel,
                                   void** view) noexcept {
  if (view != nullptr) *view = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(plan);
    SHARD_API_REQUIRE(data);
    SHARD_API_REQUIRE(view);
    SHARD_RETURN_IF_ERROR(CheckStored(*plan->plan, param));
    const shard::ParamPlace& place = plan->plan->place(param);
    const FlatBufferPlan& buffer = BufferAt(*plan->plan, place.buffer);
    SHARD_RETURN_IF_ERROR(buffer.layout.CheckStorage(numel));
    *view = static_cast<unsigned char*>(data) +
            shard::DTypeBytes(buffer.dtype, place.offset);
    return Status();
  });
}

}  // extern "C"
