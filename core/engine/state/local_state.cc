// SPDX-License-Identifier: Apache-2.0

#include "core/engine/state/local_state.h"

#include "core/base/element_type.h"
#include "kernels/formula/narrow_states.h"

namespace shard {

std::byte* LocalData(const Plan& plan, const EngineMemory& memory,
                     const StateEntry& entry, const OwnedElements& owned,
                     int rank) {
  if (entry.is_host_tensor()) return memory.HostTensor(entry.host_tensor);
  const ParamPlace& place = plan.place(entry.param);
  const EngineBuffer& buffer = memory.buffer(place.buffer);
  if (entry.is_param()) {
    const int64_t range =
        plan.RangeOf(rank) * buffer.plan->layout.shard_numel();
    return static_cast<std::byte*>(buffer.ParamAt(range + owned.offset));
  }
  const auto state = static_cast<size_t>(entry.state);
  auto* const data = reinterpret_cast<std::byte*>(buffer.states[state]);
  // Scales lie behind the codes of the range.
  const int64_t codes =
      entry.scales ? buffer.plan->StateLayout(state).shard_numel() : 0;
  return data + codes + EntryBytes(entry, owned.offset);
}

int32_t CodebookOf(const Plan& plan, const std::vector<Optimizer>& optimizers,
                   const StateEntry& entry) {
  if (!IsQuantized(entry.type)) return 0;
  const GroupId group =
      plan.model().params()[static_cast<size_t>(entry.param)].group;
  const Optimizer& optimizer = optimizers[static_cast<size_t>(group)];
  return static_cast<int32_t>(
      NarrowStateKinds(optimizer.formula())[entry.state]);
}

}  // namespace shard
