// SPDX-License-Identifier: Apache-2.0

#include "core/model/wrap.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "core/base/spec.h"
#include "core/base/strings.h"
#include "core/model/names.h"
#include "core/model/walk.h"

namespace shard {

namespace {

// The defaults of torch's size_based_auto_wrap_policy.
constexpr int64_t kDefaultMinNumel = 100'000'000;
constexpr const char* kDefaultForceLeaf = "MultiheadAttention";
constexpr const char* kDefaultExclude = "ModuleList,ModuleDict";

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// No policy's minimum exceeds this number.
constexpr int64_t kMaxNumel = std::numeric_limits<int64_t>::max();

// Adds without overflow.
int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kMaxNumel : sum;
}

struct Node {
  ModuleId module;
  int32_t parent;  // Index into the nodes; -1 for the root.
  int64_t numel;   // With the elements of all modules below it; 0: not counted.
  int64_t wrapped = 0;
  bool reached = false;  // A policy reaches this module.
  bool entered = false;  // A policy reaches the modules below it.
  bool wraps = false;
};

// Returns the modules that are not ignored, in module-walk order. Counts their
// elements if `count_numels`, which takes most of the time.
std::vector<Node> NodesOf(const Model& model, bool count_numels) {
  std::vector<Node> nodes;
  nodes.reserve(model.modules().size());
  std::vector<int32_t> path;  // The node at each depth.
  std::vector<bool> counted(count_numels ? model.params().size() : 0);
  WalkModel(
      model,
      [&](ModuleId id, int depth) {
        if (model.modules()[static_cast<size_t>(id)].ignored) return false;
        path.resize(static_cast<size_t>(depth));
        const int32_t parent = path.empty() ? -1 : path.back();
        path.push_back(static_cast<int32_t>(nodes.size()));
        nodes.push_back({id, parent, 0});
        return true;
      },
      [&](int32_t index) {
        if (!count_numels) return;
        const auto param = static_cast<size_t>(
            model.references()[static_cast<size_t>(index)].param);
        const Model::Param& info = model.params()[param];
        if (info.ignored || counted[param]) return;
        counted[param] = true;
        nodes.back().numel = SaturatingAdd(nodes.back().numel, info.numel);
      });
  for (size_t i = count_numels ? nodes.size() : 0; i > 1; --i) {
    Node& parent = nodes[static_cast<size_t>(nodes[i - 1].parent)];
    parent.numel = SaturatingAdd(parent.numel, nodes[i - 1].numel);
  }
  return nodes;
}

// Marks the nodes that policies reach and enter. `enters(node)` returns whether
// a policy looks at the modules inside a reached node.
template <typename Enters>
void MarkReached(std::vector<Node>* nodes, Enters enters) {
  for (Node& node : *nodes) {
    node.reached =
        node.parent < 0 || (*nodes)[static_cast<size_t>(node.parent)].entered;
    node.entered = node.reached && enters(node);
  }
}

// Calls `leave(node)` for every reached node, inner nodes before those around
// them. A node is left when the next one is not inside it.
template <typename Leave>
void InPostOrder(std::vector<Node>* nodes, Leave leave) {
  std::vector<int32_t> open;
  const auto leave_until = [&](int32_t parent) {
    while (!open.empty() && open.back() != parent) {
      const int32_t node = open.back();
      open.pop_back();
      leave(&(*nodes)[static_cast<size_t>(node)]);
    }
  };
  for (size_t i = 0; i < nodes->size(); ++i) {
    const Node& node = (*nodes)[i];
    if (!node.reached) continue;
    leave_until(node.parent);
    open.push_back(static_cast<int32_t>(i));
  }
  leave_until(-1);
}

// Parses "a,b". `key` is for messages.
StatusOr<std::vector<std::string>> ParseNames(std::string_view key,
                                              const std::string& text) {
  std::vector<std::string> names;
  if (text.empty()) return names;
  for (const std::string_view name : Split(text, ',')) {
    if (name.empty()) {
      return InvalidArgument(key, "='", text, "' holds an empty class name");
    }
    names.emplace_back(name);
  }
  return names;
}

}  // namespace

