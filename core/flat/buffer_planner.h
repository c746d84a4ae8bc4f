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
  // `ranges` has the range of each parameter, buffer after buffer; it is empty
  // when all buffers are cut evenly. Stores in `state_lists` the lists to which
  // FlatBufferPlan::states point: one for all buffers that keep the same
  // states, of which there may be very many. All arguments must outlive the
  // planner. REQUIRES: options that Plan::Create checked.
  BufferPlanner(const Model& model, const PlanOptions& options,
                const Inventory& inventory, std::span<const int32_t> ranges,
                std::deque<std::vector<StatePlan>>* state_lists);

  // Sets `to` to the plan of one of the inventory's buffers.
  Status Plan(const BufferInventory& buffer, FlatBufferPlan* to) const;

  // Returns the workspace for stepping the parameters of `buffer`: that of the
  // optimizer, and an fp32 copy of a parameter that has no other.
  StatusOr<int64_t> WorkspaceNumel(const FlatBufferPlan& buffer) const;

 private:
  // The common part of the plans of all buffers of a kind.
  struct Kind {
    FlatBufferPlan plan;  // Without its unit and layout.
    FlatLayout::Alignment alignment;
  };

  Kind MakeKind(const BufferKind& kind) const;
  std::vector<StatePlan> StatesOf(const FlatBufferPlan& plan) const;
  std::span<const int32_t> RangesOf(const BufferInventory& buffer) const {
    return buffer.PartOf(ranges_);
  }

  // Makes separate layouts for states that do not have the parameters' shapes.
  Status LayOutStates(const BufferInventory& buffer,
                      std::vector<StatePlan>* states) const;

  const Model& model_;
  const PlanOptions& options_;
  const Inventory& inventory_;
  std::span<const int32_t> ranges_;
  std::deque<std::vector<StatePlan>>* state_lists_;
  std::vector<Kind> kinds_;  // By BufferInventory::kind.
};

}  // namespace shard

#endif  // SHARD_CORE_FLAT_BUFFER_PLANNER_H_
