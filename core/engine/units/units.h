// SPDX-License-Identifier: Apache-2.0
//
// Units: what a host does with the units of a plan. The parameters of a unit
// are there between acquire and release (UnitParams), its gradients are reduced
// once they are ready (UnitGrads), and each call in the wrong order is an error
// (UnitStates).
//
// All tensors are moved on the CommQueue, after the ranks have agreed on it
// (UnitTransfers, Meetings). A wrong call on one rank, for which others would
// wait, becomes an error of all. Such an error is final: the ranks are out of
// step.
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
// tells other ranks that they may (Meetings::AwaitStreams). It does not before
// a step, whose streams meet those of the other ranks themselves
// (SomeAreAsync).
//
// Threads: one at a time, as the engine.

#ifndef SHARD_CORE_ENGINE_UNITS_UNITS_H_
#define SHARD_CORE_ENGINE_UNITS_UNITS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/event.h"
#include "core/device/host_stream.h"
#include "core/device/stream.h"
#include "core/engine/memory/bound_copies.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/transfer/agreement.h"
#include "core/engine/transfer/comm_queue.h"
#include "core/engine/transfer/published_units.h"
#include "core/engine/transfer/transfers.h"
#include "core/engine/units/meetings.h"
#include "core/engine/units/reduced_grads.h"
#include "core/engine/units/unit_grads.h"
#include "core/engine/units/unit_params.h"
#include "core/engine/units/unit_states.h"
#include "core/engine/units/unit_transfers.h"
#include "core/flat/plan.h"

namespace shard {

class Units {
 public:
  struct Dependencies {
    const Plan* plan;
    const EngineMemory* memory;
    BoundCopies* copies;
    Communicator* comm;
    Notices* proposals;  // OpenProposals(comm).
    HostStream* host;
    Stream* compute;
    Transfers* transfers;
    CommQueue* queue;
    Stream* moving;  // As in EngineRuntime.
    const PublishedUnits* published;
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
  StatusOr<void*> Param(ParamId param) const { return params_.Param(param); }
  StatusOr<void*> Grad(ParamId param) const { return grads_.Grad(param); }

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
  // Enters a step. COLLECTIVE. Exchanges proposals (`proposal` is of
  // kBeginStep, kStep, kCapture or kReplay) until all ranks propose the same,
  // and takes part in what other ranks propose before. Then, for a kStep, the
  // completing of whole gradients is enqueued; transfers may be in progress
  // where ranks announce them.
  Status EnterStep(Proposal proposal, const Status& local,
                   const Deadline& deadline, int32_t* leader);
  // Enqueues the completing of whole gradients for a step that is captured,
  // after EnterStep. The graph does it in replays. An error is not final.
  Status CompleteGrads(const Deadline& deadline);
  // Returns whether, after EnterStep, streams of some ranks may have work left:
  // the streams must meet before ranks use each other's memory.
  bool SomeAreAsync() const;
  // Returns whether gradients of some units were reduced before the step that
  // the ranks have entered. The same on all ranks, also on those in Follow.
  bool SomeReduced() const { return reduced_.SomeCount(); }
  // Enqueues the reduction of all gradients that were not reduced yet, after
  // EnterStep. COLLECTIVE. Returns, by buffer, the event after which the
  // gradients are reduced. Gradients that no rank has become zeros. `reduces`:
  // false where the step adds gradients itself; then there are no events.
  // `deadline`: of the step, for which transfers from here on may have to wait.
  std::vector<Event> EnqueueRest(bool reduces, const Deadline& deadline);
  // Takes part in the operations of other ranks, for a rank without input:
  // proposes `proposal`, of kJoin, until the others step or begin a step
  // (`leader` is set to the rank whose proposal says so) or all ranks have
  // joined (`joined`). COLLECTIVE.
  Status Follow(Proposal proposal, const Status& local,
                const Deadline& deadline, int32_t* leader, bool* joined);
  // Enters an operation that all ranks must propose, with the same `arguments`:
  // kSummon, kReplan, kSave, kLoad, kGatherState, kBroadcastHostTensors or
  // kBroadcastParams. COLLECTIVE. No stream of this rank has work left,
  // gathered parameters are dropped, and the slots are the caller's to use.
  Status EnterChange(Activity activity, const Status& local,
                     const Arguments& arguments, const Deadline& deadline);
  // Makes `error` final, and ends the group with it: the error may be of this
  // rank alone, for which the others would wait.
  Status Fail(const Status& error) { return meetings_.Fail(error); }
  // Forgets the state of the step that was done; gathered parameters are out of
  // date.
  void FinishStep();
  // Sets what updates the units of a begun step as soon as their gradients are
  // ready on all ranks, until EnqueueRest. REQUIRES: no gradients are ready
  // yet.
  void SetEagerUpdate(UnitTransfers::EagerUpdate update) {
    transfers_.SetEagerUpdate(std::move(update));
  }

  const std::vector<Proposal>& proposals() const {
    return meetings_.proposals();
  }
  const UnitStates& states() const { return states_; }
  // Returns the error after which the ranks are out of step.
  const Status& broken() const { return meetings_.broken(); }
  // Returns whether units are gathered.
  bool gathers() const { return params_.gathers(); }

 private:
  Status CheckAcquire(int32_t unit, Pass pass) const;
  Status CheckGradsReady(int32_t unit) const;
  // Runs the leader's operation in this thread, for a rank that came for
  // something else.
  Status FollowLeader(int32_t leader, const Deadline& deadline);

  const Dependencies deps_;
  const Plan& plan_;
  // Later members use earlier ones.
  UnitStates states_;
  ReducedGrads reduced_;
  Meetings meetings_;
  UnitTransfers transfers_;
  UnitParams params_;
  UnitGrads grads_;
  bool accumulate_ = false;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_UNITS_UNITS_H_
