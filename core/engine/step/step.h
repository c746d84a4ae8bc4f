// SPDX-License-Identifier: Apache-2.0
//
// Stepper: turns gradients into updated parameters on every rank. For each
// buffer the gradients are reduced where they were not yet, this rank's range
// is updated, and the updated range is published; while one buffer is updated,
// others are being sent.
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
// before. Ranks communicate in one barrier, and with a norm in an 88-byte
// gather, or two for type p.
//
// The norm's bits depend on the summed gradients alone (kernels/cpu/norm.h), so
// no partition and no buffer size changes a bit of the result.

#ifndef SHARD_CORE_ENGINE_STEP_STEP_H_
#define SHARD_CORE_ENGINE_STEP_STEP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/memory/bound_copies.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/step/owned_range.h"
#include "core/engine/step/update.h"
#include "core/engine/transfer/comm_queue.h"
#include "core/engine/transfer/published_units.h"
#include "core/engine/transfer/transfers.h"
#include "core/flat/plan.h"
#include "core/optim/optimizer.h"
#include "kernels/cpu/norm.h"

namespace shard {

// The input of a step, the same on every rank.
struct StepInput {
  const std::vector<Optimizer>* optimizers;  // By group.
  int64_t step;                // The number of the step to do, from 1.
  const int64_t* param_steps;  // As in UpdateInput.
  double gradient_scale;       // Factor of the sum of gradients.
  double max_grad_norm;        // 0: no clipping by norm.
  NormType norm_type;
  double norm_p;        // The p of NormType::kP.
  double clip_value;    // 0: no clipping by value.
  bool skip_nonfinite;  // Implied by clipping by norm.
};

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

class Stepper {
 public:
  struct Dependencies {
    const Plan* plan;
    const EngineMemory* memory;
    BoundCopies* copies;
    Communicator* comm;
    Device* device;
    Stream* host;
    Stream* compute;
    Stream* eager;  // The stream of UpdateEagerly.
    Transfers* transfers;
    CommQueue* queue;
    PublishedUnits* published;
    // Parameters may still be in transfer when the step returns: the host
    // acquires each unit before it reads the unit's parameters.
    bool overlap;
    double timeout;  // Seconds, of work on the queue.
  };

  // All of `deps` must outlive the result.
  static StatusOr<std::unique_ptr<Stepper>> Create(const Dependencies& deps);

  // Does a step. COLLECTIVE. `reduced`: by buffer of the plan, the event after
  // which its gradients are reduced. REQUIRES: every rank has entered the step,
  // so all gradients are complete. On return nobody reads gradients any more,
  // and every rank sees all new parameters, in the memory that it bound too,
  // or, with overlap, will see them when it acquires their units. Fills all of
  // `report` but step, seconds_total and the fields of communication, and adds
  // to seconds_wait.
  Status Run(const StepInput& input, const std::vector<Event>& reduced,
             const Deadline& deadline, StepReport* report);

  // Begins a step: from here on UpdateEagerly is called for units whose
  // gradients are ready on all ranks, and Run does the rest, with the same
  // input. REQUIRES: no norm. `optimizers` is copied.
  void Begin(const StepInput& input, const Deadline& deadline);
  // Updates and publishes the unit, and waits until it is updated: so Run may
  // use the same workspace. COLLECTIVE; on any thread. `in_place` as in
  // UnitTransfers::EagerUpdate.
  Status UpdateEagerly(int32_t unit,
                       const std::vector<std::vector<const void*>>* in_place,
                       const Deadline& deadline);

  // Returns this rank's ranges of the trainable buffers.
  const std::vector<OwnedRange>& ranges() const { return ranges_; }

 private:
  explicit Stepper(const Dependencies& deps) : deps_(deps) {}

  // Returns the norm of all gradients, before they are scaled. COLLECTIVE.
  StatusOr<double> GradientNorm(const StepInput& input,
                                const Deadline& deadline, StepReport* report);
  // Makes one pass over the gradients; see OwnedRange::AddNorm. COLLECTIVE.
  StatusOr<double> NormPass(NormType type, double p, double reference,
                            bool reduced, const Deadline& deadline,
                            StepReport* report);
  // Updates unit by unit, each buffer after its event.
  Status UpdateUnits(const StepInput& input, double scale, bool reduced,
                     const std::vector<Event>& events, const Deadline& deadline,
                     StepReport* report);
  UpdateInput UpdateInputOf(const StepInput& input, double scale,
                            bool reduced) const;
  // Updates a range. Returns the bytes that are moved.
  uint64_t UpdateRange(const OwnedRange& range,
                       const std::vector<Optimizer>& optimizers,
                       const UpdateInput& input, Stream* stream) const;
  // Publishes a buffer, and waits until it is published.
  Status Publish(size_t buffer);
  void EnqueuePublish(int32_t unit, size_t buffer);

  const Dependencies deps_;
  std::vector<OwnedRange> ranges_;            // One per trainable buffer.
  std::vector<std::vector<size_t>> by_unit_;  // Indices into ranges_.
  std::vector<std::vector<size_t>>
      buffers_;                    // Indices into the plan's buffers.
  DeviceMemory norm_;              // A NormSum.
  std::vector<NormSum> gathered_;  // By rank.

  // The state of a step that was begun; used by the queue's thread while it
  // runs.
  std::vector<Optimizer> begun_optimizers_;
  UpdateInput begun_ = {};
  std::vector<bool> done_;  // By unit.
  uint64_t eager_bytes_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_STEP_H_
