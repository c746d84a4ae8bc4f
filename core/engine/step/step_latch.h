// SPDX-License-Identifier: Apache-2.0
//
// StepLatch: the StepBlock of an engine, and the host's half of the values in
// it.
//
// The host has a block, and kernels have one: the same one where tensors lie in
// the host's memory. Elsewhere kernels have a copy in the device's memory, to
// which the host's block is copied before a step's kernels (Upload), and from
// which the results are copied back after them (Download), both in the order of
// streams.
//
// All memory is allocated when the latch is made: a row for every trainable
// parameter, because each may have done another number of steps. Rows that no
// step needs are never touched.
//
// Thread-compatible.

#ifndef SHARD_CORE_ENGINE_STEP_STEP_LATCH_H_
#define SHARD_CORE_ENGINE_STEP_STEP_LATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/device/step_block.h"
#include "core/engine/step/graph_launches.h"
#include "core/flat/plan.h"
#include "core/optim/optimizer.h"
#include "kernels/cpu/norm.h"

namespace shard {

// The input of a step, the same on every rank.
struct StepInput {
  const std::vector<Optimizer>* optimizers;  // By group.
  int64_t step;  // The number of the step to do, from 1.
  // By ParamPlace::position: the number of the step that each parameter does,
  // from 1, or 0 where the parameter is not stepped. Null: `step` for all.
  const int64_t* param_steps;
  double gradient_scale;  // Factor of the sum of gradients.
  double max_grad_norm;   // 0: no clipping by norm.
  NormType norm_type;
  double norm_p;        // The p of NormType::kP.
  double clip_value;    // 0: no clipping by value.
  bool skip_nonfinite;  // Implied by clipping by norm.

  bool needs_norm() const { return max_grad_norm > 0 || skip_nonfinite; }
};

class StepLatch {
 public:
  static StatusOr<StepLatch> Create(const Plan& plan, Device* device);

  // Fills the host's block with the values of a step, which is not skipped
  // until a kernel finds that it is. Allocates nothing. REQUIRES: no step is on
  // its way.
  void Latch(const StepInput& input);

  // Returns the rows of constants of the last Latch.
  size_t num_rows() const { return made_rows_; }

  // Make the kernels' block that of the host, and give the host the results of
  // a norm. Upload returns the event after which kernels of other streams may
  // read the block. Download comes before updates, which may read the host's.
  Event Upload(Stream* stream) const;
  void Download(Stream* stream) const;

  // Makes the updates of a GPU write nothing that come, in the order of its
  // streams, after an UploadPoison that runs after this. Any thread, for good.
  // REQUIRES: kernels have a block of their own.
  void Poison();
  // Tells the kernels' block whether Poison was called when the stream comes to
  // it. What they read does not change from there to the next such copy: an
  // update is made as a whole or not at all.
  void UploadPoison(Stream* stream) const;

  // For a step in a graph: its launches, and what counts the begin and the end
  // of one where a stream comes to it.
  GraphLaunches& launches() { return launches_; }
  const GraphLaunches& launches() const { return launches_; }
  void CountBegin(Stream* stream) const;
  void CountEnd(Stream* stream) const;

  const StepBlock& host_block() const {
    return *reinterpret_cast<const StepBlock*>(memory_.data());
  }
  StepBlock* kernels_block() const {
    return reinterpret_cast<StepBlock*>(
        (copies_ ? device_memory_ : memory_).data());
  }
  StepBlocks blocks() const { return {&host_block(), kernels_block()}; }

 private:
  StepLatch() = default;

  // Makes one row for each group, or one for each group and number of steps.
  void MakeRows(const StepInput& input);
  void MakeRowsByStep(const StepInput& input);

  uint64_t seed_ = 0;
  // The words of the launches, behind the block, the rows and their indices.
  // The device's first one is the count.
  size_t launches_at_ = 0;
  // The positions of the trainable parameters, by group.
  std::vector<std::vector<uint32_t>> positions_;
  // The block, its rows, and the row of each parameter.
  DeviceMemory memory_;
  bool copies_ = false;
  DeviceMemory device_memory_;  // The same, where the latch copies.
  GraphLaunches launches_;      // Those of memory_.
  StepRow* rows_ = nullptr;
  uint32_t* param_rows_ = nullptr;
  size_t made_rows_ = 0;
  std::vector<uint32_t> by_step_;  // Rows of one group, while they are made.
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_STEP_LATCH_H_
