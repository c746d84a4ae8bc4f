// SPDX-License-Identifier: Apache-2.0
//
// PublishedUnits: the events after which the parameters that a step has updated
// are there, on the ranks that hold them. The step sets them, and an acquire
// waits for the one of its unit.
//
// Threads: one at a time, as the engine.

#ifndef SHARD_CORE_ENGINE_TRANSFER_PUBLISHED_UNITS_H_
#define SHARD_CORE_ENGINE_TRANSFER_PUBLISHED_UNITS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/device/event.h"

namespace shard {

class PublishedUnits {
 public:
  explicit PublishedUnits(size_t units) : events_(units) {}

  // Returns an event that is done where no step has published the unit.
  const Event& event(int32_t unit) const {
    return events_[static_cast<size_t>(unit)];
  }
  // Sets the event, of the queue.
  void Set(int32_t unit, Event event) {
    events_[static_cast<size_t>(unit)] = std::move(event);
  }

 private:
  std::vector<Event> events_;  // By unit.
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_PUBLISHED_UNITS_H_
