// SPDX-License-Identifier: Apache-2.0
//
// Inventory: one pass over a model, which finds every parameter that is stored
// and sorts them into buffers. It builds no names: for a million parameters the
// pass is bound by memory, and the names go straight into the fingerprint.

#ifndef SHARD_CORE_FLAT_INVENTORY_H_
#define SHARD_CORE_FLAT_INVENTORY_H_

#include <cstdint>
#include <vector>

#include "core/base/dtype.h"
#include "core/flat/fingerprint.h"
#include "core/model/model.h"

namespace shard {

// The parameters of one flat buffer, in module-walk order.
struct BufferInventory {
  DType dtype;
  bool trainable;
  GroupId group;  // kDefaultGroup when frozen: those of all groups are here.
  std::vector<ParamId> params;
  std::vector<int64_t> numels;
};

struct Inventory {
  // In order of first occurrence.
  std::vector<BufferInventory> buffers;
  // Every stored parameter once, in module-walk order.
  std::vector<ParamId> walk;
  // By ParamId: the index into `buffers`, or -1 when it is ignored.
  std::vector<int32_t> buffer_of;
};

// Adds to `fingerprint` all that the walk meets: the tree with its names,
// shapes, dtypes, flags, groups, ties. Class names are no part of it.
Inventory TakeInventory(const Model& model, Fingerprint* fingerprint);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_INVENTORY_H_
