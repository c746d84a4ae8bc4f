// SPDX-License-Identifier: Apache-2.0
//
// StepStrategy: how summed gradients become updated parameters on every rank.
//
// A strategy is told what to do by values all ranks have agreed on, so that it
// takes the same way through its collectives on each.

#ifndef SHARD_CORE_ENGINE_STEP_H_
#define SHARD_CORE_ENGINE_STEP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/engine/buffers.h"
#include "core/engine/range.h"
#include "core/engine/update.h"
#include "core/flat/plan.h"
#include "core/optim/optimizer.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/norm.h"

namespace shard {

// The same on every rank.
struct StepInput {
  const std::vector<Optimizer>* optimizers;  // By group.
  int64_t step;           // The number of the step to do, from 1.
  double gradient_scale;  // What the sum of gradients is multiplied by.
  double max_grad_norm;   // 0: no clipping by norm.
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
};

class StepStrategy {
 public:
  virtual ~StepStrategy() = default;

  // COLLECTIVE. REQUIRES: every rank has entered the step, so its gradients
  // are complete. On return every rank sees all new parameters and nobody
  // reads gradients any more. Fills all of `report` but step and
  // seconds_total, and adds to seconds_wait.
  virtual Status Run(const StepInput& input, const Deadline& deadline,
                     StepReport* report) = 0;
};

// The step where ranks see each other's memory.
//
// Without a norm it is one pass: each rank sums its range over all ranks'
// gradients, updates, and stores the parameters where everyone reads them.
// With a norm it is two: one sums the gradients for the norm, and keeps fp32
// sums in this rank's own gradients (nobody else reads that range of them); the
// other updates from there. Gradients of 2 bytes cannot hold the sum without
// rounding it, so they are summed twice. A norm of type p takes another pass,
// for the largest magnitude.
//
// Bytes per element of the range, fp32, W ranks, S states: 4 W + 8 + 8 S in one
// pass; 4 W + 4 + 12 + 8 S in two. A barrier, and with a norm an 88-byte
// gather, or two for type p.
//
// The norm's bits depend on the summed gradients alone (kernels/cpu/norm.h), so
// no partition and no bucket size changes a bit of the result.
class DirectStep : public StepStrategy {
 public:
  // REQUIRES: comm->direct(); all outlive this. `workspace` has
  // plan.workspace_numel() elements; there is a `blas` if a group's optimizer
  // is Muon.
  DirectStep(Communicator* comm, const Plan& plan,
             const std::vector<EngineBuffer>& buffers, float* workspace,
             std::optional<Blas> blas);

  Status Run(const StepInput& input, const Deadline& deadline,
             StepReport* report) override;

 private:
  // COLLECTIVE. The norm of all gradients, before they are scaled.
  StatusOr<double> GradientNorm(const StepInput& input,
                                const Deadline& deadline, StepReport* report);
  // COLLECTIVE. One pass over the gradients; see Range::AddNorm.
  StatusOr<double> NormPass(NormType type, double p, double reference,
                            bool reduced, const Deadline& deadline,
                            StepReport* report);
  void Update(const StepInput& input, double scale, bool reduced,
              StepReport* report);
  uint64_t UpdateRange(const Range& range, const Optimizer& optimizer,
                       const UpdateInput& input) const;

  Communicator* comm_;
  const PlanOptions* options_;
  std::vector<Range> ranges_;
  float* workspace_;
  std::optional<Blas> blas_;
  std::vector<NormSum> gathered_;  // By rank.
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_H_
