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
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/engine/buffers.h"
#include "core/optim/optimizer.h"

namespace shard {

// The same on every rank.
struct StepInput {
  const Optimizer* optimizer;
  int64_t step;           // The number of the step to do, from 1.
  double gradient_scale;  // What the sum of gradients is multiplied by.
  double max_grad_norm;   // 0: no clipping.
  bool skip_nonfinite;    // Implied by clipping.
};

struct StepReport {
  int64_t step = 0;       // Steps done so far, skipped ones not counted.
  double grad_norm = -1;  // Before clipping; -1: not computed.
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
// With a norm it is two: sum into this rank's own gradients (nobody else reads
// that range of them) with the sum of squares; then update from there.
//
// Bytes per element of the range, fp32, W ranks, S states: 4 W + 8 + 8 S in one
// pass; 4 W + 4 + 12 + 8 S in two. Two barriers, or two and an 8-byte gather.
class DirectStep : public StepStrategy {
 public:
  // REQUIRES: comm->direct(); both outlive this.
  DirectStep(Communicator* comm, const std::vector<EngineBuffer>* buffers);

  Status Run(const StepInput& input, const Deadline& deadline,
             StepReport* report) override;

 private:
  // Sums over ranks; returns this rank's share of the squared norm.
  double Reduce(StepReport* report);
  // `reduced`: the sum stands in this rank's own gradients already.
  void Update(const StepInput& input, double scale, bool reduced,
              StepReport* report);

  // This rank's range of a trainable buffer. Made once, so that memory cannot
  // run out between the collectives of a step.
  struct Range {
    std::vector<const float*> sources;  // Its gradients, by rank.
    float* own_grads;
    float* param;
    float* const* states;
    size_t num_states;
    size_t count;
  };

  Communicator* comm_;
  std::vector<Range> ranges_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_H_