StatusOr<WrapPolicy::Rule> WrapPolicy::ParseRule(std::string_view text) {
  SHARD_ASSIGN_OR_RETURN(Spec spec, Spec::Parse(text));
  Rule rule = {};
  const auto take_names = [&spec](std::string_view key, const char* fallback) {
    return ParseNames(key, spec.TakeString(key, fallback));
  };
  if (spec.name() == "always") {
    rule.kind = Rule::Kind::kAlways;
  } else if (spec.name() == "class") {
    rule.kind = Rule::Kind::kClass;
    SHARD_ASSIGN_OR_RETURN(rule.names, take_names("names", ""));
  } else if (spec.name() == "size") {
    rule.kind = Rule::Kind::kSize;
    SHARD_ASSIGN_OR_RETURN(rule.min_numel,
                           spec.TakeInt("min_numel", kDefaultMinNumel));
    SHARD_ASSIGN_OR_RETURN(rule.force_leaf,
                           take_names("force_leaf", kDefaultForceLeaf));
    SHARD_ASSIGN_OR_RETURN(rule.exclude,
                           take_names("exclude", kDefaultExclude));
  } else {
    return InvalidArgument("unknown wrap policy '", spec.name(),
                           "'; known: always, class, size");
  }
  if (spec.has_colon()) {
    return InvalidArgument("wrap policy '", spec.name(),
                           "' takes nothing after ':', but has '", spec.body(),
                           "'");
  }
  SHARD_RETURN_IF_ERROR(spec.CheckAllTaken());
  if (rule.kind == Rule::Kind::kClass && rule.names.empty()) {
    return InvalidArgument(
        "wrap policy 'class' names no class; write class?names=Block,MLP");
  }
  if (rule.min_numel < 0) {
    return InvalidArgument("min_numel=", rule.min_numel,
                           " is negative; it is a number of elements");
  }
  return rule;
}

StatusOr<WrapPolicy> WrapPolicy::Parse(std::string_view text) {
  if (!IsValidUtf8(text)) {
    return InvalidArgument("the wrap policy is not valid UTF-8 without NUL");
  }
  WrapPolicy policy;
  policy.text_ = text;
  if (text.empty()) return policy;
  for (const std::string_view part : Split(text, '|')) {
    auto rule = ParseRule(part);
    if (!rule.ok()) {
      return rule.status().WithContext(StrCat("wrap policy '", text, "'"));
    }
    policy.rules_.push_back(std::move(*rule));
  }
  return policy;
}

WrapPolicy WrapPolicy::OfModules(std::vector<bool> wrapped, std::string text) {
  WrapPolicy policy;
  policy.text_ = std::move(text);
  policy.predicate_ = [wrapped = std::move(wrapped)](ModuleId module, int64_t) {
    return wrapped[static_cast<size_t>(module)];
  };
  return policy;
}

Status WrapPolicy::CheckMatches(const Model& model,
                                const ClassSet& also_classes) const {
  const bool enters_all =
      predicate_ != nullptr || !also_classes.empty() ||
      std::any_of(rules_.begin(), rules_.end(), [](const Rule& rule) {
        return rule.kind != Rule::Kind::kSize;
      });
  ClassSet classes;
  for (const Rule& rule : rules_) {
    if (rule.kind == Rule::Kind::kSize) {
      SHARD_RETURN_IF_ERROR(CheckSizeMatches(rule, model, enters_all));
    }
    if (rule.kind != Rule::Kind::kClass) continue;
    if (classes.empty()) classes = ClassSet::Of(model);
    SHARD_RETURN_IF_ERROR(
        classes.CheckContains("wrap policy 'class'", rule.names));
  }
  return Status();
}

