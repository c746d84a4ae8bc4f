// SPDX-License-Identifier: Apache-2.0

#include "core/flat/buffer_planner.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>

#include "core/base/strings.h"

namespace shard {

namespace {

using Shape = std::vector<int64_t>;

Status CheckWorkspace(int64_t numel, const Shape& shape) {
  if (numel <= std::numeric_limits<int64_t>::max() / 1024) return Status();
  return InvalidArgument("stepping a parameter of shape ", FormatList(shape),
                         " takes more than 2^53 elements of workspace");
}

}  // namespace

BufferPlanner::BufferPlanner(const Model& model, const PlanOptions& options,
                             const std::vector<BufferKind>& kinds,
                             std::deque<std::vector<StatePlan>>* state_lists)
    : model_(model), options_(options), state_lists_(state_lists) {
  kinds_.reserve(kinds.size());
  for (const BufferKind& kind : kinds) kinds_.push_back(MakeKind(kind));
}

BufferPlanner::Kind BufferPlanner::MakeKind(const BufferKind& kind) const {
  Kind made = {{}, kind.alignment, nullptr};
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
  if (!plan.trainable) return made;
  made.tensor = options_.groups[static_cast<size_t>(plan.group)].tensor;
  plan.states = state_lists_->emplace_back(StatesOf(plan));
  return made;
}

Status BufferPlanner::Plan(const BufferInventory& buffer, std::span<Slot> slots,
                           std::span<const int32_t> ranges,
                           FlatBufferPlan* to) {
  const Kind& kind = kinds_[static_cast<size_t>(buffer.kind)];
  FlatBufferPlan& plan = *to;
  plan = kind.plan;
  plan.unit = buffer.unit;
  // Before the parameters' own layout, which sorts the slots.
  if (kind.tensor != nullptr) {
    std::vector<StatePlan> states(plan.states.begin(), plan.states.end());
    SHARD_RETURN_IF_ERROR(LayOutStates(kind, slots, ranges, &states));
    plan.states = state_lists_->emplace_back(std::move(states));
  }
  const int world_size = options_.world_size;
  SHARD_ASSIGN_OR_RETURN(
      plan.layout,
      ranges.empty()
          ? FlatLayout::Even(slots, buffer.end, world_size, kind.alignment)
          : FlatLayout::Owned(slots, ranges, world_size, kind.alignment));
  return kind.tensor == nullptr ? Status() : AddWorkspace(kind, plan);
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

Status BufferPlanner::LayOutStates(const Kind& kind,
                                   std::span<const Slot> params,
                                   std::span<const int32_t> ranges,
                                   std::vector<StatePlan>* states) const {
  const GroupOptions& group =
      options_.groups[static_cast<size_t>(kind.plan.group)];
  // The master weights, which come last, have the parameters' layout.
  for (size_t s = 0; s < group.states.size(); ++s) {
    struct Own {
      std::vector<Slot> slots;
      FlatLayout layout;
    };
    const auto own = std::make_shared<Own>();
    own->slots.assign(params.begin(), params.end());
    bool differs = false;
    for (Slot& slot : own->slots) {
      const Shape& shape = ShapeOf(slot);
      const int64_t numel = kind.tensor->state_numel(
          static_cast<int>(s), shape.data(), static_cast<int>(shape.size()));
      differs = differs || numel != slot.numel;
      slot.numel = numel;
    }
    if (!differs) continue;
    SHARD_ASSIGN_OR_RETURN(
        own->layout, FlatLayout::Owned(own->slots, ranges, options_.world_size,
                                       kind.alignment));
    (*states)[s].own_layout =
        std::shared_ptr<const FlatLayout>(own, &own->layout);
  }
  return Status();
}

Status BufferPlanner::AddWorkspace(const Kind& kind,
                                   const FlatBufferPlan& plan) {
  const bool widened = IsHalf(plan.dtype) && !plan.has_masters;
  for (const Slot& slot : plan.layout.slots()) {
    const Shape& shape = ShapeOf(slot);
    int64_t numel = kind.tensor->workspace_numel(
        shape.data(), static_cast<int>(shape.size()));
    if (__builtin_add_overflow(numel, widened ? slot.numel : 0, &numel)) {
      numel = std::numeric_limits<int64_t>::max();
    }
    SHARD_RETURN_IF_ERROR(CheckWorkspace(numel, shape));
    workspace_numel_ = std::max(workspace_numel_, numel);
  }
  return AddGpuWorkspace(*kind.tensor, plan.layout);
}

Status BufferPlanner::AddGpuWorkspace(const TensorTraits& tensor,
                                      const FlatLayout& layout) {
  const std::span<const Slot> slots = layout.slots();
  if (layout.shard_numel() == 0) return Status();
  const auto range_of = [&](size_t i) {
    return slots[i].offset / layout.shard_numel();
  };
  // The shapes of a rank's parameters.
  std::vector<const Shape*> shapes;
  for (size_t begin = 0, end = 0; begin < slots.size(); begin = end) {
    shapes.clear();
    for (; end < slots.size() && range_of(end) == range_of(begin); ++end) {
      if (slots[end].numel > 0) shapes.push_back(&ShapeOf(slots[end]));
    }
    std::sort(shapes.begin(), shapes.end(),
              [](const Shape* a, const Shape* b) { return *a < *b; });
    for (auto first = shapes.begin(); first != shapes.end();) {
      const Shape& shape = **first;
      const auto next =
          std::find_if(first, shapes.end(),
                       [&](const Shape* other) { return *other != shape; });
      const int64_t numel = tensor.gpu_workspace_numel(
          shape.data(), static_cast<int>(shape.size()), next - first);
      SHARD_RETURN_IF_ERROR(CheckWorkspace(numel, shape));
      gpu_workspace_numel_ = std::max(gpu_workspace_numel_, numel);
      first = next;
    }
  }
  return Status();
}

}  // namespace shard
