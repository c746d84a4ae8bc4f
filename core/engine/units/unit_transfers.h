// SPDX-License-Identifier: Apache-2.0
//
// UnitTransfers: moves the tensors of one unit, or buffer, in the order of the
// CommQueue, after the ranks have agreed on it. Where they announce moves
// (Agreement::announces), a move is enqueued at once. Elsewhere they meet on
// the queue, where a rank takes part in what others move before its own.
//
// Threads: as the engine; Perform runs on the queue's thread.

#ifndef SHARD_CORE_ENGINE_UNITS_UNIT_TRANSFERS_H_
#define SHARD_CORE_ENGINE_UNITS_UNIT_TRANSFERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/event.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/transfer/agreement.h"
#include "core/engine/transfer/comm_queue.h"
#include "core/engine/transfer/transfers.h"
#include "core/engine/units/reduced_grads.h"
#include "core/flat/plan.h"

namespace shard {

class UnitTransfers {
 public:
  struct Dependencies {
    const Plan* plan;
    const EngineMemory* memory;
    Communicator* comm;
    Transfers* transfers;
    CommQueue* queue;
    Stream* moving;  // As in EngineRuntime.
    Agreement* agreement;
    ReducedGrads* reduced;
    double timeout;  // Seconds, of work on the queue.
  };

  // All of `deps` must outlive this.
  explicit UnitTransfers(const Dependencies& deps)
      : deps_(deps),
        plan_(*deps.plan),
        announced_(static_cast<size_t>(deps.comm->world_size())),
        last_(plan_.units().size()) {}

  // Enqueue the gathering of a unit's parameters into `slot`, the reduction of
  // gradients that `proposal`, of kReduce, names, and that of a buffer of whole
  // gradients. Each returns the event after which it is done. An error, where
  // other ranks announce something else, is final.
  StatusOr<Event> Gather(int32_t unit, int slot);
  StatusOr<Event> Reduce(const Proposal& proposal);
  Event ReduceWhole(size_t buffer);
  // Returns the event after the last gathering or reduction of a unit, and so
  // after all of them.
  const Event& Last(int32_t unit) const {
    return last_[static_cast<size_t>(unit)];
  }

  // Does the operation that `led` proposes, and waits for it, for a rank that
  // came for something else. COLLECTIVE. REQUIRES: the queue is drained.
  Status Follow(const Proposal& led, const Deadline& deadline);

  // Called for each unit of a begun step as soon as its gradients are ready on
  // all ranks: enqueues the update on `stream`. `in_place`: the result of
  // Transfers::ReadInPlace, or null where gradients cannot be read so.
  using EagerUpdate = std::function<Status(
      int32_t unit, const std::vector<std::vector<const void*>>* in_place,
      Stream* stream)>;
  // Sets what is called, or nothing. REQUIRES: no gradients are ready, or the
  // queue is drained, or ranks announce moves.
  void SetEagerUpdate(EagerUpdate update) { eager_update_ = std::move(update); }
  bool updates_eagerly() const { return eager_update_ != nullptr; }

 private:
  static constexpr int kTakesPart = -1;
  // Announces the move that `proposal` names, and enqueues it; elsewhere
  // enqueues Perform. `what` names that in errors.
  StatusOr<Event> Start(const Proposal& proposal, std::string_view what,
                        uint64_t bytes, int slot);
  // Proposes a move, then does what other ranks propose until it is this one's
  // turn, on the queue's thread.
  Status Perform(const Proposal& proposal, int slot);
  // Enqueues the move that `led` proposes, one of `proposals`, which are by
  // rank. `slot`: where this rank gathers parameters; kTakesPart where it only
  // takes part. `timeout`: seconds, of a meeting of the ranks.
  Status Move(const Proposal& led, const std::vector<Proposal>& proposals,
              int slot, double timeout, Stream* stream);
  Status MoveGrads(const Proposal& led, const std::vector<Proposal>& proposals,
                   double timeout, Stream* stream);
  Status MoveParams(const Proposal& led, int slot, Stream* stream);

  const Dependencies deps_;
  const Plan& plan_;
  EagerUpdate eager_update_;
  std::vector<std::vector<const void*>> in_place_;
  std::vector<Proposal> announced_;  // By rank; only this rank's is set.
  std::vector<Event> last_;          // By unit.
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_UNITS_UNIT_TRANSFERS_H_
