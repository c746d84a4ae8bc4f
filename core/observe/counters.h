// SPDX-License-Identifier: Apache-2.0
//
// EventCounters: how often each event occurred on a rank, how often it failed,
// and its bytes and seconds. Threads: any, without waiting.

#ifndef SHARD_CORE_OBSERVE_COUNTERS_H_
#define SHARD_CORE_OBSERVE_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/observe/event.h"

namespace shard {

struct EventCounter {
  uint64_t calls = 0;
  uint64_t errors = 0;  // Part of `calls`.
  uint64_t bytes = 0;
  double seconds = 0;
};

class EventCounters {
 public:
  void Add(EventId event, uint64_t bytes, int64_t nanoseconds, bool failed) {
    Entry& entry = entries_[static_cast<size_t>(event)];
    constexpr auto kRelaxed = std::memory_order_relaxed;
    entry.calls.fetch_add(1, kRelaxed);
    if (bytes > 0) entry.bytes.fetch_add(bytes, kRelaxed);
    if (nanoseconds > 0) entry.nanoseconds.fetch_add(nanoseconds, kRelaxed);
    if (failed) entry.errors.fetch_add(1, kRelaxed);
  }

  EventCounter Get(EventId event) const;

  // Returns the counter of the event of that name; kNotFound lists the names.
  StatusOr<EventCounter> Find(std::string_view name) const;

  // Appends the counters in the text format of Prometheus. `labels` come before
  // those of the event: "rank=\"0\"".
  void AppendTo(std::string* text, std::string_view labels) const;

 private:
  struct Entry {
    std::atomic<uint64_t> calls = 0;
    std::atomic<uint64_t> errors = 0;
    std::atomic<uint64_t> bytes = 0;
    std::atomic<int64_t> nanoseconds = 0;
  };

  std::array<Entry, kEventTypes.size()> entries_;
};

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_COUNTERS_H_
