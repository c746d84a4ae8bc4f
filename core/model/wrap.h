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
//                                beyond those of units within; neither
//                                force_leaf nor what is below it, and never
//                                exclude itself
// and a predicate of the host's, any-of with them.
//
// The results are those of torch.distributed.fsdp.wrap, with its order: what is
// wrapped further in no longer counts for the size further out. As there, any
// other policy beside `size` goes below force_leaf and what is small, and then
// `size` is asked there too. A parameter of several names counts where it has
// its first in module-walk order, so that it counts once.
//
// Threads: const members may run concurrently, as far as the predicate may.

#ifndef SHARD_CORE_MODEL_WRAP_H_
#define SHARD_CORE_MODEL_WRAP_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/model/model.h"

namespace shard {

class WrapPolicy {
 public:
  // True when the module is to be a unit. `nonwrapped_numel`: its elements, but
  // for those of ignored parameters and of units within it.
  using Predicate =
      std::function<bool(ModuleId module, int64_t nonwrapped_numel)>;

  // Wraps nothing but the root.
  WrapPolicy() = default;

  // Empty text is no policy. Errors name the policy, key or value and what is
  // allowed.
  static StatusOr<WrapPolicy> Parse(std::string_view text);

  // Asked of every module that no other policy wraps, but not of the root; of
  // those within before those around them.
  void SetPredicate(Predicate predicate) { predicate_ = std::move(predicate); }

  // Wraps the modules whose entry in `wrapped`, by ModuleId, is true.
  static WrapPolicy OfModules(std::vector<bool> wrapped, std::string text = "");

  // What Parse was given, or OfModules.
  const std::string& text() const { return text_; }

  // The modules that become units beside the root, in module-walk order.
  // Modules of `also_classes` are among them, as by one more policy `class`.
  // Nothing in an ignored module is. O(modules + parameters), no recursion.
  std::vector<ModuleId> Run(
      const Model& model,
      const std::vector<std::string>& also_classes = {}) const;

 private:
  struct Rule {
    enum class Kind { kAlways, kClass, kSize };
    Kind kind;
    std::vector<std::string> names;  // kClass.
    int64_t min_numel = 0;           // kSize, and below.
    std::vector<std::string> force_leaf;
    std::vector<std::string> exclude;
  };

  static StatusOr<Rule> ParseRule(std::string_view text);

  // Whether to look at the modules in one that holds `numel` elements.
  static bool Enters(const Rule& rule, const Model::Module& module,
                     int64_t numel);
  static bool Wraps(const Rule& rule, const Model::Module& module,
                    int64_t nonwrapped_numel);

  std::string text_;
  std::vector<Rule> rules_;
  Predicate predicate_;
};

}  // namespace shard

#endif  // SHARD_CORE_MODEL_WRAP_H_
