// SPDX-License-Identifier: Apache-2.0
//
// BufferPlanner: the layout, dtypes and states of each flat buffer.

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
  // Puts into `state_lists` what FlatBufferPlan::states point to: one list for
  // all buffers that keep the same states, of which there may be very many. All
  // four must outlive the planner.
  // REQUIRES: options that Plan::Create checked.
  BufferPlanner(const Model& model, const PlanOptions& options,
                const Inventory& inventory,
                std::deque<std::vector<StatePlan>>* state_lists);

  // Fills a plan that is new. `ranges`: in which range each parameter lies;
  // empty when the buffer is cut evenly.
  Status Plan(const BufferInventory& buffer, std::span<const int32_t> ranges,
              FlatBufferPlan* to);

  // What stepping the parameters of `buffer` takes at once: what the optimizer
  // asks for, and an fp32 form of a parameter that has no other.
  StatusOr<int64_t> WorkspaceNumel(const FlatBufferPlan& buffer) const;

 private:
  // The least number of elements whose bytes are a multiple of alignment_bytes.
  int64_t ShardAlignment(DType dtype);
  std::vector<StatePlan> StatesOf(const FlatBufferPlan& plan) const;
  std::span<const StatePlan> SharedStates(const FlatBufferPlan& plan);

  // Gives states that are not of the parameters' shapes layouts of their own.
  Status LayOutStates(const BufferInventory& buffer,
                      std::span<const int32_t> ranges,
                      FlatLayout::Alignment alignment,
                      std::vector<StatePlan>* states) const;

  const Model& model_;
  const PlanOptions& options_;
  const Inventory& inventory_;
  std::deque<std::vector<StatePlan>>* state_lists_;
  // By DType; 0 where none was needed yet.
  std::array<int64_t, 5> shard_alignments_{};
  // By 2 * group + has_masters; null where none was needed yet.
  std::vector<const std::vector<StatePlan>*> shared_;
};

}  // namespace shard

#endif  // SHARD_CORE_FLAT_BUFFER_PLANNER_H_
