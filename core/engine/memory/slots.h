// SPDX-License-Identifier: Apache-2.0
//
// Which unit has which of the plan's slots (SlotPlan). Pure bookkeeping: what
// it decides depends on the order of calls alone, never on timing, so that
// ranks that make the same calls gather the same units at the same time.
//
// Thread-compatible.

#ifndef SHARD_CORE_ENGINE_MEMORY_SLOTS_H_
#define SHARD_CORE_ENGINE_MEMORY_SLOTS_H_

#include <cstdint>
#include <vector>

#include "core/device/event.h"
#include "core/flat/plan.h"

namespace shard {

class Slots {
 public:
  // `slots` by depth.
  Slots(const Plan& plan, const std::vector<SlotPlan>& slots);

  // The slot that holds what belongs to `unit`; -1: none does.
  int Find(int32_t unit) const;

  // A slot for `unit` at its depth, of those that are not in use: one that
  // holds nothing before others, and the one that was taken least recently
  // before others like it. -1: all are in use. Does not take it.
  int Choose(int32_t unit) const;

  // `slot` holds `unit` from here on, and is in use until Release; the unit it
  // held before has none.
  void Take(int32_t unit, int slot);
  // It keeps what it holds until someone takes it.
  void Release(int32_t unit);
  // It holds nothing any more.
  void Drop(int32_t unit);
  // All that are not in use.
  void DropAll();

  // When what is being done with the slot is done. REQUIRES: Find(unit) >= 0
  // for the second.
  const Event& event(int32_t depth, int slot) const {
    return at(depth, slot).event;
  }
  void SetEvent(int32_t unit, Event event);

  // The units that are in use at the depth of `unit`, for errors.
  std::vector<int32_t> UsersBeside(int32_t unit) const;

 private:
  struct Entry {
    int32_t unit = -1;
    bool in_use = false;
    uint64_t used = 0;  // When: a count of uses.
    Event event;
  };
  int32_t DepthOf(int32_t unit) const {
    return plan_.units()[static_cast<size_t>(unit)].depth;
  }
  const Entry& at(int32_t depth, int slot) const {
    return entries_[static_cast<size_t>(depth)][static_cast<size_t>(slot)];
  }
  Entry& at(int32_t depth, int slot) {
    return entries_[static_cast<size_t>(depth)][static_cast<size_t>(slot)];
  }

  const Plan& plan_;
  std::vector<std::vector<Entry>> entries_;  // By depth.
  uint64_t uses_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_MEMORY_SLOTS_H_
