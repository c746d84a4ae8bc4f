// SPDX-License-Identifier: Apache-2.0
//
// Units: gathers the parameters of units and reduces their gradients. The
// parameters of a unit are there between acquire and release, the gradients are
// reduced once they are ready, and the units that will be needed next are
// prefetched.
//
//                        gathers in acquire     reduces when ready
//   memory shared        never                  where gradients are sharded
//   not shared           where parameters are   always; kept whole and with
//                        sharded                allow_missing: in the step
//
// Prefetching follows the order of acquires that was recorded since the last
// step; an acquire out of that order starts a new record. The order depends on
// the calls alone, so ranks that make the same calls prefetch the same units.
// In join the ranks make different calls, so all start new records after it.
//
// All tensors are moved on the CommQueue, after the ranks have agreed on it. A
// wrong call on one rank, for which others would wait, becomes an error of all.
// Such an error is final: the ranks are out of step.
//
// Three streams use the tensors, and each waits for what the others did before:
//
//   the host's   reads parameters once they are gathered, published or copied,
//                and adds to gradients once they are zeroed
//   compute      zeroes and copies gradients once they are reduced, and once
//                the host has written them
//   the queue's  moves tensors after all that both were given (CommQueue::Run)
//
// The thread itself waits for the streams only where it uses their memory, or
// tells other ranks that they may (AwaitStreams).
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
#include "core/device/event.h"
#include "core/device/stream.h"
#include "core/engine/memory/bound_copies.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/memory/slots.h"
#include "core/engine/transfer/agreement.h"
#include "core/engine/transfer/comm_queue.h"
#include "core/engine/transfer/transfers.h"
#include "core/engine/units/unit_states.h"
#include "core/flat/plan.h"

namespace shard {

class Units {
 public:
  struct Dependencies {
    const Plan* plan;
    const EngineMemory* memory;
    BoundCopies* copies;
    Communicator* comm;
    Stream* host;
    Stream* compute;
    Transfers* transfers;
    CommQueue* queue;
    double timeout;      // Seconds, of work on the queue.
    bool allow_missing;  // Gradients may be missing.
  };

  // All of `deps` must outlive this.
  explicit Units(const Dependencies& deps);

  // Acquires a unit: the host's next work comes once its parameters are there,
  // and for a backward pass once there is room for its gradients, zeroed where
  // they are sharded. COLLECTIVE where units are gathered.
  Status Acquire(int32_t unit, Pass pass, const Deadline& deadline);
  // Releases a unit. Where some parameters were declared alone and gradients
  // may be missing, acts as GradsReady first.
  Status Release(int32_t unit, const Deadline& deadline);
  // Declares the gradients of a unit ready. COLLECTIVE where gradients are
  // reduced; the reduction goes on after the call has returned.
  Status GradsReady(int32_t unit, const Deadline& deadline);
  // Declares the gradient of one parameter ready. `known`: an error of `param`
  // itself on this rank.
  Status MarkParamGradReady(ParamId param, const Status& known,
                            const Deadline& deadline);
  // Sets whether, from here on, another backward pass follows before the step.
  void SetAccumulate(bool accumulate) { accumulate_ = accumulate; }

  // Return the current memory of `param` and of its gradient; the latter may be
  // bound. The error says what must be acquired first.
  StatusOr<void*> Param(ParamId param) const;
  StatusOr<void*> Grad(ParamId param) const;

  // Continues the declaring of `before`, the units of another plan over the
  // same parameters: a rank that declared its gradients there declares them
  // here.
  void ContinueFrom(const Units& before) {
    if (before.states_.declares()) states_.BeginDeclaring();
  }

  // Discards the gradients that were accumulated since the last step, and all
  // ready declarations; whole gradients, which are the host's, stay as they
  // are. Ranks exchange nothing in this call: each counts its calls where
  // gradients are sharded (Proposal::zeroed), and gradients that a rank still
  // reduces from before the latest call count as nothing.
  Status ClearGrads(const Deadline& deadline);

  // Returns the error, on this rank alone, of a step at this time.
  Status CheckStep() const;
  // Enters a step. COLLECTIVE. Waits for transfers in progress, exchanges
  // proposals (`proposal` is of kStep or kBeginStep) until all ranks propose
  // the same, and takes part in what other ranks propose before. Whole
  // gradients are completed first, locally.
  Status EnterStep(Proposal proposal, const Status& local,
                   const Deadline& deadline, int32_t* leader);
  // Enqueues the reduction of all gradients that were not reduced yet, after
  // EnterStep. COLLECTIVE. Returns, by buffer, the event after which the
  // gradients are reduced. Gradients that no rank has become zeros.
  std::vector<Event> EnqueueRest();
  // Takes part in the operations of other ranks, for a rank without input:
  // proposes `proposal`, of kJoin, until the others step or begin a step
  // (`leader` is set to the rank whose proposal says so) or all ranks have
  // joined (`joined`). COLLECTIVE.
  Status Follow(Proposal proposal, const Status& local,
                const Deadline& deadline, int32_t* leader, bool* joined);
  // Enters an operation that all ranks must propose, with the same `arguments`:
  // kSummon, kReplan, kSave, kLoad, kGatherState or kBroadcastHostTensors.
  // COLLECTIVE. No stream of this rank has work left, gathered parameters are
  // dropped, and the slots are the caller's to use.
  Status EnterChange(Activity activity, const Status& local,
                     const Arguments& arguments, const Deadline& deadline);
  // Makes `error` final, and ends the group with it: the error may be of this
  // rank alone, for which the others would wait.
  Status Fail(const Status& error);
  // Forgets the state of the step that was done; gathered parameters are out of
  // date.
  void FinishStep();
  // Called for each unit of a begun step as soon as its gradients are ready on
  // all ranks, on the queue's thread, until EnqueueRest. REQUIRES: no gradients
  // are ready yet. `in_place`: the result of Transfers::ReadInPlace, or null
  // where gradients cannot be read so.
  using EagerUpdate = std::function<Status(
      int32_t unit, const std::vector<std::vector<const void*>>* in_place,
      const Deadline& deadline)>;
  void SetEagerUpdate(EagerUpdate update) { eager_update_ = std::move(update); }

