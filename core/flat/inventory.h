// SPDX-License-Identifier: Apache-2.0
//
// Inventory: one pass over a model, which finds every parameter that is stored
// and sorts them into units and buffers. It builds no names: for a million
// parameters the pass is bound by memory, and the names go straight into the
// fingerprint.

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
  int32_t depth;   // How many units it is in.
};

// One flat buffer.
struct BufferInventory {
  int32_t unit;  // Index into Inventory::units.
  DType dtype;
  bool trainable;
  GroupId group;  // kDefaultGroup when frozen: those of all groups are here.
  DType grad_dtype;
  bool owned_whole;   // Every parameter has one owner.
  size_t first = 0;   // Of its parameters, among those of all buffers.
  size_t count = 0;   // How many they are.
  int64_t bytes = 0;  // Of its gradients or what is frozen, without padding.
};

class Inventory {
 public:
  // The parameters of one buffer, and their sizes, in module-walk order.
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
  // By ParamId: the index into `buffers`, or -1 when it is ignored. A parameter
  // of several names is where its first one is.
  std::vector<int32_t> buffer_of;

  // Puts each buffer's parameters together. Once, when all of them are there.
  void SortByBuffer();

 private:
  template <typename T>
  static std::span<const T> Part(const std::vector<T>& all,
                                 const BufferInventory& buffer) {
    return std::span<const T>(all).subspan(buffer.first, buffer.count);
  }

  // Empty where the walk is in the order of buffers.
  std::vector<ParamId> params_by_buffer_;
  std::vector<int64_t> numels_by_buffer_;
};

// `wrapped`: the modules that are units beside the root, in module-walk order.
// Adds to `fingerprint` all that the walk meets: the tree with its names,
// shapes, dtypes, flags, groups, ties, units. Class names are no part of it.
// O(modules + parameters) whatever the units.
// REQUIRES: options that Plan::Create checked.
Inventory TakeInventory(const Model& model, const PlanOptions& options,
                        const std::vector<ModuleId>& wrapped,
                        Fingerprint* fingerprint);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_INVENTORY_H_