Status WrapPolicy::CheckSizeMatches(const Rule& rule, const Model& model,
                                    bool enters_all) const {
  std::vector<Node> nodes = NodesOf(model, true);
  if (nodes.size() <= 1 || nodes[0].numel < rule.min_numel) return Status();
  const auto module_of = [&model](const Node& node) -> const Model::Module& {
    return model.modules()[static_cast<size_t>(node.module)];
  };
  // Enters modules as if this rule had the smallest min_numel, so that the
  // modules left out are those that no other value would take either.
  MarkReached(&nodes, [&](const Node& node) {
    return enters_all ||
           std::any_of(rules_.begin(), rules_.end(), [&](const Rule& other) {
             return Enters(other, module_of(node),
                           &other == &rule ? kMaxNumel : node.numel);
           });
  });
  const Node* largest = nullptr;   // Among those that the rule may take.
  const Node* excluded = nullptr;  // Among those whose class is in a list.
  for (size_t i = 1; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    if (!node.reached) continue;
    const bool may_take =
        node.entered && !Contains(rule.exclude, module_of(node).class_name);
    const Node*& best = may_take ? largest : excluded;
    if (best == nullptr || node.numel > best->numel) best = &node;
  }
  // A module that is large enough is taken: either itself or, where units
  // within leave it too little, one of those.
  if (largest != nullptr && largest->numel >= rule.min_numel) return Status();
  const auto describe = [&model](const Node& node) {
    return StrCat(QuoteName(model.ModuleFqn(node.module)), " with ", node.numel,
                  " elements");
  };
  std::string reason =
      largest != nullptr && largest->numel > 0
          ? StrCat("the largest module that it may take is ",
                   describe(*largest), "; use a smaller min_numel")
          : "force_leaf and exclude leave it no module with elements";
  if (excluded != nullptr && excluded->numel >= rule.min_numel) {
    const std::string& name = module_of(*excluded).class_name;
    StrAppend(&reason, " (", describe(*excluded), " is of class ",
              QuoteName(name), ", which is in ",
              Contains(rule.exclude, name) ? "exclude" : "force_leaf", ")");
  }
  return InvalidArgument("wrap policy 'size' with min_numel=", rule.min_numel,
                         " matches nothing: the model has ", nodes[0].numel,
                         " elements, and ", reason);
}

bool WrapPolicy::Enters(const Rule& rule, const Model::Module& module,
                        int64_t numel) {
  return rule.kind != Rule::Kind::kSize ||
         (numel >= rule.min_numel &&
          !Contains(rule.force_leaf, module.class_name));
}

bool WrapPolicy::Wraps(const Rule& rule, const Model::Module& module,
                       int64_t nonwrapped_numel) {
  switch (rule.kind) {
    case Rule::Kind::kAlways:
      return true;
    case Rule::Kind::kClass:
      return Contains(rule.names, module.class_name);
    case Rule::Kind::kSize:
      return nonwrapped_numel >= rule.min_numel &&
             !Contains(rule.exclude, module.class_name);
  }
  return false;
}

std::vector<ModuleId> WrapPolicy::Run(const Model& model,
                                      const ClassSet& also_classes) const {
  std::vector<ModuleId> wrapped;
  const bool enters_all = predicate_ != nullptr || !also_classes.empty();
  if (rules_.empty() && !enters_all) return wrapped;

  // Only sizes and predicates look at elements.
  const bool count_numels =
      predicate_ != nullptr ||
      std::any_of(rules_.begin(), rules_.end(), [](const Rule& rule) {
        return rule.kind == Rule::Kind::kSize;
      });
  std::vector<Node> nodes = NodesOf(model, count_numels);
  const auto module_of = [&model](const Node& node) -> const Model::Module& {
    return model.modules()[static_cast<size_t>(node.module)];
  };
  MarkReached(&nodes, [&](const Node& node) {
    return enters_all ||
           std::any_of(rules_.begin(), rules_.end(), [&](const Rule& rule) {
             return Enters(rule, module_of(node), node.numel);
           });
  });
  InPostOrder(&nodes, [&](Node* node) {
    if (node->parent < 0) return;
    const Model::Module& module = module_of(*node);
    const int64_t rest = node->numel - node->wrapped;
    node->wraps = node->entered &&
                  (std::any_of(rules_.begin(), rules_.end(),
                               [&](const Rule& rule) {
                                 return Wraps(rule, module, rest);
                               }) ||
                   also_classes.Contains(module.class_name) ||
                   (predicate_ != nullptr && predicate_(node->module, rest)));
    Node& parent = nodes[static_cast<size_t>(node->parent)];
    parent.wrapped = SaturatingAdd(parent.wrapped,
                                   node->wraps ? node->numel : node->wrapped);
  });
  for (const Node& node : nodes) {
    if (node.wraps) wrapped.push_back(node.module);
  }
  return wrapped;
}

}  // namespace shard
