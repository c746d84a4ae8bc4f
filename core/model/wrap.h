// SPDX-License-Identifier: Apache-2.0
//
// WrapPolicy: which modules of a model become units. A unit is what is gathered
// and reduced together: its outermost module's parameters, but for those of
// units nested in it. The root is always a unit.
//
// In text, policies separated by '|' (a module is wrapped when any of them says
// so):
//   always                       every module
//   class?names=Block,MLP        by class name
//   size?min_numel=100000000&force_leaf=Attention&exclude=ModuleList,ModuleDict
//                                modules that hold at least so many elements
//                                beyond those of units within; not below
//                                force_leaf, never exclude itself
// and a predicate of the host's, any-of with them.
//
// The results are those of torch.distributed.fsdp.wrap, with its order: what is
// wrapped further in no longer counts for the size further out.

#ifndef SHARD_CORE_MODEL_WRAP_H_
#define SHARD_CORE_MODEL_WRAP_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/model.h"

namespace shard {

class WrapPolicy {
 public:
  // True when the module is to be a unit. `nonwrapped_numel`: its elements, but
  // for those of ignored parameters and of units within it.
  using Predicate = std::function<bool(ModuleId module,
                                       int64_t nonwrapped_numel)>;

  // Wraps nothing but the root.
  WrapPolicy() = default;

  static StatusOr<WrapPolicy> Parse(std::string_view text);

  void SetPredicate(Predicate predicate);

 private:
};

}  // namespace shard

#endif  // SHARD_CORE_MODEL_WRAP_H_
