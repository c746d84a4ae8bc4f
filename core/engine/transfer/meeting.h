// SPDX-License-Identifier: Apache-2.0
//
// Meeting: what ranks tell each other before they do something together, and
// what they conclude from it. Whatever a rank is about to do, it meets the
// others with a note of one form. So ranks that are about to do different
// things find out by name, and a rank that has nothing to do itself (it ran out
// of input, or has no gradients for a unit) learns what the others do and does
// its part of it.
//
// The conclusion is a pure function of the notes: all ranks come to the same.

#ifndef SHARD_CORE_ENGINE_TRANSFER_MEETING_H_
#define SHARD_CORE_ENGINE_TRANSFER_MEETING_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"

namespace shard {

// The values are sent, and part of no file.
enum class Activity : int32_t {
  kReduce = 1,  // The gradients of a unit.
  kGather,      // The parameters of a unit.
  kBeginStep,
  kStep,
  kJoin,  // Out of input: follows the others until all are.
  kSummon,
  kReplan,
  kSave,
  kLoad,
  kGatherState,
};

// What the ranks of a step agree on. Doubles only, so that the bytes have no
// padding.
struct StepEntry {
  double hypers;
  double max_grad_norm;
  double grad_norm_type;
  double clip_value;
  double grad_divisor;
  double average_active;
  double loss_scale;
  double skip_nonfinite;
  double step;
};

// Before the first zero_grad.
inline constexpr int64_t kNeverZeroed = -1;

// Whether an activity is a unit's.
constexpr bool MovesUnit(Activity activity) {
  return activity == Activity::kReduce || activity == Activity::kGather;
}

struct Note {
  Activity activity = Activity::kStep;
  int32_t unit = -1;   // Of kReduce and kGather.
  int32_t slot = -1;   // Where this rank's gradients of the unit lie.
  int32_t failed = 0;  // Something is wrong on this rank.
  int32_t more = 0;    // kReduce: another backward pass adds to them.
  int32_t active = 1;  // Not joined.
  // Calls of zero_grad since the last step before this, where gradients are
  // sharded. A rank that is ahead of another may have zeroed already, while the
  // other's gradients are from before. Of kJoin: kNeverZeroed unless this rank
  // threw away gradients of its own, which are in sums of all ranks.
  int64_t zeroed = 0;
  StepEntry step = {};
};

// Whether two ranks come to do one thing. Gradients from before a zero_grad and
// from after it are not reduced together.
bool SameWork(const Note& a, const Note& b);

// What comes of a meeting.
struct Conclusion {
  // What is done now, by all ranks, as this rank's note has it.
  int32_t leader;
  // Whether that is what this rank came for; else it follows, and meets again.
  bool follows;
  int32_t active;  // Ranks that have not joined.
};

// How ranks that come with different notes go on:
//   - a rank in kJoin follows kReduce, kGather, kBeginStep and kStep;
//   - where ranks may lack gradients, one in kStep follows kReduce and kGather,
//     one in kGather follows kReduce, and of several kReduce that with the
//     fewest zero_grads before it goes first, of those that of the lowest rank;
//   - anything else is kDesync, naming two ranks and what they do.
// `unit_name` names a unit in errors. REQUIRES: no note has failed.
StatusOr<Conclusion> Conclude(
    const std::vector<Note>& notes, int rank, bool allow_missing,
    const std::function<std::string(int32_t unit)>& unit_name);

class Meeting {
 public:
  Meeting(Communicator* comm, bool allow_missing,
          std::function<std::string(int32_t unit)> unit_name)
      : comm_(comm),
        allow_missing_(allow_missing),
        unit_name_(std::move(unit_name)),
        notes_(static_cast<size_t>(comm->world_size())) {}

  // COLLECTIVE. `local`: what is wrong on this rank; it becomes the error of
  // all. `mine.failed` need not be set. `what` is the phase in errors and for
  // tests, the same in every meeting of a kind.
  StatusOr<Conclusion> Meet(Note mine, const Status& local,
                            const Deadline& deadline);

  // Of the last meeting, by rank.
  const std::vector<Note>& notes() const { return notes_; }

 private:
  Communicator* const comm_;
  const bool allow_missing_;
  const std::function<std::string(int32_t unit)> unit_name_;
  std::vector<Note> notes_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_MEETING_H_
