// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/meeting.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "core/base/strings.h"

namespace shard {

namespace {

// The phase of all meetings: one name, so that ranks that come for different
// operations still meet.
constexpr std::string_view kMeet = "meet";

static_assert(std::has_unique_object_representations_v<int32_t>);
static_assert(sizeof(Note) ==
                  6 * sizeof(int32_t) + sizeof(int64_t) + sizeof(StepEntry),
              "no padding, which would be sent unset");

std::string_view Verb(Activity activity) {
  switch (activity) {
    case Activity::kReduce:
      return "reduces the gradients of ";
    case Activity::kGather:
      return "gathers the parameters of ";
    case Activity::kBeginStep:
      return "begins a step";
    case Activity::kStep:
      return "steps";
    case Activity::kJoin:
      return "waits in join";
    case Activity::kSummon:
      return "summons full parameters";
    case Activity::kReplan:
      return "changes groups or trainable parameters";
    case Activity::kSave:
      return "saves a checkpoint";
    case Activity::kLoad:
      return "loads a state";
    case Activity::kGatherState:
      return "gathers a state";
  }
  return "does something unknown";
}

}  // namespace

bool SameWork(const Note& a, const Note& b) {
  return a.activity == b.activity && a.unit == b.unit &&
         (a.activity != Activity::kReduce || a.zeroed == b.zeroed);
}

StatusOr<Conclusion> Conclude(
    const std::vector<Note>& notes, int rank, bool allow_missing,
    const std::function<std::string(int32_t unit)>& unit_name) {
  const auto describe = [&](size_t r) {
    const Note& note = notes[r];
    return StrCat("rank ", r, " ", Verb(note.activity),
                  note.unit >= 0 ? unit_name(note.unit) : "",
                  note.activity == Activity::kReduce && note.zeroed > 0
                      ? StrCat(" (zero_grad calls since the last step: ",
                               note.zeroed, ")")
                      : "");
  };
  // The leader is the first rank that moves a unit, gradients before parameters
  // where ranks may lack gradients; or else the first rank that has not joined.
  constexpr size_t kNone = SIZE_MAX;
  size_t reducer = kNone;
  size_t mover = kNone;
  size_t stayer = kNone;
  Conclusion conclusion = {0, false, 0};
  for (size_t r = 0; r < notes.size(); ++r) {
    conclusion.active += notes[r].active;
    if (notes[r].activity == Activity::kJoin) continue;
    if (notes[r].activity == Activity::kReduce &&
        (reducer == kNone || notes[r].zeroed < notes[reducer].zeroed)) {
      reducer = r;
    }
    if (MovesUnit(notes[r].activity)) mover = std::min(mover, r);
    stayer = std::min(stayer, r);
  }
  if (allow_missing && reducer != kNone) mover = reducer;
  const size_t leader = mover != kNone ? mover : stayer != kNone ? stayer : 0;
  const Note& led = notes[leader];

  const auto may_follow = [&](const Note& note) {
    if (note.activity == Activity::kJoin) {
      return MovesUnit(led.activity) || led.activity == Activity::kStep ||
             led.activity == Activity::kBeginStep;
    }
    if (!allow_missing) return false;
    if (note.activity == Activity::kStep) return MovesUnit(led.activity);
    return MovesUnit(note.activity) && led.activity == Activity::kReduce;
  };
  for (size_t r = 0; r < notes.size(); ++r) {
    if (SameWork(notes[r], led) || may_follow(notes[r])) continue;
    return Desync(static_cast<int>(r),
                  "the ranks do different things: ", describe(leader), ", ",
                  describe(r));
  }
  conclusion.leader = static_cast<int32_t>(leader);
  conclusion.follows = !SameWork(notes[static_cast<size_t>(rank)], led);
  return conclusion;
}

StatusOr<Conclusion> Meeting::Meet(Note mine, const Status& local,
                                   const Deadline& deadline) {
  mine.failed = local.ok() ? 0 : 1;
  SHARD_RETURN_IF_ERROR(
      comm_->AllGather(kMeet, &mine, sizeof(mine), notes_.data(), deadline));
  const bool failed =
      std::any_of(notes_.begin(), notes_.end(),
                  [](const Note& note) { return note.failed != 0; });
  if (failed) {
    SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm_, kMeet, local, deadline));
  }
  return Conclude(notes_, comm_->rank(), allow_missing_, unit_name_);
}

}  // namespace shard
