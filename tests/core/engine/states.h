// SPDX-License-Identifier: Apache-2.0
//
// A rank's optimizer states, for tests to compare: all states as bytes, and
// those in fp32 by parameter.

#ifndef SHARD_TESTS_CORE_ENGINE_STATES_H_
#define SHARD_TESTS_CORE_ENGINE_STATES_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/engine/engine.h"
#include "core/flat/plan.h"
#include "tests/core/device/guard_memory.h"

namespace shard {

// Returns this rank's part of every state of every trainable buffer, master
// weights included, with padding.
inline std::vector<std::vector<unsigned char>> StateBytes(
    const Engine& engine) {
  std::vector<std::vector<unsigned char>> all;
  for (const EngineBuffer& buffer : engine.memory().buffers()) {
    for (size_t s = 0; s < buffer.states.size(); ++s) {
      const size_t bytes =
          DTypeBytes(buffer.plan->states[s].tensor.dtype,
                     buffer.plan->StateLayout(s).shard_numel());
      const unsigned char* const data = testing::KernelView(buffer.states[s]);
      all.emplace_back(data, data + bytes);
    }
  }
  return all;
}

// The elements of an fp32 state that this rank keeps, by ParamId. A rank writes
// only its own elements, so ranks that are threads fill one object together.
using StateValues = std::vector<std::vector<float>>;

// Returns values with room for all elements.
inline StateValues MakeStateValues(const Plan& plan, std::string_view name) {
  StateValues values(plan.model().params().size());
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    for (size_t s = 0; s < buffer.states.size(); ++s) {
      if (buffer.states[s].tensor.name != name) continue;
      for (const Slot& slot : buffer.StateLayout(s).slots()) {
        values[static_cast<size_t>(slot.param)].resize(
            static_cast<size_t>(slot.numel));
      }
    }
  }
  return values;
}

inline void CopyState(const Engine& engine, std::string_view name,
                      StateValues* values) {
  const int rank = engine.plan().RangeOf(engine.comm()->rank());
  for (const EngineBuffer& buffer : engine.memory().buffers()) {
    for (size_t s = 0; s < buffer.states.size(); ++s) {
      if (buffer.plan->states[s].tensor.name != name) continue;
      const FlatLayout& layout = buffer.plan->StateLayout(s);
      const auto* const data =
          testing::KernelView(reinterpret_cast<const float*>(buffer.states[s]));
      for (const SlotSlice& slice : layout.SlicesOf(rank)) {
        for (int64_t i = 0; i < slice.numel; ++i) {
          (*values)[static_cast<size_t>(slice.param)]
                   [static_cast<size_t>(slice.param_begin + i)] =
                       data[slice.flat_begin - rank * layout.shard_numel() + i];
        }
      }
    }
  }
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_STATES_H_
