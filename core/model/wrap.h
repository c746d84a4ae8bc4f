// SPDX-License-Identifier: Apache-2.0
//
// WrapPolicy: decides which modules of a model become units. A unit is gathered
// and reduced as a whole: it has the parameters of its outermost module, except
// those of units nested in it. The root is always a unit.
//
// In text, policies are separated by '|', and a module is wrapped when any of
// them wraps it:
//   always                       every module
//   class?names=Block,MLP        by class name
//   size?min_numel=100000000&force_leaf=Attention&exclude=ModuleList,ModuleDict
//                                modules that hold at least so many elements
//                                outside of units within; neither force_leaf
//                                nor what is below it, and never exclude itself
// A predicate of the host may be set beside them and counts as one more policy.
//
// The results are those of torch.distributed.fsdp.wrap, with its order:
// parameters that are wrapped further in no longer count for the size of
// modules further out. As in torch, every other policy beside `size` also
// reaches modules below force_leaf and modules that are too small; then `size`
// is asked there, too. A parameter with several names counts once, at its first
// name in module-walk order.
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
#include "core/model/classes.h"
#include "core/model/model.h"

namespace shard {

class WrapPolicy {
 public:
  // Returns true when the module is to become a unit. `nonwrapped_numel` is the
  // number of its elements, without those of ignored parameters and of units
  // within.
  using Predicate =
      std::function<bool(ModuleId module, int64_t nonwrapped_numel)>;

  // Makes a policy that wraps nothing but the root.
  WrapPolicy() = default;

  // Parses a policy text. Empty text is no policy. Errors name the policy, key
  // or value and list the allowed ones.
  static StatusOr<WrapPolicy> Parse(std::string_view text);

  // Sets the host's predicate. It is asked about every module but the root that
  // no other policy wraps, inner modules before those around them.
  void SetPredicate(Predicate predicate) { predicate_ = std::move(predicate); }

  // Returns a policy that wraps the modules whose entry in `wrapped`, by
  // ModuleId, is true.
  static WrapPolicy OfModules(std::vector<bool> wrapped, std::string text = "");

  // Returns the text that Parse or OfModules was given.
  const std::string& text() const { return text_; }

  // Returns an error for a name of `class` that no module has, and for a `size`
  // that is at most the model's but more than that of any module that the
  // policy may take. Such values were mistyped. A model smaller than a `size`
  // is one unit, which is what the policy means. Does not call the predicate.
  // REQUIRES: the `also_classes` that Run will be given.
  Status CheckMatches(const Model& model,
                      const ClassSet& also_classes = ClassSet()) const;

  // Returns the modules that become units beside the root, in module-walk
  // order. Modules of `also_classes` are among them, as by one more policy
  // `class`. Nothing in an ignored module becomes a unit. O(modules +
  // parameters), no recursion.
  std::vector<ModuleId> Run(const Model& model,
                            const ClassSet& also_classes = ClassSet()) const;

 private:
  struct Rule {
    enum class Kind { kAlways, kClass, kSize };
    Kind kind;
    std::vector<std::string> names;  // For kClass.
    int64_t min_numel = 0;           // For kSize, as the lists below.
    std::vector<std::string> force_leaf;
    std::vector<std::string> exclude;
  };

  static StatusOr<Rule> ParseRule(std::string_view text);
  // `enters_all`: policies other than `size` reach every module.
  Status CheckSizeMatches(const Rule& rule, const Model& model,
                          bool enters_all) const;

  // Returns true when to look at the modules inside one that holds `numel`
  // elements.
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
