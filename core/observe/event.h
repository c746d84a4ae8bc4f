// SPDX-License-Identifier: Apache-2.0
//
// EventId: the kinds of events that a rank records. This table is the only list
// of them: the lines of the log, the spans of the trace and the counters have
// their names from it.

#ifndef SHARD_CORE_OBSERVE_EVENT_H_
#define SHARD_CORE_OBSERVE_EVENT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/observe/logger.h"

namespace shard {

// SHARD_EVENTS(EVENT) calls EVENT(constant, name, category, level) for each.
// `level` is that of the event's line in the log; kOff: the event has none. No
// event is of kError: an error is returned to the host, which decides whether
// to log it.
//
// The calls of a host, which are logged:
#define SHARD_EVENTS(EVENT)                                               \
  EVENT(kOpen, "open", "comm", kInfo)                                     \
  EVENT(kCreateEngine, "create_engine", "engine", kInfo)                  \
  EVENT(kBeginStep, "begin_step", "step", kDebug)                         \
  EVENT(kStep, "step", "step", kDebug)                                    \
  EVENT(kJoin, "join", "step", kInfo)                                     \
  EVENT(kChangePlan, "change_plan", "engine", kInfo)                      \
  EVENT(kSave, "save", "checkpoint", kInfo)                               \
  EVENT(kLoad, "load", "checkpoint", kInfo)                               \
  /* Messages: */                                                         \
  EVENT(kPlan, "plan", "engine", kInfo)                                   \
  EVENT(kPlanText, "plan_text", "engine", kDebug)                         \
  EVENT(kTransport, "transport", "engine", kInfo)                         \
  EVENT(kKeptMemory, "kept_memory", "engine", kWarning)                   \
  EVENT(kPlanWarning, "plan_warning", "engine", kWarning)                 \
  EVENT(kInstructionSets, "instruction_sets", "engine", kWarning)         \
  EVENT(kSkipped, "skipped", "step", kInfo)                               \
  EVENT(kStranger, "stranger", "comm", kWarning)                          \
  EVENT(kAbort, "abort", "comm", kInfo)                                   \
  EVENT(kCheckpointWarning, "checkpoint_warning", "checkpoint", kWarning) \
  EVENT(kUnobserved, "unobserved", "observe", kWarning)                   \
  /* The phases of a step: */                                             \
  EVENT(kEnter, "enter", "step", kOff)                                    \
  EVENT(kNorm, "norm", "step", kOff)                                      \
  EVENT(kUpdate, "update", "step", kOff)                                  \
  EVENT(kFinish, "finish", "step", kOff)                                  \
  /* Units, and the transfers of their tensors: */                        \
  EVENT(kAcquire, "acquire", "unit", kOff)                                \
  EVENT(kGather, "gather", "unit", kOff)                                  \
  EVENT(kReduce, "reduce", "unit", kOff)                                  \
  EVENT(kEagerUpdate, "eager_update", "unit", kOff)                       \
  EVENT(kPublish, "publish", "unit", kOff)                                \
  EVENT(kExposed, "exposed", "unit", kOff)                                \
  EVENT(kOverlapped, "overlapped", "unit", kOff)                          \
  /* The operations of a communicator: */                                 \
  EVENT(kBarrier, "barrier", "collective", kOff)                          \
  EVENT(kAllGather, "all_gather", "collective", kOff)                     \
  EVENT(kReduceScatter, "reduce_scatter", "collective", kOff)             \
  EVENT(kAllGatherBlocks, "all_gather_blocks", "collective", kOff)        \
  EVENT(kBroadcast, "broadcast", "collective", kOff)                      \
  EVENT(kAllocate, "allocate", "collective", kOff)                        \
  EVENT(kDuplicate, "duplicate", "collective", kOff)                      \
  EVENT(kShutdown, "shutdown", "collective", kOff)                        \
  /* The rounds of these that send tensors to other hosts: */             \
  EVENT(kShip, "ship", "collective", kOff)                                \
  /* The files of a checkpoint: */                                        \
  EVENT(kSnapshot, "snapshot", "io", kOff)                                \
  EVENT(kWrite, "write", "io", kOff)                                      \
  EVENT(kCommit, "commit", "io", kOff)                                    \
  EVENT(kRead, "read", "io", kOff)

#define SHARD_EVENT_CONSTANT(constant, name, category, level) constant,
enum class EventId : uint8_t { SHARD_EVENTS(SHARD_EVENT_CONSTANT) };
#undef SHARD_EVENT_CONSTANT

struct EventType {
  std::string_view name;
  std::string_view category;
  LogLevel level;
};

#define SHARD_EVENT_TYPE(constant, name, category, level) \
  EventType{name, category, LogLevel::level},
inline constexpr auto kEventTypes =
    std::to_array<EventType>({SHARD_EVENTS(SHARD_EVENT_TYPE)});
#undef SHARD_EVENT_TYPE
#undef SHARD_EVENTS

constexpr const EventType& TypeOf(EventId event) {
  return kEventTypes[static_cast<size_t>(event)];
}

// The subject of an event. Values that are left out have no place in its line.
struct EventArguments {
  // The phase or the path. The text must live as long as the span.
  std::string_view what = {};
  int64_t unit = -1;
  int64_t step = -1;
  int64_t bytes = -1;
};

// A stream of a device, of whose work an event is; none: it is of a thread.
struct DeviceTrack {
  const void* stream = nullptr;
  std::string_view name = {};  // Of the stream.
};

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_EVENT_H_
