// SPDX-License-Identifier: Apache-2.0

#include "core/flat/buffer_planner.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "core/base/element_type.h"
#include "core/base/strings.h"

namespace shard {

BufferPlanner::BufferPlanner(const Model& model, const PlanOptions& options,
                             const Inventory& inventory,
                             std::deque<std::vector<StatePlan>>* state_lists)
    : model_(model),
      options_(options),
      inventory_(inventory),
      state_lists_(state_lists),
      shared_(2 * options.groups.size(), nullptr) {}

Status BufferPlanner::Plan(const BufferInventory& buffer,
                           std::span<const int32_t> ranges,
                           FlatBufferPlan* to) {
  FlatBufferPlan& plan = *to;
  plan.unit = buffer.unit;
  plan.dtype = buffer.dtype;
  plan.trainable = buffer.trainable;
  plan.group = buffer.group;
  plan.grad_dtype = buffer.grad_dtype;
  plan.sum_dtype = options_.deterministic && IsHalf(plan.grad_dtype)
                       ? DType::kF32
                       : plan.grad_dtype;
  plan.has_masters = plan.trainable && IsHalf(buffer.dtype) &&
                     options_.masters == Masters::kF32;
  const GroupOptions& group =
      options_.groups[static_cast<size_t>(buffer.group)];

  FlatLayout::Alignment alignment;
  alignment.shard = ShardAlignment(buffer.dtype);
  if (buffer.trainable) {
    for (const StateTensor& state : group.states) {
      // Blocks that begin with their parameter hold the same elements in every
      // layout.
      if (IsQuantized(state.dtype)) {
        alignment.slot = InfoOf(state.dtype).block;
      }
    }
  }
  const auto params = inventory_.ParamsOf(buffer);
  const auto numels = inventory_.NumelsOf(buffer);
  const int world_size = options_.world_size;
  SHARD_ASSIGN_OR_RETURN(
      plan.layout,
      buffer.owned_whole
          ? FlatLayout::Owned(params, numels, ranges, world_size, alignment)
          : FlatLayout::Even(params, numels, world_size, alignment));
  if (!buffer.trainable) return Status();

  if (group.tensor == nullptr) {
    plan.states = SharedStates(plan);
    return Status();
  }
  std::vector<StatePlan> states = StatesOf(plan);
  SHARD_RETURN_IF_ERROR(LayOutStates(buffer, ranges, alignment, &states));
  plan.states = state_lists_->emplace_back(std::move(states));
  return Status();
}

int64_t BufferPlanner::ShardAlignment(DType dtype) {
  int64_t& elements = shard_alignments_[static_cast<size_t>(dtype)];
  if (elements == 0) {
    elements = options_.alignment_bytes /
               std::gcd(options_.alignment_bytes,
                        static_cast<int64_t>(DTypeSize(dtype)));
  }
  return elements;
}

std::vector<StatePlan> BufferPlanner::StatesOf(
    const FlatBufferPlan& plan) const {
  std::vector<StatePlan> states;
  for (const StateTensor& state :
       options_.groups[static_cast<size_t>(plan.group)].states) {
    states.push_back({state, nullptr});
  }
  if (plan.has_masters) {
    states.push_back({{kMasterState, DType::kF32}, nullptr});
  }
  return states;
}

std::span<const StatePlan> BufferPlanner::SharedStates(
    const FlatBufferPlan& plan) {
  const std::vector<StatePlan>*& shared =
      shared_[2 * static_cast<size_t>(plan.group) + (plan.has_masters ? 1 : 0)];
  if (shared == nullptr) shared = &state_lists_->emplace_back(StatesOf(plan));
  return *shared;
}

Status BufferPlanner::LayOutStates(const BufferInventory& buffer,
                                   std::span<const int32_t> ranges,
                                   FlatLayout::Alignment alignment,
                                   std::vector<StatePlan>* states) const {
  const GroupOptions& group =
      options_.groups[static_cast<size_t>(buffer.group)];
  const auto params = inventory_.ParamsOf(buffer);
  const auto param_numels = inventory_.NumelsOf(buffer);
  std::vector<int64_t> numels(params.size());
  // The master weights, which come last, have the parameters' layout.
  for (size_t s = 0; s < group.states.size(); ++s) {
    for (size_t i = 0; i < numels.size(); ++i) {
      const auto& shape = model_.params()[static_cast<size_t>(params[i])].shape;
      numels[i] = group.tensor->state_numel(static_cast<int>(s), shape.data(),
                                            static_cast<int>(shape.size()));
    }
    if (std::equal(numels.begin(), numels.end(), param_numels.begin())) {
      continue;
    }
    SHARD_ASSIGN_OR_RETURN(FlatLayout own,
                           FlatLayout::Owned(params, numels, ranges,
                                             options_.world_size, alignment));
    (*states)[s].own_layout =
        std::make_shared<const FlatLayout>(std::move(own));
  }
  return Status();
}

StatusOr<int64_t> BufferPlanner::WorkspaceNumel(
    const FlatBufferPlan& buffer) const {
  int64_t most = 0;
  const TensorTraits* tensor =
      options_.groups[static_cast<size_t>(buffer.group)].tensor;
  if (!buffer.trainable || tensor == nullptr) return most;
  const bool widened = IsHalf(buffer.dtype) && !buffer.has_masters;
  for (const Slot& slot : buffer.layout.slots()) {
    const auto& shape = model_.params()[static_cast<size_t>(slot.param)].shape;
    int64_t numel =
        tensor->workspace_numel(shape.data(), static_cast<int>(shape.size()));
    if (__builtin_add_overflow(numel, widened ? slot.numel : 0, &numel) ||
        numel > std::numeric_limits<int64_t>::max() / 1024) {
      return InvalidArgument("stepping a parameter of shape ",
                             FormatList(shape),
                             " takes more than 2^53 elements of workspace");
    }
    most = std::max(most, numel);
  }
  return most;
}

}  // namespace shard
