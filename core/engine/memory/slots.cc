// SPDX-License-Identifier: Apache-2.0

#include "core/engine/memory/slots.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace shard {

Slots::Slots(const Plan& plan, const std::vector<SlotPlan>& slots)
    : plan_(plan) {
  for (const SlotPlan& slot : slots) {
    entries_.emplace_back(static_cast<size_t>(slot.count));
  }
}

int Slots::Find(int32_t unit) const {
  const auto& entries = entries_[static_cast<size_t>(DepthOf(unit))];
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].unit == unit) return static_cast<int>(i);
  }
  return -1;
}

int Slots::Choose(int32_t unit, std::span<const int32_t> keep) const {
  const auto& entries = entries_[static_cast<size_t>(DepthOf(unit))];
  // Among equal slots the one used longest ago comes first: transfers into
  // recently dropped ones may still be running.
  const auto before = [](const Entry& a, const Entry& b) {
    if ((a.unit < 0) != (b.unit < 0)) return a.unit < 0;
    return a.used < b.used;
  };
  int best = -1;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].in_use) continue;
    if (std::ranges::find(keep, entries[i].unit) != keep.end()) continue;
    if (best < 0 || before(entries[i], entries[static_cast<size_t>(best)])) {
      best = static_cast<int>(i);
    }
  }
  return best;
}

void Slots::Take(int32_t unit, int slot) {
  Entry& entry = at(DepthOf(unit), slot);
  entry.unit = unit;
  entry.in_use = true;
  entry.used = ++uses_;
}

void Slots::Release(int32_t unit) {
  const int slot = Find(unit);
  if (slot >= 0) at(DepthOf(unit), slot).in_use = false;
}

void Slots::Drop(int32_t unit) {
  const int slot = Find(unit);
  if (slot < 0) return;
  Entry& entry = at(DepthOf(unit), slot);
  entry.unit = -1;
  entry.in_use = false;
}

void Slots::DropAll() {
  for (auto& entries : entries_) {
    for (Entry& entry : entries) {
      if (entry.in_use) continue;
      entry.unit = -1;
      entry.used = 0;
    }
  }
}

void Slots::SetEvent(int32_t unit, Event event) {
  at(DepthOf(unit), Find(unit)).event = std::move(event);
}

std::vector<int32_t> Slots::OtherUsers(int32_t unit) const {
  std::vector<int32_t> users;
  for (const Entry& entry : entries_[static_cast<size_t>(DepthOf(unit))]) {
    if (entry.in_use) users.push_back(entry.unit);
  }
  return users;
}

}  // namespace shard
