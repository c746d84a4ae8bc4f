// SPDX-License-Identifier: Apache-2.0
//
// Inventory: the stored parameters of a model, sorted into units and buffers in
// one pass. It builds no names: for a million parameters the pass is bound by
// memory, and the names go straight into the fingerprint.

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
};

// One flat buffer.
struct BufferInventory {
  int32_t unit;  // Index into Inventory::units.
  int32_t kind;  // Index into Inventory::kinds.
  // Index of its first parameter, among those of all buffers.
  uint32_t first = 0;
  uint32_t count = 0;  // Number of its parameters.

  // Returns the part of `all`, which has an element for each parameter of all
  // buffers, that belongs to this buffer.
  template <typename T>
  std::span<T> PartOf(std::span<T> all) const {
    return all.subspan(first, count);
  }
};

struct Inventory {
  // Return the parameters of one buffer, and their sizes, in module-walk order.
  std::span<const ParamId> ParamsOf(const BufferInventory& buffer) const {
    return buffer.PartOf(
        std::span(params_by_buffer.empty() ? walk : params_by_buffer));
  }
  std::span<const int64_t> NumelsOf(const BufferInventory& buffer) const {
    return buffer.PartOf(std::span(numels_by_buffer));
  }
  const BufferKind& KindOf(const BufferInventory& buffer) const {
    return kinds[static_cast<size_t>(buffer.kind)];
  }

  // In module-walk order; the root first.
  std::vector<UnitInventory> units;
  // In order of first occurrence, as the buffers are.
  std::vector<BufferKind> kinds;
  std::vector<BufferInventory> buffers;
  // Every stored parameter once, in module-walk order.
  std::vector<ParamId> walk;
  // By ParamId: the index into `walk`, or -1 when the parameter is ignored. A
  // parameter with several names is where its first name is.
  std::vector<int32_t> positions;
  // The parameters of one buffer after the other, empty where that is the order
  // of the walk; and their sizes.
  std::vector<ParamId> params_by_buffer;
  std::vector<int64_t> numels_by_buffer;

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
