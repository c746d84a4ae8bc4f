// SPDX-License-Identifier: Apache-2.0
//
// Slots: assigns the plan's slots (SlotPlan) to units. Pure bookkeeping: the
// assignment depends on the order of calls alone, never on timing, so that
// ranks that make the same calls gather the same units at the same time.
//
// Thread-compatible.

#ifndef SHARD_CORE_ENGINE_MEMORY_SLOTS_H_
#define SHARD_CORE_ENGINE_MEMORY_SLOTS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/device/event.h"
#include "core/flat/plan.h"

namespace shard {

class Slots {
 public:
  // `slots` by depth.
  Slots(const Plan& plan, const std::vector<SlotPlan>& slots);

  // Returns the slot that holds the data of `unit`, or -1 where none does.
  int Find(int32_t unit) const;

  // Returns a slot at the depth of `unit` that is not in use and holds no unit
  // of `keep`, or -1 where there is none. An empty slot comes before others,
  // and among equal ones the slot that was taken least recently. Does not take
  // the slot.
  int Choose(int32_t unit, std::span<const int32_t> keep = {}) const;

  // Assigns `slot` to `unit`, in use until Release. The unit that the slot held
  // before has none from then on.
  void Take(int32_t unit, int slot);
  // Ends the use of the unit's slot, which keeps its contents until it is
  // taken.
  void Release(int32_t unit);
  // Empties the unit's slot.
  void Drop(int32_t unit);
  // Empties all slots that are not in use, and forgets when they were: ranks
  // that have used different ones choose the same from then on.
  void DropAll();

  // Get and set the event that is done when the work on the slot is done.
  // REQUIRES, for the second: Find(unit) >= 0.
  const Event& event(int32_t depth, int slot) const {
    return at(depth, slot).event;
  }
  void SetEvent(int32_t unit, Event event);

  // Returns the units that are in use at the depth of `unit`, for errors.
  std::vector<int32_t> OtherUsers(int32_t unit) const;

 private:
  struct Entry {
    int32_t unit = -1;
    bool in_use = false;
    uint64_t used = 0;  // Value of uses_ at the last use.
    Event event;
  };
  int32_t DepthOf(int32_t unit) const { return plan_.unit(unit).depth; }
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
