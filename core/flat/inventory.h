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

// One flat buffer.
struct BufferInventory {
  int32_t unit;  // Index into Inventory::units.
  DType dtype;
  bool trainable;
  // kDefaultGroup when frozen: such a buffer has parameters of all groups.
  GroupId group;
  DType grad_dtype;
  bool owned_whole;  // Every parameter has one owner.
  // Index of its first parameter, among those of all buffers.
  size_t first = 0;
  size_t count = 0;  // Number of its parameters.
  // Bytes of gradients or frozen parameters, without padding.
  int64_t bytes = 0;
};

class Inventory {
 public:
  // Return the parameters of one buffer, and their sizes, in module-walk order.
  std::span<const ParamId> ParamsOf(const BufferInventory& buffer) const {
    return Part(params_by_buffer_.empty() ? walk : params_by_buffer_, buffer);
  }
  std::span<const int64_t> NumelsOf(const BufferInventory& buffer) const {
    return Part(params_by_buffer_.empty() ? numels : numels_by_buffer_, buffer);
  }

  // In module-walk order; the root first.
  std::vector<UnitInventory> units;
  // In order of first occurrence.
  std::vector<BufferInventory> buffers;
  // Every stored parameter once, in module-walk order, and its size.
  std::vector<ParamId> walk;
  std::vector<int64_t> numels;
  // By ParamId: the index into `buffers`, or -1 when the parameter is ignored.
  // A parameter with several names is where its first name is.
  std::vector<int32_t> buffer_of;

  // False where no two keys of the plan can be equal (CheckKeys).
  bool keys_may_collide = false;

  // Groups the parameters by buffer. Call it once, when all of them are added.
  void SortByBuffer();

 private:
  template <typename T>
  static std::span<const T> Part(const std::vector<T>& all,
                                 const BufferInventory& buffer) {
    return std::span<const T>(all).subspan(buffer.first, buffer.count);
  }

  // Empty when the walk is in the order of buffers already.
  std::vector<ParamId> params_by_buffer_;
  std::vector<int64_t> numels_by_buffer_;
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
