// SPDX-License-Identifier: Apache-2.0
//
// Units: the way of units through forward and backward passes: their parameters
// are there between acquire and release, their gradients are reduced once they
// are ready, and what will be needed next is gathered ahead.
//
//                        gathers in acquire     reduces when ready
//   memory shared        never                  where gradients are sharded
//   not shared           where parameters are   always; kept whole and with
//                        sharded                allow_missing: in the step
//
// What is gathered ahead follows the order of acquires that was recorded since
// the last step; a run that leaves it is recorded anew. It depends on the calls
// alone, so ranks that make the same calls gather the same; in join they do
// not, so all begin anew after it.
//
// Everything that moves does so on the CommQueue, after a meeting of the ranks.
// A call that is wrong on one rank, where others would wait for it, becomes the
// error of all. Such an error is final: ranks have got out of step.
//
// Threads: one at a time, as the engine.

#ifndef SHARD_CORE_ENGINE_UNITS_UNITS_H_
#define SHARD_CORE_ENGINE_UNITS_UNITS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/memory/slots.h"
#include "core/engine/transfer/comm_queue.h"
#include "core/engine/transfer/meeting.h"
#include "core/engine/transfer/transfers.h"
#include "core/engine/units/unit_states.h"
#include "core/flat/plan.h"

namespace shard {

class Units {
 public:
  struct Parts {
    const Plan* plan;
    const EngineMemory* memory;
    Communicator* comm;
    Device* device;
    Stream* compute;
    Transfers* transfers;
    CommQueue* queue;
    double timeout;      // Of what runs on the queue.
    bool allow_missing;  // Gradients.
  };

  // All of `parts` outlive this.
  explicit Units(const Parts& parts);

  // COLLECTIVE where it gathers. Returns once the parameters are there, and for
  // a backward pass room for the gradients, zeros where they are sharded.
  Status Acquire(int32_t unit, Pass pass, const Deadline& deadline);
  // Where some parameters were declared alone and gradients may be missing, as
  // after GradsReady.
  Status Release(int32_t unit, const Deadline& deadline);
  // COLLECTIVE where it reduces, which goes on after it has returned.
  Status GradsReady(int32_t unit, const Deadline& deadline);
  // `known`: what is wrong with `param` itself, on this rank.
  Status ParamGradReady(ParamId param, const Status& known,
                        const Deadline& deadline);
  // From here on another backward pass follows before the step, or none.
  void SetNoSync(bool on) { no_sync_ = on; }

  // Where `param` and its gradient are now. Errors: what must be acquired
  // first.
  StatusOr<void*> Param(ParamId param) const;
  StatusOr<void*> Grad(ParamId param) const;

  // Goes on as `before`, of another plan over the same parameters: a rank that
  // declared its gradients there declares them here.
  void ContinueFrom(const Units& before) {
    if (before.states_.declares()) states_.BeginDeclaring();
  }

  // Throws away what was accumulated since the last step, and that it was
  // ready. Not the host's own: whole gradients stay. Ranks do not meet for it:
  // of sharded gradients they count it, and what one of them still reduces from
  // before the latest time is nothing.
  Status ClearGrads(const Deadline& deadline);

  // What is wrong with stepping now, on this rank alone.
  Status CheckStep() const;
  // COLLECTIVE. Waits for what is on its way, meets the others, who come to do
  // the same (`note` is of kStep or kBeginStep), and follows those who still do
  // something else.
  // Local: whole gradients that are missing become zeros before.
  Status EnterStep(Note note, const Status& local, const Deadline& deadline,
                   int32_t* leader);
  // COLLECTIVE, after it. Enqueues the reduction of all gradients that were not
  // reduced yet; by buffer, when it is done. What no rank has becomes zeros.
  std::vector<Event> EnqueueRest();
  // COLLECTIVE, for a rank without input: meets with `note`, of kJoin, and
  // follows until the others step or begin one (`leader` has the note) or all
  // ranks have joined (`joined`).
  Status Follow(Note note, const Status& local, const Deadline& deadline,
                int32_t* leader, bool* joined);
  // COLLECTIVE. The same for kSummon and kReplan, which nobody follows. What
  // was gathered is dropped, and the slots are the caller's.
  Status EnterChange(Activity activity, const Status& local,
                     const Deadline& deadline);
  // Makes `error` final, and ends the group with it: it may be one of this
  // rank alone, for which the others would wait.
  Status Fail(const Status& error);
  // After a step; parameters that were gathered are out of date.
  void FinishStep();
  // What is done with each unit as soon as its gradients are ready on all
  // ranks, on the queue's thread; until EnqueueRest. No gradients are ready
  // yet. `in_place`: Transfers::ReadInPlace, where that goes; else null.
  using Ahead = std::function<Status(
      int32_t unit, const std::vector<std::vector<const void*>>* in_place,
      const Deadline& deadline)>;
  void SetAhead(Ahead ahead) { ahead_ = std::move(ahead); }