  // Sets the event, of the queue, after which the parameters of `unit` are
  // published.
  void SetPublished(int32_t unit, Event event);

  const std::vector<Proposal>& proposals() const {
    return agreement_.proposals();
  }
  const UnitStates& states() const { return states_; }
  // Returns the error after which the ranks are out of step.
  const Status& broken() const { return broken_; }
  bool gathers() const { return gathers_; }

 private:
  // Announces an operation, then runs the announced operations of other ranks
  // until it is this one's turn.
  Status Perform(const Proposal& proposal, unsigned char* slot);
  // Runs the operation of the leader of the last agreement.
  Status RunOperation(const Proposal& proposal, unsigned char* slot,
                      const Deadline& deadline);
  // Runs the leader's operation in this thread, for a rank that came for
  // something else.
  Status FollowLeader(int32_t leader, const Deadline& deadline);
  // Blocks until the host's stream and the compute stream have done all that
  // they were given: for memory that this thread uses itself, or that other
  // ranks use once they know that this one is here.
  Status AwaitStreams(const Deadline& deadline);
  // Tells the other ranks, which propose an operation with a unit, that this
  // rank cannot do it. COLLECTIVE.
  Status ReportToOthers(Activity activity, const Status& local,
                        const Deadline& deadline);
  Status CheckRoom(int32_t unit, const Slots& slots,
                   std::string_view what) const;
  bool HasTensors(int32_t unit, bool grads) const;
  // Returns whether the ranks exchange proposals once the gradients of a unit
  // are ready.
  bool AgreesWhenReady() const { return reduces_ || eager_update_ != nullptr; }
  // Enqueues the gathering of `unit`, into a slot that is not in use.
  void EnqueueGather(int32_t unit, int slot);
  void EnqueueReduce(int32_t unit);
  Status ReduceWhole(size_t buffer);
  void RecordOrder(int32_t unit);
  // Forgets which gradients are reduced: after a step, or once all ranks have
  // joined.
  void ForgetReduced();
  // Forgets the units that this rank gathered, and their order, where other
  // ranks did not gather the same.
  void ForgetOrder();
  void Prefetch();
  Status AcquireGradSlot(int32_t unit, Pass pass, const Deadline& deadline);
  // Zeroes the elements that belong to no parameter: other units leave their
  // gradients in a slot.
  void ZeroPadding(const FlatBufferPlan& buffer, unsigned char* grads);
  // Returns this rank's gradients of a buffer of `unit`. REQUIRES: where they
  // are sharded, the unit has a slot.
  unsigned char* GradsOf(int32_t unit, const SlotPart& part) const;
  // Makes the gradient at `flat` that of the host: zeros where it does not
  // count, else a copy of the bound one. Enqueues only; returns whether
  // anything was.
  bool CompleteGrad(const Slot& slot, DType dtype, bool counts, void* flat);
  // Complete the gradients of `unit` that are about to be reduced, and whole
  // gradients that the step is about to read.
  Status CompleteUnitGrads(int32_t unit, const Deadline& deadline);
  Status CompleteWholeGrads(const Deadline& deadline);
  // Make the work on gradients that is enqueued next come after what the host
  // has done so far, and the host's next work after that work.
  void FollowHost(const Deadline& deadline);
  Status LeadHost(const Deadline& deadline);
  // Makes an error final that all ranks know.
  Status MarkBroken(const Status& error);
  // Returns the error of an agreement to which this rank proposed `activity`;
  // final where the ranks that have not joined did not all come for the same.
  Status HandleFailedAgreement(const Status& error, Activity activity);

  const Dependencies deps_;
  const Plan& plan_;
  const bool gathers_;
  const bool reduces_;        // When gradients are ready.
  const bool reduces_later_;  // During the step.
  UnitStates states_;
  Agreement agreement_;
  Slots param_slots_;
  Slots grad_slots_;
  bool accumulate_ = false;
  EagerUpdate eager_update_;
  std::vector<std::vector<const void*>> in_place_;
  Status broken_;
  // By unit: Proposal::zeroed of the last gradients that the ranks have reduced
  // since the last step, whose sum counts while zeroed_ is the same;
  // kNeverZeroed: none. Used by the queue's thread while the queue is not
  // empty.
  std::vector<int64_t> reduced_;
  // Calls of ClearGrads since the last step, where gradients are sharded.
  int64_t zeroed_ = 0;
  // Whether this rank had declared gradients before one of these calls.
  bool dropped_ = false;
  std::vector<Event> published_;  // By unit.

  std::vector<int32_t> order_;  // Units in the order of acquires.
  size_t position_ = 0;         // Of the next acquire in order_.
  bool recording_ = true;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_UNITS_UNITS_H_
