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
  if (inventory.walk.empty()) {
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
  for (int32_t& owner : ranges) owner = RangeOf(owner);

  units_.reserve(inventory.units.size());
  for (const UnitInventory& unit : inventory.units) {
    units_.push_back({unit.module, unit.parent, unit.depth, {}});
  }
  units_by_module_.resize(units_.size());
  std::iota(units_by_module_.begin(), units_by_module_.end(), 0);
  std::sort(
      units_by_module_.begin(), units_by_module_.end(),
      [this](int32_t a, int32_t b) { return unit(a).module < unit(b).module; });
  const BufferPlanner planner(*model_, options_, inventory, ranges,
                              &state_lists_);
  buffers_.reserve(inventory.buffers.size());
  places_.resize(model_->params().size());
  int64_t elements = 0;
  for (const BufferInventory& each : inventory.buffers) {
    const auto index = static_cast<int32_t>(buffers_.size());
    FlatBufferPlan& buffer = buffers_.emplace_back();
    SHARD_RETURN_IF_ERROR(planner.Plan(each, &buffer));
    SHARD_RETURN_IF_ERROR(CheckBytes(buffer, &elements));
    SHARD_ASSIGN_OR_RETURN(const int64_t workspace,
                           planner.WorkspaceNumel(buffer));
    workspace_numel_ = std::max(workspace_numel_, workspace);
    for (const Slot& slot : buffer.layout.slots()) {
      places_[static_cast<size_t>(slot.param)] = {index, slot.offset};
    }
    fingerprint.Add(buffer.layout.shard_numel());
    units_[static_cast<size_t>(buffer.unit)].buffers.push_back(index);
  }
  ChooseSharding();

  // In walk order, so that ranks may add parameters in different orders.
  for (const ParamId param : inventory.walk) {
    fingerprint.Add(place(param).offset);
  }
  num_stored_ = inventory.walk.size();
  positions_ = std::move(inventory.positions);
  AddHostTensors(*model_, host_tensors_, &fingerprint);
  fingerprint_ = fingerprint.Finish();
  return Status();
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
