// SPDX-License-Identifier: Apache-2.0
//
// The module walk, in one place: pre-order, a module's own parameters before
// its children, everything in the order in which it was added. Names, layouts
// and fingerprints all follow this order.

#ifndef SHARD_CORE_MODEL_WALK_H_
#define SHARD_CORE_MODEL_WALK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/model/model.h"

namespace shard {

// Walks a model: calls `enter(ModuleId, int depth)` for every module, the root
// at depth 0, and then `visit(int32_t reference)` for each of the module's own
// references. When `enter` returns false, the module and all below it are
// skipped.
//
// Does not recurse: a host's tree may be deeper than its thread's stack.
template <typename Enter, typename Visit>
void WalkModel(const Model& model, Enter enter, Visit visit) {
  struct Pending {
    ModuleId module;
    int depth;
  };
  std::vector<Pending> stack = {{kRootModule, 0}};
  while (!stack.empty()) {
    const Pending at = stack.back();
    stack.pop_back();
    if (!enter(at.module, at.depth)) continue;
    const Model::Module& module =
        model.modules()[static_cast<size_t>(at.module)];
    for (size_t i = module.children.size(); i > 0; --i) {
      stack.push_back({module.children[i - 1], at.depth + 1});
    }
    // The list of each module lies somewhere else in memory: waiting for it
    // would take a quarter of the time of planning.
    if (!stack.empty()) {
      __builtin_prefetch(
          model.modules()[static_cast<size_t>(stack.back().module)]
              .references.data());
    }
    for (const int32_t reference : module.references) visit(reference);
  }
}

}  // namespace shard

#endif  // SHARD_CORE_MODEL_WALK_H_
