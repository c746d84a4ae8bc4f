// SPDX-License-Identifier: Apache-2.0
//
// BufferPlanner: computes the layout, dtypes and states of each flat buffer.

#ifndef SHARD_CORE_FLAT_BUFFER_PLANNER_H_
#define SHARD_CORE_FLAT_BUFFER_PLANNER_H_

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/flat/inventory.h"
#include "core/flat/layout.h"
#include "core/flat/plan.h"
#include "core/model/model.h"

namespace shard {

class BufferPlanner {
 public:
  // Plans buffers of `kinds`. Stores in `state_lists` the lists to which
  // FlatBufferPlan::states point: one for all buffers that keep the same
  // states, of which there may be very many. All arguments must outlive the
  // planner. REQUIRES: options that Plan::Create checked.
  BufferPlanner(const Model& model, const PlanOptions& options,
                const std::vector<BufferKind>& kinds,
                std::deque<std::vector<StatePlan>>* state_lists);

  // Sets `to` to the plan of a buffer. `slots` has its parameters, in
  // module-walk order, and must outlive the plan's layout. `ranges` has the
  // range of each, which changes the slots' offsets and order; it is empty when
  // the buffer is cut evenly.
  Status Plan(const BufferInventory& buffer, std::span<Slot> slots,
              std::span<const int32_t> ranges, FlatBufferPlan* to);

  // Returns the largest workspace for stepping a parameter of the buffers so
  // far: that of the optimizer, and an fp32 copy of a parameter that has no
  // other.
  int64_t workspace_numel() const { return workspace_numel_; }
  // Returns the largest workspace for stepping equal parameters of a rank, in
  // one of the buffers so far, on a GPU.
  int64_t gpu_workspace_numel() const { return gpu_workspace_numel_; }

 private:
  // The common part of the plans of all buffers of a kind.
  struct Kind {
    FlatBufferPlan plan;  // Without its unit and layout.
    FlatLayout::Alignment alignment;
    // Null when no optimizer steps the parameters whole.
    const TensorTraits* tensor;
  };

  Kind MakeKind(const BufferKind& kind) const;
  std::vector<StatePlan> StatesOf(const FlatBufferPlan& plan) const;

  const std::vector<int64_t>& ShapeOf(const Slot& slot) const {
    return model_.params()[static_cast<size_t>(slot.param)].shape;
  }

  // Count the workspace of the parameters of `plan`.
  Status AddWorkspace(const Kind& kind, const FlatBufferPlan& plan);
  Status AddGpuWorkspace(const TensorTraits& tensor, const FlatLayout& layout);

  // Makes separate layouts for states that do not have the parameters' shapes.
  Status LayOutStates(const Kind& kind, std::span<const Slot> params,
                      std::span<const int32_t> ranges,
                      std::vector<StatePlan>* states) const;

  const Model& model_;
  const PlanOptions& options_;
  std::deque<std::vector<StatePlan>>* state_lists_;
  std::vector<Kind> kinds_;  // By BufferInventory::kind.
  int64_t workspace_numel_ = 0;
  int64_t gpu_workspace_numel_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_FLAT_BUFFER_PLANNER_H_
