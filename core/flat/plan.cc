// SPDX-License-Identifier: Apache-2.0

#include "core/flat/plan.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/base/strings.h"
#include "core/flat/buffer_planner.h"
#include "core/flat/fingerprint.h"
#include "core/flat/inventory.h"
#include "core/flat/kept_whole.h"
#include "core/flat/owners.h"
#include "core/flat/plan_checks.h"
#include "core/flat/plan_fields.h"
#include "core/flat/units.h"

namespace shard {

namespace {

// Checks that the engine can count the bytes of one buffer, and of all, in 64
// bits. Adds the elements of `buffer` to `total`, those of the buffers before
// it.
Status CheckBytes(const FlatBufferPlan& buffer, int64_t* total) {
  // No element with its gradient and all of its states takes more than 64
  // bytes, and page rounding no more than a page per tensor.
  constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 1024;
  int64_t largest = buffer.layout.padded_numel();
  for (size_t s = 0; s < buffer.states.size(); ++s) {
    largest = std::max(largest, buffer.StateLayout(s).padded_numel());
  }
  if (__builtin_add_overflow(*total, largest, total) || *total > kMaxElements) {
    return InvalidArgument("a flat buffer of ", largest, " elements of ",
                           DTypeName(buffer.dtype), " and ",
                           buffer.states.size(),
                           " optimizer states brings the plan to more than "
                           "2^53 elements");
  }
  return Status();
}

void AddOptions(const PlanOptions& options, Fingerprint* fingerprint) {
  VisitAgreedOptions(options, [&](const char*, const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_enum_v<Value>) {
      fingerprint->Add(static_cast<std::underlying_type_t<Value>>(value));
    } else {
      fingerprint->Add(value);
    }
  });
  fingerprint->Add(static_cast<uint32_t>(options.groups.size()));
  for (const GroupOptions& group : options.groups) {
    fingerprint->AddString(group.optimizer);
    fingerprint->Add(static_cast<uint32_t>(group.states.size()));
    for (const StateTensor& state : group.states) {
      fingerprint->AddString(state.name);
      fingerprint->Add(static_cast<int32_t>(state.dtype));
    }
  }
}

// Adds the host tensors, in module-walk order. Nothing is added for none: such
// plans keep the fingerprints that they had before there were host tensors.
void AddHostTensors(const Model& model, const HostTensorLayout& layout,
                    Fingerprint* fingerprint) {
  if (layout.walk.empty()) return;
  fingerprint->Add(static_cast<uint32_t>(layout.walk.size()));
  for (const HostTensorId id : layout.walk) {
    const Model::HostTensor& tensor =
        model.host_tensors()[static_cast<size_t>(id)];
    fingerprint->AddString(model.HostTensorFqn(id));
    fingerprint->Add(static_cast<int32_t>(tensor.type));
    fingerprint->Add(static_cast<int32_t>(tensor.persistent));
    fingerprint->Add(static_cast<uint32_t>(tensor.shape.size()));
    for (const int64_t size : tensor.shape) fingerprint->Add(size);
  }
}

}  // namespace

StatusOr<std::shared_ptr<const Plan>> Plan::Create(
    std::shared_ptr<const Model> model, PlanOptions options) {
  if (model == nullptr) return InvalidArgument("the plan was given no model");
  SHARD_RETURN_IF_ERROR(CheckOptions(options));
  if (options.groups.empty()) options.groups.resize(model->groups().size());
  SHARD_RETURN_IF_ERROR(CheckGroups(options.groups, model->groups().size()));
  const std::vector<ModuleId> wrapped = ChooseUnits(*model, options);
  // The predicate may refer to objects that live only during this call.
  options.wrap.SetPredicate(nullptr);
  const bool require_sharding = std::exchange(options.require_sharding, false);

  std::shared_ptr<Plan> plan(new Plan);
  SHARD_ASSIGN_OR_RETURN(plan->model_,
                         WithParamDType(std::move(model), options));
  plan->options_ = std::move(options);
  SHARD_RETURN_IF_ERROR(plan->Fill(wrapped));
  if (require_sharding) {
    const std::string kept = KeptWhole(*plan);
    if (!kept.empty()) {
      return InvalidArgument("require_sharding is 1, but ", kept);
    }
  }
  return std::shared_ptr<const Plan>(std::move(plan));
}

