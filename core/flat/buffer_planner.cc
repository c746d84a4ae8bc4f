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
                             std::span<const int32_t> ranges,
                             std::deque<std::vector<StatePlan>>* state_lists)
    : model_(model),
      options_(options),
      inventory_(inventory),
      ranges_(ranges),
      state_lists_(state_lists) {
  kinds_.reserve(inventory.kinds.size());
  for (const BufferKind& kind : inventory.kinds) {
    kinds_.push_back(MakeKind(kind));
  }
}

BufferPlanner::Kind BufferPlanner::MakeKind(const BufferKind& kind) const {
  Kind made = {};
  FlatBufferPlan& plan = made.plan;
  plan.dtype = kind.dtype;
  plan.trainable = kind.trainable;
  plan.group = kind.group;
  plan.grad_dtype = kind.grad_dtype;
  plan.sum_dtype = options_.deterministic && IsHalf(plan.grad_dtype)
                       ? DType::kF32
                       : plan.grad_dtype;
  plan.has_masters =
      plan.trainable && IsHalf(plan.dtype) && options_.masters == Masters::kF32;
  // The least number of elements whose bytes are a multiple of alignment_bytes.
  made.alignment.shard = options_.alignment_bytes /
                         std::gcd(options_.alignment_bytes,
                                  static_cast<int64_t>(DTypeSize(plan.dtype)));
  if (!plan.trainable) return made;
  for (const StateTensor& state :
       options_.groups[static_cast<size_t>(plan.group)].states) {
    // Blocks that begin with their parameter hold the same elements in every
    // layout.
    if (IsQuantized(state.dtype)) {
      made.alignment.slot = InfoOf(state.dtype).block;
    }
  }
  plan.states = state_lists_->emplace_back(StatesOf(plan));
  return made;
}

Status BufferPlanner::Plan(const BufferInventory& buffer,
                           FlatBufferPlan* to) const {
  const Kind& kind = kinds_[static_cast<size_t>(buffer.kind)];
  FlatBufferPlan& plan = *to;
  plan = kind.plan;
  plan.unit = buffer.unit;
  const auto params = inventory_.ParamsOf(buffer);
  const auto numels = inventory_.NumelsOf(buffer);
  const int world_size = options_.world_size;
  SHARD_ASSIGN_OR_RETURN(
      plan.layout,
      inventory_.KindOf(buffer).owned_whole
          ? FlatLayout::Owned(params, numels, RangesOf(buffer), world_size,
                              kind.alignment)
          : FlatLayout::Even(params, numels, world_size, kind.alignment));
  if (plan.trainable &&
      options_.groups[static_cast<size_t>(plan.group)].tensor != nullptr) {
    std::vector<StatePlan> states(plan.states.begin(), plan.states.end());
    SHARD_RETURN_IF_ERROR(LayOutStates(buffer, &states));
    plan.states = state_lists_->emplace_back(std::move(states));
  }
  return Status();
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

Status BufferPlanner::LayOutStates(const BufferInventory& buffer,
                                   std::vector<StatePlan>* states) const {
  const Kind& kind = kinds_[static_cast<size_t>(buffer.kind)];
  const GroupOptions& group =
      options_.groups[static_cast<size_t>(kind.plan.group)];
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
    SHARD_ASSIGN_OR_RETURN(
        FlatLayout own, FlatLayout::Owned(params, numels, RangesOf(buffer),
                                          options_.world_size, kind.alignment));
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
