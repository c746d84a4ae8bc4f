// SPDX-License-Identifier: Apache-2.0
//
// BufferPlanner: computes the layout, dtypes and states of each flat buffer.

#ifndef SHARD_CORE_FLAT_BUFFER_PLANNER_H_
#define SHARD_CORE_FLAT_BUFFER_PLANNER_H_

#include <array>
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
  // Stores in `state_lists` the lists to which FlatBufferPlan::states point:
  // one for all buffers that keep the same states, of which there may be very
  // many. All four arguments must outlive the planner. REQUIRES: options that
  // Plan::Create checked.
  BufferPlanner(const Model& model, const PlanOptions& options,
                const Inventory& inventory,
                std::deque<std::vector<StatePlan>>* state_lists);

  // Fills `to`, which is new. `ranges` has the range of each parameter; it is
  // empty when the buffer is cut evenly.
  Status Plan(const BufferInventory& buffer, std::span<const int32_t> ranges,
              FlatBufferPlan* to);

  // Returns the workspace for stepping the parameters of `buffer`: that of the
  // optimizer, and an fp32 copy of a parameter that has no other.
  StatusOr<int64_t> WorkspaceNumel(const FlatBufferPlan& buffer) const;

 private:
  // Returns the least number of elements whose bytes are a multiple of
  // alignment_bytes.
  int64_t ShardAlignment(DType dtype);
  std::vector<StatePlan> StatesOf(const FlatBufferPlan& plan) const;
  std::span<const StatePlan> SharedStates(const FlatBufferPlan& plan);

  // Makes separate layouts for states that do not have the parameters' shapes.
  Status LayOutStates(const BufferInventory& buffer,
                      std::span<const int32_t> ranges,
                      FlatLayout::Alignment alignment,
                      std::vector<StatePlan>* states) const;

  const Model& model_;
  const PlanOptions& options_;
  const Inventory& inventory_;
  std::deque<std::vector<StatePlan>>* state_lists_;
  // By DType; 0 where not computed yet.
  std::array<int64_t, 5> shard_alignments_{};
  // By 2 * group + has_masters; null where not computed yet.
  std::vector<const std::vector<StatePlan>*> shared_;
};

}  // namespace shard

#endif  // SHARD_CORE_FLAT_BUFFER_PLANNER_H_
