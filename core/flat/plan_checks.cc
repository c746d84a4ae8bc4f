// SPDX-License-Identifier: Apache-2.0

#include "core/flat/plan_checks.h"

#include <cstddef>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/model/names.h"

namespace shard {

namespace {

// The limit on prefetched slots, which take memory.
constexpr int kMaxPrefetch = 64;

Status CheckStates(const std::vector<StateTensor>& states) {
  for (size_t i = 0; i < states.size(); ++i) {
    const std::string& name = states[i].name;
    SHARD_RETURN_IF_ERROR(CheckName(StrCat("name of optimizer state ", i), name,
                                    kMaxStateNameBytes));
    if (name.find('.') != std::string::npos) {
      return InvalidArgument("the optimizer state ", QuoteName(name),
                             " holds a '.'");
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

}  // namespace

Status CheckGroups(const std::vector<GroupOptions>& groups, size_t expected) {
  if (groups.size() != expected) {
    return InvalidArgument("the plan was given optimizers for ", groups.size(),
                           " param groups, but the model has ", expected);
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    Status status;
    if (!IsPlainText(groups[g].optimizer)) {
      status = InvalidArgument("the optimizer's text ",
                               QuoteName(groups[g].optimizer),
                               " is not UTF-8 without control characters");
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
    return InvalidArgument("world_size ", options.world_size,
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
  if (options.buffer_bytes < 1) {
    return InvalidArgument("buffer_bytes ", options.buffer_bytes,
                           " is below 1");
  }
  for (const std::string& name : options.f32_classes) {
    if (IsValidUtf8(name)) continue;
    return InvalidArgument("the name ", QuoteName(name),
                           " in f32_classes is not valid UTF-8 without NUL");
  }
  const int group = options.shard_group_size;
  if (group < 0 || group > options.world_size ||
      (group > 0 && options.world_size % group != 0)) {
    return InvalidArgument("shard_group_size ", group,
                           " does not divide world_size ", options.world_size,
                           "; use a divisor of it, or 0 for all ranks");
  }
  if (options.prefetch < 0 || options.prefetch > kMaxPrefetch) {
    return InvalidArgument("prefetch ", options.prefetch, " is outside 0 to ",
                           kMaxPrefetch);
  }
  if (options.param_dtype != DType::kF32 &&
      options.param_dtype != DType::kBF16 &&
      options.param_dtype != DType::kF16) {
    return InvalidArgument("param_dtype ",
                           static_cast<int32_t>(options.param_dtype),
                           " cannot hold parameters; known: 1 (f32), 2 (bf16), "
                           "3 (f16)");
  }
  const auto masters = static_cast<int32_t>(options.masters);
  if (masters < 1 || masters > 3) {
    return InvalidArgument("unknown masters ", masters,
                           "; known: 1 (f32), 2 (none, to nearest), 3 (none, "
                           "stochastic)");
  }
  return Status();
}

Status CheckSteps(const Model& model, const PlanOptions& options,
                  const Inventory& inventory) {
  for (const BufferInventory& buffer : inventory.buffers) {
    const BufferKind& kind = inventory.KindOf(buffer);
    if (!kind.trainable) continue;
    const auto g = static_cast<size_t>(kind.group);
    const GroupOptions& group = options.groups[g];
    const auto name_of = [&](ParamId param) {
      return model.ParamFqns()[static_cast<size_t>(param)];
    };
    if (kind.dtype == DType::kF16 &&
        options.masters == Masters::kNoneStochastic) {
      return InvalidArgument("parameter '",
                             name_of(inventory.SlotsOf(buffer).front().param),
                             "' is f16, which cannot be rounded "
                             "stochastically; use bf16 or master weights");
    }
    if (group.tensor == nullptr) continue;
    for (const Slot& slot : inventory.SlotsOf(buffer)) {
      const auto& shape = model.params()[static_cast<size_t>(slot.param)].shape;
      const char* need = group.tensor->shape_error(
          shape.data(), static_cast<int>(shape.size()));
      if (need == nullptr) continue;
      return InvalidArgument(
          "parameter '", name_of(slot.param), "' of shape ", FormatList(shape),
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
    return InvalidArgument("owners has ", options.manual_owners.size(),
                           " entries, but the model has ",
                           model.params().size(), " parameters");
  }
  for (const BufferInventory& buffer : inventory.buffers) {
    if (!inventory.KindOf(buffer).trainable) continue;
    for (const Slot& slot : inventory.SlotsOf(buffer)) {
      const auto index = static_cast<size_t>(slot.param);
      const int32_t owner = options.manual_owners[index];
      if (owner >= 0 && owner < options.world_size) continue;
      return InvalidArgument("owners has rank ", owner, " for parameter '",
                             model.ParamFqns()[index], "'; allowed: 0 to ",
                             options.world_size - 1);
    }
  }
  return Status();
}

}  // namespace shard
