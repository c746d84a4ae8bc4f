// SPDX-License-Identifier: Apache-2.0

#include "core/flat/plan.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/base/strings.h"
#include "core/flat/fingerprint.h"
#include "core/flat/inventory.h"
#include "core/flat/owners.h"

namespace shard {

namespace {

// Part of every fingerprint: raise it when the same inputs would be laid out,
// or hashed, differently.
constexpr uint32_t kLayoutVersion = 3;

Status CheckStates(const std::vector<StateTensor>& states) {
  for (size_t i = 0; i < states.size(); ++i) {
    const std::string& name = states[i].name;
    if (name.empty()) {
      return InvalidArgument("the name of optimizer state ", i, " is empty");
    }
    if (!IsValidUtf8(name)) {
      return InvalidArgument("the name of optimizer state ", i,
                             " is not valid UTF-8 without NUL");
    }
    const DType dtype = states[i].dtype;
    if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kQ8) {
      return InvalidArgument("optimizer state '", name, "' cannot be ",
                             DTypeName(dtype), "; allowed: f32, bf16, q8");
    }
    for (size_t k = 0; k < i; ++k) {
      if (states[k].name == name) {
        return InvalidArgument("optimizer state '", name, "' stands twice");
      }
    }
  }
  return Status();
}

Status CheckGroups(const std::vector<GroupOptions>& groups, size_t expected) {
  if (groups.size() != expected) {
    return InvalidArgument("the plan was given optimizers for ", groups.size(),
                           " param groups, but the model has ", expected);
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    Status status;
    if (!IsValidUtf8(groups[g].optimizer)) {
      status = InvalidArgument("the optimizer's text is not valid UTF-8");
    } else {
      status = CheckStates(groups[g].states);
    }
    if (!status.ok()) return status.WithContext(StrCat("param group ", g));
  }
  return Status();
}

Status CheckOptions(const PlanOptions& options) {
  if (options.stage < 0 || options.stage > 3) {
    return InvalidArgument("stage ", options.stage, " is outside 0 to 3");
  }
  if (options.world_size < 1 || options.world_size > kMaxWorldSize) {
    return InvalidArgument("world size ", options.world_size,
                           " is outside 1 to ", kMaxWorldSize);
  }
  const auto partition = static_cast<int32_t>(options.partition);
  if (partition < 1 || partition > 4) {
    return InvalidArgument(
        "unknown partition ", partition,
        "; known: 1 (even), 2 (greedy), 3 (bucket), 4 (manual)");
  }
  if (options.alignment_bytes < 1) {
    return InvalidArgument("alignment_bytes ", options.alignment_bytes,
                           " is below 1");
  }
  if (options.bucket_bytes < 1) {
    return InvalidArgument("bucket_bytes ", options.bucket_bytes,
                           " is below 1");
  }
  const auto masters = static_cast<int32_t>(options.masters);
  if (masters < 1 || masters > 3) {
    return InvalidArgument("unknown masters ", masters,
                           "; known: 1 (f32), 2 (none, to nearest), 3 (none, "
                           "stochastic)");
  }
  return Status();
}

// "[768, 3072]"
std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    StrAppend(&text, i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

// That every optimizer can step what it is given.
Status CheckSteps(const Model& model, const PlanOptions& options,
                  const Inventory& inventory) {
  for (const BufferInventory& buffer : inventory.buffers) {
    if (!buffer.trainable) continue;
    const auto g = static_cast<size_t>(buffer.group);
    const GroupOptions& group = options.groups[g];
    const auto name_of = [&](ParamId param) {
      return model.ParamFqns()[static_cast<size_t>(param)];
    };
    if (buffer.dtype == DType::kF16 &&
        options.masters == Masters::kNoneStochastic) {
      return InvalidArgument("parameter '", name_of(buffer.params.front()),
                             "' is f16, which cannot be rounded "
                             "stochastically; use bf16 or master weights");
    }
    if (group.tensor == nullptr) continue;
    for (const ParamId param : buffer.params) {
      const auto& shape = model.params()[static_cast<size_t>(param)].shape;
      const char* need =
          group.tensor->unfit(shape.data(), static_cast<int>(shape.size()));
      if (need == nullptr) continue;
      return InvalidArgument(
          "parameter '", name_of(param), "' of shape ", ShapeText(shape),
          " must be ", need, ", for the optimizer of param group ", g, " (",
          group.optimizer,
          "); put it in a group of another optimizer, such as adamw");
    }
  }
  return Status();
}

Status CheckManualOwners(const Model& model, const PlanOptions& options,
                         const Inventory& inventory) {
  if (options.partition != Partition::kManual) return Status();
  if (options.manual_owners.size() != model.params().size()) {
    return InvalidArgument("manual_owners has ", options.manual_owners.size(),
                           " entries, but the model has ",
                           model.params().size(), " parameters");
  }
  for (const BufferInventory& buffer : inventory.buffers) {
    if (!buffer.trainable) continue;
    for (const ParamId param : buffer.params) {
      const auto index = static_cast<size_t>(param);
      const int32_t owner = options.manual_owners[index];
      if (owner >= 0 && owner < options.world_size) continue;
      return InvalidArgument("the manual owner of parameter '",
                             model.ParamFqns()[index], "' is rank ", owner,
                             ", but the world size is ", options.world_size);
    }
  }
  return Status();
}

// What one buffer costs: parameters per host, the rest per rank.
MemoryReport MemoryOf(const FlatBufferPlan& buffer, int stage) {
  const int64_t padded = buffer.layout.padded_numel();
  MemoryReport memory;
  memory.param_bytes = RoundUpToPage(DTypeBytes(buffer.dtype, padded));
  if (!buffer.trainable) return memory;
  memory.grad_bytes = RoundUpToPage(DTypeBytes(
      buffer.grad_dtype, stage >= 2 ? buffer.layout.shard_numel() : padded));
  for (size_t s = 0; s < buffer.states.size(); ++s) {
    memory.state_bytes += RoundUpToPage(DTypeBytes(
        buffer.states[s].tensor.dtype, buffer.StateLayout(s).shard_numel()));
  }
  return memory;
}

// The engine counts bytes of one buffer, and of all, in 64 bits.
Status CheckBytes(const std::vector<FlatBufferPlan>& buffers) {
  // No element with its gradient and all of its states takes more than 64
  // bytes, and page rounding no more than a page per tensor.
  constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 1024;
  int64_t total = 0;
  for (const FlatBufferPlan& buffer : buffers) {
    int64_t largest = buffer.layout.padded_numel();
    for (size_t s = 0; s < buffer.states.size(); ++s) {
      largest = std::max(largest, buffer.StateLayout(s).padded_numel());
    }
    if (__builtin_add_overflow(total, largest, &total) ||
        total > kMaxElements) {
      return InvalidArgument("a flat buffer of ", largest, " elements of ",
                             DTypeName(buffer.dtype), " and ",
                             buffer.states.size(),
                             " optimizer states brings the plan to more than "
                             "2^53 elements");
    }
  }
  return Status();
}

void AddOptions(const PlanOptions& options, Fingerprint* fingerprint) {
  fingerprint->Add(kLayoutVersion);
  fingerprint->Add(static_cast<int32_t>(options.stage));
  fingerprint->Add(static_cast<int32_t>(options.world_size));
  fingerprint->Add(static_cast<int32_t>(options.partition));
  fingerprint->Add(options.bucket_bytes);
  fingerprint->Add(static_cast<int32_t>(options.shard_buckets));
  fingerprint->Add(options.alignment_bytes);
  fingerprint->Add(static_cast<int32_t>(options.f32_grads));
  fingerprint->Add(static_cast<int32_t>(options.masters));
  fingerprint->Add(options.seed);
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

bool IsNarrow(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16;
}

// One buffer of the root unit. `owners` is empty when it is cut evenly.
StatusOr<FlatBufferPlan> PlanBuffer(const Model& model,
                                    const PlanOptions& options,
                                    const BufferInventory& buffer,
                                    const std::vector<int32_t>& owners) {
  FlatBufferPlan plan = {};
  plan.dtype = buffer.dtype;
  plan.trainable = buffer.trainable;
  plan.group = buffer.group;
  plan.grad_dtype = options.f32_grads && buffer.dtype != DType::kF64
                        ? DType::kF32
                        : buffer.dtype;
  const GroupOptions& group = options.groups[static_cast<size_t>(buffer.group)];

  // The least number of elements whose bytes are a multiple of it.
  FlatLayout::Alignment alignment;
  alignment.shard = options.alignment_bytes /
                    std::gcd(options.alignment_bytes,
                             static_cast<int64_t>(DTypeSize(buffer.dtype)));
  if (buffer.trainable) {
    for (const StateTensor& state : group.states) {
      plan.states.push_back({state, nullptr});
      // Blocks that begin with their parameter hold the same elements in every
      // layout.
      if (state.dtype == DType::kQ8) alignment.slot = kQ8Block;
    }
  }
  const bool whole = IsOwnedWhole(options, buffer);
  const int world_size = options.world_size;
  SHARD_ASSIGN_OR_RETURN(
      plan.layout, whole ? FlatLayout::Owned(buffer.params, buffer.numels,
                                             owners, world_size, alignment)
                         : FlatLayout::Even(buffer.params, buffer.numels,
                                            world_size, alignment));
  if (!buffer.trainable) return plan;

  if (group.tensor != nullptr) {
    std::vector<int64_t> numels(buffer.params.size());
    for (size_t s = 0; s < plan.states.size(); ++s) {
      for (size_t i = 0; i < numels.size(); ++i) {
        const auto& shape =
            model.params()[static_cast<size_t>(buffer.params[i])].shape;
        numels[i] = group.tensor->state_numel(static_cast<int>(s), shape.data(),
                                              static_cast<int>(shape.size()));
      }
      if (numels == buffer.numels) continue;
      SHARD_ASSIGN_OR_RETURN(FlatLayout own,
                             FlatLayout::Owned(buffer.params, numels, owners,
                                               world_size, alignment));
      plan.states[s].own_layout =
          std::make_shared<const FlatLayout>(std::move(own));
    }
  }
  plan.has_masters = IsNarrow(buffer.dtype) && options.masters == Masters::kF32;
  if (plan.has_masters) {
    plan.states.push_back({{kMasterState, DType::kF32}, nullptr});
  }
  return plan;
}

// What stepping the parameters of `buffer` takes at once: what the optimizer
// asks for, and an fp32 form of a parameter that has no other.
StatusOr<int64_t> WorkspaceNumel(const Model& model, const PlanOptions& options,
                                 const FlatBufferPlan& buffer) {
  int64_t most = 0;
  const TensorTraits* tensor =
      options.groups[static_cast<size_t>(buffer.group)].tensor;
  if (!buffer.trainable || tensor == nullptr) return most;
  const bool widened = IsNarrow(buffer.dtype) && !buffer.has_masters;
  for (const Slot& slot : buffer.layout.slots()) {
    const auto& shape = model.params()[static_cast<size_t>(slot.param)].shape;
    int64_t numel =
        tensor->workspace_numel(shape.data(), static_cast<int>(shape.size()));
    if (__builtin_add_overflow(numel, widened ? slot.numel : 0, &numel) ||
        numel > std::numeric_limits<int64_t>::max() / 1024) {
      return InvalidArgument("stepping a parameter of shape ", ShapeText(shape),
                             " takes more than 2^53 elements of workspace");
    }
    most = std::max(most, numel);
  }
  return most;
}

}  // namespace

StatusOr<std::shared_ptr<const Plan>> Plan::Create(
    std::shared_ptr<const Model> model, PlanOptions options) {
  if (model == nullptr) return InvalidArgument("the plan was given no model");
  SHARD_RETURN_IF_ERROR(CheckOptions(options));
  if (options.groups.empty()) options.groups.resize(model->groups().size());
  SHARD_RETURN_IF_ERROR(CheckGroups(options.groups, model->groups().size()));

  Fingerprint fingerprint;
  AddOptions(options, &fingerprint);
  const Inventory inventory = TakeInventory(*model, &fingerprint);
  if (inventory.walk.empty()) {
    if (model->params().empty()) {
      return InvalidArgument("the model has no parameters");
    }
    return InvalidArgument("the model has no parameter to store: all ",
                           model->params().size(), " are ignored");
  }
  SHARD_RETURN_IF_ERROR(CheckManualOwners(*model, options, inventory));
  SHARD_RETURN_IF_ERROR(CheckSteps(*model, options, inventory));
  SHARD_ASSIGN_OR_RETURN(const auto owners,
                         ChooseOwners(*model, options, inventory));

  std::shared_ptr<Plan> plan(new Plan);
  plan->units_.push_back({kRootModule, {}});
  plan->places_.resize(model->params().size());
  for (size_t i = 0; i < inventory.buffers.size(); ++i) {
    SHARD_ASSIGN_OR_RETURN(
        FlatBufferPlan buffer,
        PlanBuffer(*model, options, inventory.buffers[i], owners[i]));
    const auto index = static_cast<int32_t>(i);
    for (const Slot& slot : buffer.layout.slots()) {
      plan->places_[static_cast<size_t>(slot.param)] = {index, slot.offset};
    }
    fingerprint.Add(buffer.layout.shard_numel());
    SHARD_ASSIGN_OR_RETURN(const int64_t workspace,
                           WorkspaceNumel(*model, options, buffer));
    plan->workspace_numel_ = std::max(plan->workspace_numel_, workspace);
    plan->units_[0].buffers.push_back(index);
    plan->buffers_.push_back(std::move(buffer));
  }
  SHARD_RETURN_IF_ERROR(CheckBytes(plan->buffers_));

  // In walk order, so that the order in which a rank added things is no
  // difference.
  plan->positions_.assign(model->params().size(), -1);
  for (size_t i = 0; i < inventory.walk.size(); ++i) {
    const auto param = static_cast<size_t>(inventory.walk[i]);
    fingerprint.Add(plan->places_[param].offset);
    plan->positions_[param] = static_cast<int32_t>(i);
  }
  plan->fingerprint_ = fingerprint.Finish();
  plan->model_ = std::move(model);
  plan->options_ = std::move(options);
  return std::shared_ptr<const Plan>(std::move(plan));
}

MemoryReport Plan::Memory() const {
  MemoryReport memory;
  for (const FlatBufferPlan& buffer : buffers_) {
    const MemoryReport part = MemoryOf(buffer, options_.stage);
    memory.param_bytes += part.param_bytes;
    memory.grad_bytes += part.grad_bytes;
    memory.state_bytes += part.state_bytes;
  }
  memory.workspace_bytes =
      RoundUpToPage(DTypeBytes(DType::kF32, workspace_numel_));
  return memory;
}

}  // namespace shard
