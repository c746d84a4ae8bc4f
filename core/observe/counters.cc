// SPDX-License-Identifier: Apache-2.0

#include "core/observe/counters.h"

#include "core/base/strings.h"

namespace shard {

EventCounter EventCounters::Get(EventId event) const {
  const Entry& entry = entries_[static_cast<size_t>(event)];
  constexpr auto kRelaxed = std::memory_order_relaxed;
  return {entry.calls.load(kRelaxed), entry.errors.load(kRelaxed),
          entry.bytes.load(kRelaxed),
          static_cast<double>(entry.nanoseconds.load(kRelaxed)) * 1e-9};
}

StatusOr<EventCounter> EventCounters::Find(std::string_view name) const {
  std::string known;
  for (size_t e = 0; e < kEventTypes.size(); ++e) {
    if (kEventTypes[e].name == name) return Get(static_cast<EventId>(e));
    StrAppend(&known, known.empty() ? "" : ", ", kEventTypes[e].name);
  }
  return Status(StatusCode::kNotFound,
                StrCat("no event is called '", name, "'; known: ", known));
}

void EventCounters::AppendTo(std::string* text, std::string_view labels) const {
  const auto append = [&](std::string_view metric, std::string_view help,
                          auto value_of) {
    StrAppend(text, "# HELP shard_event_", metric, " ", help,
              "\n# TYPE shard_event_", metric, " counter\n");
    for (size_t e = 0; e < kEventTypes.size(); ++e) {
      const EventType& type = kEventTypes[e];
      StrAppend(text, "shard_event_", metric, "{", labels, ",category=\"",
                type.category, "\",event=\"", type.name, "\"} ",
                value_of(Get(static_cast<EventId>(e))), "\n");
    }
  };
  using Counter = const EventCounter&;
  append("calls_total", "How often the event occurred.",
         [](Counter counter) { return counter.calls; });
  append("errors_total", "How many of the calls failed.",
         [](Counter counter) { return counter.errors; });
  append("bytes_total", "Bytes that the calls sent, read or wrote.",
         [](Counter counter) { return counter.bytes; });
  append("seconds_total", "Time that the calls took.",
         [](Counter counter) { return counter.seconds; });
}

}  // namespace shard
