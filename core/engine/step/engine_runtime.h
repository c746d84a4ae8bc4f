// SPDX-License-Identifier: Apache-2.0
//
// EngineRuntime: the components of an engine that depend on its plan. An engine
// whose plan changes makes another runtime.

#ifndef SHARD_CORE_ENGINE_STEP_ENGINE_RUNTIME_H_
#define SHARD_CORE_ENGINE_STEP_ENGINE_RUNTIME_H_

#include <array>
#include <memory>
#include <optional>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/device/host_stream.h"
#include "core/engine/memory/bound_copies.h"
#include "core/engine/memory/bound_memory.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/step/peer_step.h"
#include "core/engine/step/step.h"
#include "core/engine/transfer/comm_queue.h"
#include "core/engine/transfer/published_units.h"
#include "core/engine/transfer/transfers.h"
#include "core/engine/units/units.h"
#include "core/flat/plan.h"

namespace shard {

class EngineRuntime {
 public:
  struct Options {
    double timeout;
    bool allow_missing;
    bool overlap;
    Transport transport;
    // A step of several ranks is one kernel on each GPU, where that is
    // possible.
    bool one_kernel;
    // Both must outlive the runtime.
    const BoundMemory* bound;
    HostStream* host;
  };

  // Makes and connects the components. COLLECTIVE. `comm` is used by the engine
  // alone; `comm` and `device` must outlive the result. `before` is null, or
  // the runtime that this one replaces, as for EngineMemory::Allocate; both
  // have the same sets of ranks, and so the same collectives and notices.
  static StatusOr<std::unique_ptr<EngineRuntime>> Create(
      std::shared_ptr<const Plan> plan, Communicator* comm, Device* device,
      const Options& options, const EngineRuntime* before,
      const Deadline& deadline);

  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  const EngineMemory& memory() const { return *memory_; }
  HostStream& host() const { return *host_; }
  Stream& compute() const { return *compute_; }
  BoundCopies& bound_copies() const { return *copies_; }
  // Returns the collectives of the plan's sets of ranks (PlanSets), and the
  // memory for reductions that they were opened with.
  Collectives& collectives() const { return *collectives_; }
  const ReduceMemory& reduce_memory() const { return reduce_; }
  Transfers& transfers() const { return *transfers_; }
  // Returns the step of one kernel; null where it was not asked for.
  const PeerStep* peers() const { return peers_.get(); }
  // Returns the stream of transfers that somebody waits for: the queue, after a
  // meeting in its work, or else a call, which has drained the queue. On "cpu"
  // it is inline.
  Stream& moving() const { return *moving_; }
  CommQueue& queue() const { return *queue_; }
  Units& units() const { return *units_; }
  Stepper& stepper() const { return *stepper_; }

  // Begin and end a capture, as Stream's, of the host's stream and of all of
  // the engine's. REQUIRES: Synchronize was called. Local. EndCapture returns
  // CaptureError, which ends with the capture.
  Status BeginCapture();
  Status EndCapture();
  // Returns the first of these streams' errors since BeginCapture.
  Status CaptureError() const;

  // Waits until the engine's streams have run all work they were given. Local.
  // Returns the first error.
  Status Synchronize(const Deadline& deadline) const;
  // Adds the ranks that are late, where they are known, to the error of a wait
  // that has ended at `deadline`. Returns other statuses as they are.
  Status WithLateRanks(const Status& status, const Deadline& deadline) const;
  // Waits until the streams, the host's too, have run all work they were given,
  // which a failed call may have left them: before any component is destroyed.
  // Work that goes on all the same updates nothing. Local. Errors are dropped.
  void WaitForStreams(const Deadline& deadline) const noexcept;

 private:
  EngineRuntime() = default;

  // Opens collectives, unless `collectives_` is set, and allocates the memory.
  Status AllocateMemory(Communicator* comm, Device* device,
                        const Options& options, const EngineRuntime* before,
                        const Deadline& deadline);
  Status Connect(Communicator* comm, Device* device, const Options& options);
  void SetCaptures(bool captures);
  // Returns the streams that are part of a capture.
  std::array<Stream*, 4> CapturedStreams() const;

  // The streams are destroyed first, the queue's before the others: their work
  // uses the components, the meetings of a step that nobody has waited for too.
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<Collectives> collectives_;
  ReduceMemory reduce_;  // Of the collectives.
  std::shared_ptr<Notices> proposals_;
  std::optional<EngineMemory> memory_;
  HostStream* host_ = nullptr;
  std::unique_ptr<BoundCopies> copies_;
  std::unique_ptr<PeerStep> peers_;
  std::unique_ptr<Transfers> transfers_;
  std::optional<PublishedUnits> published_;
  std::unique_ptr<Units> units_;
  std::unique_ptr<Stepper> stepper_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> moving_;
  std::unique_ptr<Stream> updates_;  // As Stepper::Dependencies has it.
  std::unique_ptr<CommQueue> queue_;
  // The registration of the handler that fails the streams.
  std::shared_ptr<void> on_failure_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_ENGINE_RUNTIME_H_
