// SPDX-License-Identifier: Apache-2.0

#include "core/engine/memory/bound_copies.h"

#include <utility>

#include "core/engine/memory/param_place.h"

namespace shard {

Status BoundCopies::CheckMemory(ParamId param, std::string_view what,
                                DType dtype,
                                std::span<const std::byte> memory) const {
  const int64_t numel = NumelOf(*deps_.plan, param);
  const size_t expected = DTypeBytes(dtype, numel);
  if (memory.size() != expected) {
    return InvalidArgument(what, ": parameter ", param, " has ", expected,
                           " bytes (", numel, " elements of ", DTypeName(dtype),
                           "), not ", memory.size());
  }
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  if (begin > UINTPTR_MAX - memory.size()) {
    return InvalidArgument(what, ": ", memory.size(), " bytes at address ",
                           begin, " reach beyond the last address");
  }
  if (memory.empty() || !deps_.memory->Overlaps(memory)) return Status();
  return InvalidArgument(what, ": memory for parameter ", param,
                         " lies in the engine's own; bind memory of the host, "
                         "or none to use the engine's");
}

Status BoundCopies::CheckBind(ParamId param,
                              const BoundMemory::Tensors& tensors) const {
  const Plan& plan = *deps_.plan;
  SHARD_ASSIGN_OR_RETURN(const ParamPlace* place, PlaceOf(plan, param));
  const bool values = tensors.values.data() != nullptr;
  const bool grad = tensors.grad.data() != nullptr;
  if (!values && !grad) return Status();
  if (plan.options().stage == 3) {
    return InvalidArgument(
        "bind_param in stage 3, where a parameter is whole only while its unit "
        "is acquired; plan with stage 0, 1 or 2, or use the engine's memory");
  }
  const FlatBufferPlan& buffer = plan.buffer(place->buffer);
  if (values) {
    SHARD_RETURN_IF_ERROR(
        CheckMemory(param, "values", buffer.dtype, tensors.values));
  }
  if (!grad) return Status();
  SHARD_RETURN_IF_ERROR(TrainablePlaceOf(plan, param, "gradient").status());
  return CheckMemory(param, "grad", buffer.grad_dtype, tensors.grad);
}

Status BoundCopies::RefreshParam(ParamId param, const Deadline& deadline) {
  std::vector<MemoryFill> fills;
  (void)AddParam(param, &fills);  // No step counts it.
  return Run(std::move(fills), deadline);
}

Status BoundCopies::RefreshAll(const Deadline& deadline) {
  return RefreshUnits(true, deadline);
}

Status BoundCopies::RefreshTrainable(const Deadline& deadline) {
  return RefreshUnits(false, deadline);
}

Status BoundCopies::RefreshUnit(int32_t unit, const Deadline& deadline) {
  if (!stale_[static_cast<size_t>(unit)]) return Status();
  std::vector<MemoryFill> fills;
  AddUnit(unit, false, &fills);
  return Run(std::move(fills), deadline);
}

Status BoundCopies::RefreshUnits(bool with_frozen, const Deadline& deadline) {
  if (!any()) return Status();
  std::vector<MemoryFill> fills;
  for (size_t u = 0; u < stale_.size(); ++u) {
    AddUnit(static_cast<int32_t>(u), with_frozen, &fills);
  }
  return Run(std::move(fills), deadline);
}

Status BoundCopies::Run(std::vector<MemoryFill> fills,
                        const Deadline& deadline) const {
  if (fills.empty()) return Status();
  deps_.compute->Wait(deps_.host->Record(), deadline);
  deps_.compute->Fill(std::move(fills));
  deps_.host->Wait(deps_.compute->Record(), deadline);
  return deps_.host->status();
}

uint64_t BoundCopies::AddParam(ParamId param,
                               std::vector<MemoryFill>* fills) const {
  const std::span<std::byte> values = deps_.bound->Of(param).values;
  if (values.empty()) return 0;
  const ParamPlace& place = deps_.plan->place(param);
  const EngineBuffer& buffer = deps_.memory->buffer(place.buffer);
  fills->push_back(
      {values.data(), buffer.ParamAt(place.offset), values.size()});
  return 2 * values.size();
}

void BoundCopies::AddUnit(int32_t unit, bool with_frozen,
                          std::vector<MemoryFill>* fills) {
  for (const int32_t b : deps_.plan->unit(unit).buffers) {
    const FlatBufferPlan& buffer = deps_.plan->buffer(b);
    if (!buffer.trainable && !with_frozen) continue;
    for (const Slot& slot : buffer.layout.slots()) {
      bytes_ += AddParam(slot.param, fills);
    }
  }
  stale_[static_cast<size_t>(unit)] = false;
}

void* BoundCopies::GradOf(ParamId param, void* flat) const {
  const std::span<std::byte> grad = deps_.bound->Of(param).grad;
  return grad.empty() ? flat : grad.data();
}

void BoundCopies::AddGradCopy(ParamId param, void* flat,
                              std::vector<MemoryFill>* fills) {
  const std::span<std::byte> grad = deps_.bound->Of(param).grad;
  if (grad.empty()) return;
  fills->push_back({flat, grad.data(), grad.size()});
  bytes_ += 2 * grad.size();
}

void BoundCopies::AddGradZeros(ParamId param,
                               std::vector<MemoryFill>* fills) const {
  const std::span<std::byte> grad = deps_.bound->Of(param).grad;
  if (!grad.empty()) fills->push_back({grad.data(), nullptr, grad.size()});
}

void BoundCopies::ZeroGrads() {
  // Sharded gradients begin as zeros when their unit is acquired.
  if (!any() || deps_.plan->shards_grads()) return;
  std::vector<MemoryFill> fills;
  for (const FlatBufferPlan& buffer : deps_.plan->buffers()) {
    // The gradient of a frozen parameter is not used, and stays as it is.
    if (!buffer.trainable) continue;
    for (const Slot& slot : buffer.layout.slots()) {
      AddGradZeros(slot.param, &fills);
    }
  }
  deps_.compute->Fill(std::move(fills));
}

}  // namespace shard