Status Plan::Fill(const std::vector<ModuleId>& wrapped) {
  Fingerprint fingerprint;
  AddOptions(options_, &fingerprint);
  Inventory inventory = TakeInventory(*model_, options_, wrapped, &fingerprint);
  if (inventory.slots.empty()) {
    if (model_->params().empty()) {
      return InvalidArgument("the model has no parameters");
    }
    return InvalidArgument("the model has no parameter to store: all ",
                           model_->params().size(), " are ignored");
  }
  if (inventory.keys_may_collide) {
    SHARD_RETURN_IF_ERROR(CheckKeys(*model_, options_));
  }
  SHARD_RETURN_IF_ERROR(CheckManualOwners(*model_, options_, inventory));
  SHARD_RETURN_IF_ERROR(CheckSteps(*model_, options_, inventory));
  SHARD_ASSIGN_OR_RETURN(host_tensors_, LayOutHostTensors(*model_));
  SHARD_ASSIGN_OR_RETURN(std::vector<int32_t> ranges,
                         ChooseOwners(*model_, options_, inventory));
  if (ShardGroupSize() != options_.world_size) {
    for (int32_t& owner : ranges) owner = RangeOf(owner);
  }

  units_.reserve(inventory.units.size());
  for (const UnitInventory& unit : inventory.units) {
    units_.push_back({unit.module, unit.parent, unit.depth, {}});
    units_.back().buffers.reserve(unit.num_buffers);
  }
  units_by_module_.resize(units_.size());
  std::iota(units_by_module_.begin(), units_by_module_.end(), 0);
  std::sort(
      units_by_module_.begin(), units_by_module_.end(),
      [this](int32_t a, int32_t b) { return unit(a).module < unit(b).module; });
  slots_ = std::move(inventory.slots);
  places_ = std::move(inventory.places);
  BufferPlanner planner(*model_, options_, inventory.kinds, &state_lists_);
  buffers_.reserve(inventory.buffers.size());
  int64_t elements = 0;
  for (const BufferInventory& each : inventory.buffers) {
    const auto index = static_cast<int32_t>(buffers_.size());
    FlatBufferPlan& buffer = buffers_.emplace_back();
    std::span<const int32_t> its_ranges;
    if (inventory.KindOf(each).owned_whole) {
      its_ranges = each.PartOf(std::span<const int32_t>(ranges));
    }
    const std::span<Slot> slots = each.PartOf(std::span(slots_));
    SHARD_RETURN_IF_ERROR(planner.Plan(each, slots, its_ranges, &buffer));
    if (!its_ranges.empty()) {
      for (const Slot& slot : slots) {
        places_[static_cast<size_t>(slot.param)].offset = slot.offset;
      }
    }
    SHARD_RETURN_IF_ERROR(CheckBytes(buffer, &elements));
    // The offsets follow from these and the parameters. Ranges without elements
    // make no difference.
    fingerprint.Add(buffer.layout.shard_numel());
    if (buffer.layout.shard_numel() > 0) {
      fingerprint.AddBytes(its_ranges.data(), its_ranges.size_bytes());
    }
    units_[static_cast<size_t>(buffer.unit)].buffers.push_back(index);
  }
  workspace_numel_ = planner.workspace_numel();
  gpu_workspace_numel_ = planner.gpu_workspace_numel();
  ChooseSharding();
  AddHostTensors(*model_, host_tensors_, &fingerprint);
  fingerprint_ = fingerprint.Finish();
  return Status();
}

std::vector<ParamId> WalkOf(std::span<const ParamPlace> places, size_t stored) {
  std::vector<ParamId> walk(stored);
  for (size_t i = 0; i < places.size(); ++i) {
    const int32_t position = places[i].position;
    if (position < 0) continue;
    walk[static_cast<size_t>(position)] = static_cast<ParamId>(i);
  }
  return walk;
}

WrapPolicy Plan::UnitsAsPolicy() const {
  std::vector<bool> wrapped(model_->modules().size());
  for (const UnitPlan& unit : units_) {
    wrapped[static_cast<size_t>(unit.module)] = true;
  }
  return WrapPolicy::OfModules(std::move(wrapped), options_.wrap.text());
}

int32_t Plan::UnitOf(ParamId param) const {
  const int32_t index = place(param).buffer;
  return index < 0 ? -1 : buffer(index).unit;
}

int32_t Plan::UnitAt(ModuleId module) const {
  const auto found = std::partition_point(
      units_by_module_.begin(), units_by_module_.end(),
      [&](int32_t index) { return unit(index).module < module; });
  const bool is_there =
      found != units_by_module_.end() && unit(*found).module == module;
  return is_there ? *found : -1;
}

// Range r belongs to place r / R of group r % R: ranges of one place are
// adjacent.
int Plan::RangeOf(int rank) const {
  const int size = ShardGroupSize();
  return rank % size * (options_.world_size / size) + rank / size;
}

int Plan::RankOf(int range) const {
  const int size = ShardGroupSize();
  const int groups = options_.world_size / size;
  return range % groups * size + range / groups;
}

int Plan::OwnerOf(int32_t index, int64_t element) const {
  const FlatLayout& layout = buffer(index).layout;
  return RankOf(static_cast<int>(element / layout.shard_numel()));
}

int Plan::HeldRanges() const {
  return shards_params_ ? options_.world_size / ShardGroupSize()
                        : options_.world_size;
}

int Plan::FirstHeldRange(int rank) const {
  return shards_params_ ? rank % ShardGroupSize() * HeldRanges() : 0;
}

}  // namespace shard
