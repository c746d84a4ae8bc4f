// SPDX-License-Identifier: Apache-2.0

#include "core/engine/state/import_state.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/base/dtype.h"
#include "core/base/element_type.h"
#include "core/base/strings.h"
#include "core/device/stream_guard.h"
#include "kernels/formula/narrow_states.h"

namespace shard {

namespace {

// Returns whether the state holds squares, whose root is taken.
bool IsSquare(const Optimizer& optimizer, size_t state) {
  const StateKind* kinds = NarrowStateKinds(optimizer.formula());
  return kinds != nullptr && state < optimizer.state_names().size() &&
         kinds[state] != StateKind::kAverage;
}

Status CheckValues(const float* values, size_t count, bool square) {
  for (size_t i = 0; i < count; ++i) {
    if (std::isfinite(values[i]) && !(square && values[i] < 0)) continue;
    return InvalidArgument(
        "element ", i, " is ", values[i], "; allowed: ",
        square ? "finite numbers, at least 0" : "finite numbers");
  }
  return Status();
}

}  // namespace

StatusOr<size_t> FindState(const FlatBufferPlan& plan, std::string_view name) {
  std::string known;
  for (size_t s = 0; s < plan.states.size(); ++s) {
    if (plan.states[s].tensor.name == name) return s;
    StrAppend(&known, known.empty() ? "" : ", ", plan.states[s].tensor.name);
  }
  return NotFound("the parameter has no state '", name, "'; it has ",
                  known.empty() ? "none" : known);
}

Status ImportState(const EngineBuffer& buffer, const Optimizer& optimizer,
                   int range, const ParamPlace& place, size_t state,
                   const float* values, size_t count, HostAccess* access,
                   Stream* stream, const Deadline& deadline) {
  const FlatBufferPlan& plan = *buffer.plan;
  const std::string& name = plan.states[state].tensor.name;
  const FlatLayout& layout = plan.StateLayout(state);
  // Layouts of states list the parameters in the same order.
  const Slot& slot = layout.slots()[plan.layout.SlotAt(place.offset)];
  if (static_cast<size_t>(slot.numel) != count) {
    return InvalidArgument("state '", name, "' has ", slot.numel,
                           " elements, not ", count);
  }
  SHARD_RETURN_IF_ERROR(CheckValues(values, count, IsSquare(optimizer, state))
                            .WithContext(StrCat("state '", name, "'")));

  // Elements of the state in this rank's range. Blocks of 256 begin with their
  // parameter, and ranges are whole blocks.
  const int64_t range_begin = range * layout.shard_numel();
  const int64_t begin = std::max(slot.offset, range_begin);
  const int64_t end =
      std::min(slot.offset + slot.numel, range_begin + layout.shard_numel());
  if (begin >= end) return Status();
  const auto numel = static_cast<size_t>(end - begin);
  DeviceMemory copy;
  const StreamGuard guard(stream);
  SHARD_ASSIGN_OR_RETURN(
      const void* const given,
      access->ForKernels(values + (begin - slot.offset), numel * sizeof(float),
                         &copy, deadline));
  const auto* const from = static_cast<const float*>(given);
  const auto at = static_cast<size_t>(begin - range_begin);
  const DType dtype = plan.states[state].tensor.dtype;
  unsigned char* const data = buffer.states[state] + at * DTypeSize(dtype);
  if (IsQuantized(dtype)) {
    unsigned char* const scales = buffer.states[state] + layout.shard_numel();
    stream->EncodeQ8(
        NarrowStateKinds(optimizer.formula())[state], from, numel, nullptr, 0,
        data,
        reinterpret_cast<float*>(scales) + at / static_cast<size_t>(kQ8Block));
  } else {
    stream->Narrow(dtype, from, data, numel, nullptr);
  }
  return stream->Synchronize(deadline);
}

}  // namespace shard
