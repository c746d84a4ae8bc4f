// SPDX-License-Identifier: Apache-2.0
//
// Stepper: how gradients become updated parameters on every rank. Buffer by
// buffer: its gradients are reduced where they were not yet, its range is
// updated, and published; while one is updated others are on their way.
//
// Where memory is shared and gradients are whole, a step without a norm is one
// pass: each rank sums its range over all ranks' gradients, updates, and stores
// the parameters where everyone reads them. With a norm it is two: one sums the
// gradients for the norm, and keeps fp32 sums in this rank's own gradients
// (nobody else reads that range of them); the other updates from there.
// Gradients of 2 bytes cannot hold the sum without rounding it, so they are
// summed twice. A norm of type p takes another pass, for the largest magnitude.
//
// Bytes per element of the range, fp32, W ranks, S states: 4 W + 8 + 8 S in one
// pass; 4 W + 4 + 12 + 8 S in two; 12 + 8 S where the sum was made before. A
// barrier, and with a norm an 88-byte gather, or two for type p.
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
#include "core/engine/memory/buffers.h"
#include "core/engine/step/range.h"
#include "core/engine/step/update.h"
#include "core/engine/transfer/comm_queue.h"
#include "core/engine/transfer/transfers.h"
#include "core/engine/units/units.h"
#include "core/flat/plan.h"
#include "core/optim/optimizer.h"
#include "kernels/cpu/norm.h"

namespace shard {

// The same on every rank.
struct StepInput {
  const std::vector<Optimizer>* optimizers;  // By group.
  int64_t step;                // The number of the step to do, from 1.
  const int64_t* param_steps;  // As in UpdateInput.
  double gradient_scale;       // What the sum of gradients is multiplied by.
  double max_grad_norm;        // 0: no clipping by norm.
  NormType norm_type;
  double norm_p;        // Of NormType::kP.
  double clip_value;    // 0: no clipping by value.
  bool skip_nonfinite;  // Implied by clipping by norm.
};

struct StepReport {
  int64_t step = 0;       // Steps done so far, skipped ones not counted.
  double grad_norm = -1;  // Before clipping; -1: not computed.
  double loss_scale = 1;  // What the gradients were divided by for the loss.
  bool skipped = false;
  uint64_t bytes_moved = 0;
  double seconds_wait = 0;
  double seconds_reduce = 0;
  double seconds_update = 0;
  double seconds_total = 0;
  CommCounters comm;   // Since the step before.
  int32_t active = 0;  // Ranks that have not joined.
};

class Stepper {
 public:
  struct Parts {
    const Plan* plan;
    const EngineMemory* memory;
    Communicator* comm;
    Device* device;
    Stream* compute;
    Stream* ahead;  // What RunAhead computes on.
    Transfers* transfers;
    CommQueue* queue;
    Units* units;
    // Parameters may still be on their way when the step returns: the host
    // acquires each unit before it reads them.
    bool overlap;
    double timeout;  // Of what runs on the queue.
  };

  // All of `parts` outlive the result.
  static StatusOr<std::unique_ptr<Stepper>> Create(const Parts& parts);

  // COLLECTIVE. REQUIRES: every rank has entered the step, so its gradients
  // are complete. On return nobody reads gradients any more, and every rank
  // sees all new parameters, or, with overlap, will when it acquires them.
  // Fills all of `report` but step, seconds_total and what concerns
  // communication, and adds to seconds_wait.
  Status Run(const StepInput& input, const Deadline& deadline,
             StepReport* report);

  // From here on RunAhead is called for units whose gradients are ready on all
  // ranks, and Run does the rest, with the same input. REQUIRES: no norm.
  // `optimizers` is copied.
  void Begin(const StepInput& input);
  // COLLECTIVE, on whichever thread: updates and publishes the unit.
  // `in_place` as in Units::Ahead.
  Status RunAhead(int32_t unit,
                  const std::vector<std::vector<const void*>>* in_place,
                  const Deadline& deadline);

  // This rank's ranges of the trainable buffers.
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  explicit Stepper(const Parts& parts) : parts_(parts) {}

  // COLLECTIVE. The norm of all gradients, before they are scaled.
  StatusOr<double> GradientNorm(const StepInput& input,
                                const Deadline& deadline, StepReport* report);
  // COLLECTIVE. One pass over the gradients; see Range::AddNorm.
  StatusOr<double> NormPass(NormType type, double p, double reference,
                            bool reduced, const Deadline& deadline,
                            StepReport* report);
  // Unit by unit, each buffer once its event is done.
  Status UpdateUnits(const StepInput& input, double scale, bool reduced,
                     const std::vector<Event>& events, const Deadline& deadline,
                     StepReport* report);
  UpdateInput UpdateInputOf(const StepInput& input, double scale,
                            bool reduced) const;
  // Bytes.
  uint64_t UpdateRange(const Range& range,
                       const std::vector<Optimizer>& optimizers,
                       const UpdateInput& input, Stream* stream) const;
  Status Publish(size_t buffer, const Deadline& deadline);
  void EnqueuePublish(int32_t unit, size_t buffer);

  const Parts parts_;
  std::vector<Range> ranges_;                 // Of trainable buffers.
  std::vector<std::vector<size_t>> by_unit_;  // Indices into ranges_.
  std::vector<std::vector<size_t>> buffers_;  // The same, into the plan's.
  DeviceMemory norm_;                         // A NormSum.
  std::vector<NormSum> gathered_;             // By rank.

  // Of a step that was begun; the queue's thread has them while it runs.
  std::vector<Optimizer> begun_optimizers_;
  UpdateInput begun_ = {};
  std::vector<bool> done_;  // By unit.
  uint64_t bytes_ahead_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_STEP_H_
