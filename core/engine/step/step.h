// SPDX-License-Identifier: Apache-2.0
//
// Stepper: turns gradients into updated parameters on every rank. For each
// buffer the gradients are reduced where they were not yet, this rank's range
// is updated, and the updated range is published; while one buffer is updated,
// others are being sent.
//
// A step is enqueued as a whole: its values lie in a StepBlock, where a norm
// pass leaves the scale of the gradients and whether the step is skipped. The
// updates of a skipped step write nothing. The host waits once, for the event
// that ends the step.
//
// Where memory is shared and gradients are whole, a step without a norm is one
// pass: each rank sums its range over all ranks' gradients, updates, and stores
// the parameters where everyone reads them. A step with a norm is two passes:
// the first sums the gradients for the norm, and keeps fp32 sums in this rank's
// own gradients (nobody else reads that range of them); the second updates from
// these sums. Gradients of 2 bytes cannot hold the sum without rounding it, so
// they are summed twice. A norm of type p takes one more pass, for the largest
// magnitude.
//
// Cost in bytes per element of the range, fp32, W ranks, S states: 4 W + 8 + 8
// S in one pass; 4 W + 4 + 12 + 8 S in two; 12 + 8 S where the sum was made
// before. Ranks communicate in one barrier, or two where a rank's streams have
// threads, and with a norm in an 88-byte gather, or two for type p.
//
// The norm's bits depend on the summed gradients alone (kernels/cpu/norm.h), so
// no partition and no buffer size changes a bit of the result.

#ifndef SHARD_CORE_ENGINE_STEP_STEP_H_
#define SHARD_CORE_ENGINE_STEP_STEP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/device/host_stream.h"
#include "core/device/update_list.h"
#include "core/engine/memory/bound_copies.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/step/launch_watch.h"
#include "core/engine/step/peer_step.h"
#include "core/engine/step/step_latch.h"
#include "core/engine/transfer/comm_queue.h"
#include "core/engine/transfer/published_units.h"
#include "core/engine/transfer/transfers.h"
#include "core/flat/plan.h"
#include "kernels/cpu/norm.h"

namespace shard {

struct StepReport {
  int64_t step = 0;       // Steps done so far, skipped ones not counted.
  double grad_norm = -1;  // Before clipping; -1: not computed.
  double loss_scale = 1;  // The loss scale that gradients were divided by.
  bool skipped = false;
  uint64_t bytes_moved = 0;
  double seconds_wait = 0;
  double seconds_reduce = 0;
  double seconds_update = 0;
  double seconds_total = 0;
  CommCounters comm;   // Since the previous step.
  int32_t active = 0;  // Ranks that have not joined.
};

// The form of a step says which work is enqueued for it. The step's values are
// read from the host's block when that runs, so a graph of one step does others
// of the same form.
struct StepForm {
  bool has_norm = false;
  bool has_second_pass = false;  // Of the norm.
  // Parameters do different steps, and rows of constants.
  bool by_param = false;
  size_t num_rows = 0;
  std::vector<int> ns_steps;  // Of Muon, by group; 0 for others.

  // Returns what differs, "" for nothing.
  std::string DifferenceTo(const StepForm& other) const;
};

// The bytes that a step moves in the parts that it may leave out.
struct StepBytes {
  uint64_t norm[2] = {};  // By pass.
  uint64_t update = 0;
};

class Stepper {
 public:
  struct Dependencies {
    const Plan* plan;
    const EngineMemory* memory;
    BoundCopies* copies;
    Communicator* comm;
    Device* device;
    HostStream* host;
    Stream* compute;
    Collectives* collectives;
    PeerStep* peers;  // Null: a step is made of several launches.
    Transfers* transfers;
    CommQueue* queue;
    PublishedUnits* published;
    // Where states are offloaded: the stream of the updates of a begun step,
    // which transfers of other units pass. Null elsewhere: such updates are
    // work of the queue.
    Stream* updates;
    double timeout;  // Seconds, of a wait for work of the queue.
    // Parameters may still be in transfer when the step returns: the host
    // acquires each unit before it reads the unit's parameters.
    bool overlap;
  };

  // All of `deps` must outlive the result.
  static StatusOr<std::unique_ptr<Stepper>> Create(const Dependencies& deps);
  ~Stepper();

  // Enqueues a step. COLLECTIVE. `meets`: the compute streams of the ranks meet
  // before the step, which uses memory of other ranks; the same on all ranks.
  // `together`: the ranks add gradients and update in one kernel, where they
  // may (CanUpdateTogether). `reduced`: by buffer of the plan, the event after
  // which its gradients are reduced; empty with `together`. REQUIRES:
  // every rank has entered the step, and the result of the step before was
  // taken. The host's next work comes when nobody reads gradients any more, and
  // every rank sees all new parameters, in the memory that it bound too, or,
  // with overlap, will see them when it acquires their units. Adds to the times
  // of `report`, but for seconds_total and those of communication.
  Status Run(const StepInput& input, bool meets, bool together,
             const std::vector<Event>& reduced, const Deadline& deadline,
             StepReport* report);

  // Returns whether ranks may make the step together (PeerStep), if no
  // gradients were reduced before it. The same on all ranks.
  bool CanUpdateTogether(const StepInput& input) const {
    return deps_.peers != nullptr && deps_.peers->why_not().empty() &&
           !begun_ && !input.needs_norm();
  }

  // Waits for the one event that ends the last step of Run, and fills the
  // result in `report`: skipped and grad_norm; adds to bytes_moved and to
  // seconds_update. After a skipped step no parameters are on their way.
  Status AwaitResult(const Deadline& deadline, StepReport* report) const;
  // Returns whether that event is done.
  bool IsFinished() const { return finished_.IsDone(); }

