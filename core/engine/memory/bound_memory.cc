// SPDX-License-Identifier: Apache-2.0

#include "core/engine/memory/bound_memory.h"

namespace shard {

namespace {

uintptr_t BeginOf(std::span<const std::byte> memory) {
  return reinterpret_cast<uintptr_t>(memory.data());
}

uintptr_t EndOf(std::span<const std::byte> memory) {
  return BeginOf(memory) + memory.size();
}

}  // namespace

Status BoundMemory::CheckFree(ParamId param,
                              std::span<const std::byte> memory) const {
  // Regions are disjoint, so their ends ascend as their beginnings do.
  for (auto it = regions_.lower_bound(EndOf(memory)); it != regions_.begin();) {
    --it;
    const Region& region = it->second;
    if (region.end <= BeginOf(memory)) break;
    if (region.param == param) continue;
    return InvalidArgument("memory for parameter ", param,
                           " overlaps memory that is bound to parameter ",
                           region.param,
                           "; bind a region of its own to each tensor");
  }
  return Status();
}

Status BoundMemory::Bind(ParamId param, const Tensors& tensors) {
  std::map<uintptr_t, Region> added;
  for (const std::span<std::byte> memory : {tensors.values, tensors.grad}) {
    if (memory.empty()) continue;
    SHARD_RETURN_IF_ERROR(CheckFree(param, memory));
    added.emplace(BeginOf(memory), Region{EndOf(memory), param});
  }
  if (!tensors.values.empty() && !tensors.grad.empty() &&
      BeginOf(tensors.values) < EndOf(tensors.grad) &&
      BeginOf(tensors.grad) < EndOf(tensors.values)) {
    return InvalidArgument("values and grad of parameter ", param,
                           " overlap; bind a region of its own to each tensor");
  }
  const auto p = static_cast<size_t>(param);
  if (tensors_.size() <= p) tensors_.resize(p + 1);
  // Nothing fails from here on.
  for (const std::span<std::byte> memory :
       {tensors_[p].values, tensors_[p].grad}) {
    if (!memory.empty()) regions_.erase(BeginOf(memory));
  }
  regions_.merge(added);
  tensors_[p] = tensors;
  return Status();
}

}  // namespace shard