  // `event` is when the parameters of `unit` are published, on the queue.
  void SetPublished(int32_t unit, Event event);

  const std::vector<Note>& notes() const { return meeting_.notes(); }
  const UnitStates& states() const { return states_; }
  // The error after which the ranks are out of step.
  const Status& broken() const { return broken_; }
  bool gathers() const { return gathers_; }

 private:
  // What a rank is about to do; then does it, and all that others do before.
  Status Perform(const Note& note, unsigned char* slot);
  // The leader's part of the last meeting.
  Status Do(const Note& note, unsigned char* slot, const Deadline& deadline);
  // COLLECTIVE. Tells the others, who come to do something with a unit, that
  // this rank cannot.
  Status TellOthers(Activity activity, const Status& local,
                    const Deadline& deadline);
  StatusOr<Conclusion> Meet(const Note& note, const Status& local,
                            const Deadline& deadline);
  Status CheckRoom(int32_t unit, const Slots& slots,
                   std::string_view what) const;
  bool Has(int32_t unit, bool grads) const;
  // Whether the ranks do something together once a unit's gradients are ready.
  bool MeetsWhenReady() const { return reduces_ || ahead_ != nullptr; }
  // Enqueues the gathering of `unit`, into a slot that is not in use.
  void EnqueueGather(int32_t unit, int slot);
  void EnqueueReduce(int32_t unit);
  void RecordOrder(int32_t unit);
  // After a step, or once all ranks have joined: none are reduced.
  void ForgetReduced();
  // What this rank gathered, and in which order, where others did not.
  void ForgetOrder();
  void Prefetch();
  Status TakeGradSlot(int32_t unit, Pass pass, const Deadline& deadline);
  // What no parameter's gradient fills: other units leave theirs in a slot.
  void ZeroPadding(const FlatBufferPlan& buffer, unsigned char* grads);
  // Fills whole gradients that do not count in the step (UnitStates::HasGrad)
  // with zeros.
  Status ZeroMissing(const Deadline& deadline);
  // The same for sharded gradients of `unit`, about to become ready, that do
  // not count in this pass.
  Status ZeroMissingInSlot(int32_t unit, const Deadline& deadline);
  // Makes an error that all ranks know of final.
  Status GiveUp(const Status& error);
  // The error of a meeting, to which this rank came for `activity`; final where
  // the ranks that have not joined did not all come for the same.
  Status OutOfStep(const Status& error, Activity activity);

  const Parts parts_;
  const Plan& plan_;
  const bool gathers_;
  const bool reduces_;        // When ready.
  const bool reduces_later_;  // In the step.
  UnitStates states_;
  Meeting meeting_;
  Slots param_slots_;
  Slots grad_slots_;
  bool no_sync_ = false;
  Ahead ahead_;
  std::vector<std::vector<const void*>> in_place_;
  Status broken_;
  // By unit: Note::zeroed of the last gradients that the ranks have reduced
  // since the last step, whose sum counts while zeroed_ is the same;
  // kNeverZeroed: none. On the queue's thread while it is not empty.
  std::vector<int64_t> reduced_;
  // Calls of ClearGrads since the last step, where gradients are sharded.
  int64_t zeroed_ = 0;
  // Whether it had declared gradients before one of these calls.
  bool dropped_ = false;
  std::vector<Event> published_;  // By unit.

  std::vector<int32_t> order_;  // Units in the order of acquires.
  size_t position_ = 0;         // In it, of the next acquire.
  bool recording_ = true;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_UNITS_UNITS_H_