  // Fills the host's block for the replay of a step that was captured and moves
  // `bytes`, and returns the form that the step has. REQUIRES: no step is on
  // its way.
  StepForm LatchReplay(const StepInput& input, const StepBytes& bytes);
  // Makes `finished` the event that ends the last step.
  void SetFinished(Event finished) { finished_ = std::move(finished); }
  // Sets whether Run enqueues a part of a graph from now on.
  void SetCaptures(bool captures) { captures_ = captures; }
  // Watches the launches of graphs from now on, where there are several ranks.
  // COLLECTIVE, before the first capture and as often as there is one.
  Status WatchLaunches(const Deadline& deadline);
  // Enqueues the place in the graph where its launch begins.
  void EnqueueBegin() { latch_.CountBegin(deps_.compute); }
  // Returns the launches of graphs. One is expected after LatchReplay.
  GraphLaunches& launches() { return latch_.launches(); }
  // Returns the error that has ended collectives of launches; OK while they go
  // on.
  Status LaunchError() const;
  // Waits for the end of a launch that nobody expected, if one runs that may
  // wait for other ranks; its watch ends it then. Returns the error of the
  // collectives, or kDeadlineExceeded.
  Status AwaitStray(const Deadline& deadline) const;
  // Returns whether the host has to acquire units to see a step's results.
  bool overlaps() const { return deps_.overlap; }
  // Returns the form of the step that was latched last, with this input.
  StepForm FormOf(const StepInput& input) const;
  // Returns the bytes of the step of the last Run or LatchReplay.
  const StepBytes& bytes() const { return bytes_; }

  // Begins a step: from here on UpdateEagerly is called for units whose
  // gradients are ready on all ranks, and Run does the rest, with the same
  // input. REQUIRES: no norm; the result of the step before was taken.
  void Begin(const StepInput& input, const Deadline& deadline);
  // Enqueues the update of the unit and its publishing on a stream whose work
  // is in the order of the queue; where there is a stream for updates, that of
  // the update alone, there. COLLECTIVE; on any thread. `in_place` as in
  // UnitTransfers::EagerUpdate.
  Status UpdateEagerly(int32_t unit,
                       const std::vector<std::vector<const void*>>* in_place,
                       Stream* stream);

  // Makes updates that a device has yet to come to write nothing, where work of
  // collectives may be ended from outside of it, as it is after their failure.
  // Any thread.
  void DropUpdates() {
    if (on_failure_ != nullptr) latch_.Poison();
  }

 private:
  // This rank's part of a trainable buffer.
  struct Part {
    size_t buffer;  // Index into the plan's buffers.
    size_t range;   // Index into the ranges of list_.
  };

  Stepper(const Dependencies& deps, UpdateList list, StepLatch latch,
          DeviceMemory sums);

  // Gives kernels the values of the step.
  void Latch(const StepInput& input, const Deadline& deadline);
  // Makes the updates that a stream is given from here on write nothing where
  // the gradients did not come. REQUIRES: the stream comes here after these.
  void CheckGradients(Stream* stream) const;
  // Enqueues a pass over the gradients, the gathering of the ranks' sums, and
  // what follows from them. COLLECTIVE.
  Status EnqueueNorm(NormPass pass, StepReport* report);
  // Enqueues a meeting of the ranks on the compute stream.
  template <typename Meeting>
  void EnqueueMeeting(std::string_view what, const Meeting& meeting);
  // Enqueues the end of publishing, on the compute stream.
  Status EnqueueFinish(const Deadline& deadline);
  // Enqueues the updates of all units at once, after all events, or without
  // events and `together` with the other ranks. REQUIRES: nothing is published
  // after them; no unit is updated yet.
  Status EnqueueUpdateOfAll(bool together, const std::vector<Event>& events,
                            const Deadline& deadline, StepReport* report);
  // Enqueues the updates unit by unit, each buffer after its event.
  Status EnqueueUpdates(const std::vector<Event>& events,
                        const Deadline& deadline, StepReport* report);
  // Returns the bytes that the update of a part of a list moves unless the step
  // is skipped. `gradients` as in Stream::Update.
  uint64_t BytesOf(const UpdateList& list, const Part& part,
                   const GradientSources* gradients) const;
  // Enqueue the publishing of a buffer, on a stream, and on the queue.
  Status Publish(size_t buffer, Stream* stream);
  void EnqueuePublish(int32_t unit, size_t buffer);

  // Returns the NormSum of this rank, and those of all ranks after it.
  NormSum* sums() const { return reinterpret_cast<NormSum*>(sums_.data()); }

  const Dependencies deps_;
  const UpdateList list_;
  StepLatch latch_;
  const DeviceMemory sums_;
  std::vector<std::vector<Part>> parts_;  // By unit.

  // The step on its way.
  bool begun_ = false;
  bool captures_ = false;
  Event latched_;  // After it, kernels may read the block.
  Deadline latch_deadline_ = Deadline::After(0);
  Deadline meeting_deadline_ = Deadline::After(0);
  Event finished_;
  StepBytes bytes_;

  // The state of a step that was begun. The queue's thread uses it where the
  // ranks meet there.
  std::vector<bool> updated_;  // By unit.
  uint64_t eager_bytes_ = 0;

  // The registration of the handler that drops updates; null: collectives are
  // never ended from outside of the device.
  std::shared_ptr<void> on_failure_;
  std::unique_ptr<LaunchWatch> launch_watch_;  // From the first capture on.
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_STEP_H_
