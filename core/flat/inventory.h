// SPDX-License-Identifier: Apache-2.0
//
// Inventory: the stored parameters of a model, sorted into units and buffers in
// one pass. The pass reads no names and no shapes, only their hashes: for a
// million parameters it is bound by memory. What it writes becomes part of the
// plan.

#ifndef SHARD_CORE_FLAT_INVENTORY_H_
#define SHARD_CORE_FLAT_INVENTORY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "core/flat/fingerprint.h"
#include "core/flat/plan.h"
#include "core/model/model.h"

namespace shard {

struct UnitInventory {
  ModuleId module;
  int32_t parent;  // Index into Inventory::units; -1 for the root.
  int32_t depth;   // Number of units around it.
  uint32_t num_buffers = 0;
};

// The properties that the buffers of one dtype and param group share. There are
// few kinds and may be very many buffers.
struct BufferKind {
  DType dtype;
  bool trainable;
  // kDefaultGroup when frozen: such a buffer has parameters of all groups.
  GroupId group;
  DType grad_dtype;
  bool owned_whole;  // Every parameter has one owner.
  FlatLayout::Alignment alignment;
};

// One flat buffer.
struct BufferInventory {
  int32_t unit;  // Index into Inventory::units.
  int32_t kind;  // Index into Inventory::kinds.
  // Index of its first parameter, among those of all buffers.
  uint32_t first = 0;
  uint32_t count = 0;  // Number of its parameters.
  // The end of its slots, of AppendSlot.
  int64_t end = 0;

  // Returns the part of `all`, which has an element for each parameter of all
  // buffers, that belongs to this buffer.
  template <typename T>
  std::span<T> PartOf(std::span<T> all) const {
    return all.subspan(first, count);
  }
};

struct Inventory {
  // Returns the parameters of one buffer, in module-walk order.
  std::span<const Slot> SlotsOf(const BufferInventory& buffer) const {
    return buffer.PartOf(std::span(slots));
  }
  const BufferKind& KindOf(const BufferInventory& buffer) const {
    return kinds[static_cast<size_t>(buffer.kind)];
  }

  // In module-walk order; the root first.
  std::vector<UnitInventory> units;
  // In order of first occurrence, as the buffers are.
  std::vector<BufferKind> kinds;
  std::vector<BufferInventory> buffers;
  // Every stored parameter once, one buffer after the other. Their offsets are
  // those of buffers that are cut evenly.
  std::vector<Slot> slots;
  // By ParamId, with the same offsets. A parameter with several names is where
  // its first name is.
  std::vector<ParamPlace> places;

  // False where no two keys of the plan can be equal (CheckKeys).
  bool keys_may_collide = false;
};

// Takes the inventory of a model. `wrapped` lists the modules that are units
// beside the root, in module-walk order. Adds to `fingerprint` all that the
// walk meets: the tree with its names, shapes, dtypes, flags, groups, ties and
// units, but no class names. O(modules + parameters), independent of the units.
// REQUIRES: options that Plan::Create checked.
Inventory TakeInventory(const Model& model, const PlanOptions& options,
                        const std::vector<ModuleId>& wrapped,
                        Fingerprint* fingerprint);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_INVENTORY_H_
