// SPDX-License-Identifier: Apache-2.0

#include "core/optim/optimizer.h"

#include <cstddef>
#include <iterator>
#include <utility>

#include "core/base/spec.h"
#include "core/base/strings.h"
#include "kernels/formula/all.h"
#include "kernels/formula/hyper.h"

namespace shard {

namespace {

// A formula's declarations, with the type taken away.
struct FormulaInfo {
  Formula id;
  const char* name;
  const Hyper* hypers;
  size_t num_hypers;
  const char* const* states;
  int num_states;
  bool (*serves)(const double* hypers);
  const char* (*conflict)(const double* hypers);
};

constexpr FormulaInfo kFormulas[] = {
#define SHARD_FORMULA_INFO(Name)                  \
  {                                               \
      Formula::k##Name, Name::kName,              \
      Name::kHypers,    std::size(Name::kHypers), \
      Name::kStates,    Name::kNumStates,         \
      &Name::Serves,    &Name::Conflict},
    SHARD_FORMULAS(SHARD_FORMULA_INFO)
#undef SHARD_FORMULA_INFO
};

const FormulaInfo& InfoOf(Formula formula) {
  return kFormulas[static_cast<size_t>(formula)];
}

std::string KnownNames() {
  std::string names;
  std::string_view last;
  for (const FormulaInfo& info : kFormulas) {
    // The forms of one optimizer stand together and share its name.
    if (info.name == last) continue;
    last = info.name;
    StrAppend(&names, names.empty() ? "" : ", ", info.name);
  }
  return names;
}

std::string RangeText(const Hyper& hyper) {
  if (hyper.flag) return "0 or 1";
  if (hyper.max < kNoMaximum && hyper.min > -kNoMaximum) {
    return StrCat("[", hyper.min, ", ", hyper.max, hyper.closed ? "]" : ")");
  }
  if (hyper.min > -kNoMaximum) return StrCat("at least ", hyper.min);
  if (hyper.max < kNoMaximum) return StrCat("at most ", hyper.max);
  return "any finite number";
}

Status CheckRange(const char* optimizer, const Hyper& hyper, double value) {
  const bool above = value >= hyper.min;
  const bool below = hyper.closed ? value <= hyper.max : value < hyper.max;
  const bool whole = !hyper.flag || value == 0 || value == 1;
  // NaN fails every comparison.
  if (above && below && whole) return Status();
  return InvalidArgument(optimizer, ": ", hyper.name, "=", value,
                         " is out of range; allowed: ", RangeText(hyper));
}

}  // namespace

StatusOr<Optimizer> Optimizer::Parse(std::string_view text) {
  SHARD_ASSIGN_OR_RETURN(Spec spec,
                         Spec::Parse(text.empty() ? AdamW::kName : text));
  const FormulaInfo* info = nullptr;
  for (const FormulaInfo& candidate : kFormulas) {
    if (spec.name() == candidate.name) {
      info = &candidate;
      break;
    }
  }
  if (info == nullptr || spec.has_colon()) {
    return InvalidArgument("unknown optimizer '", text,
                           "'; known: ", KnownNames(),
                           ", followed by ?key=value&key=value");
  }

  Optimizer optimizer;
  for (size_t i = 0; i < info->num_hypers; ++i) {
    const Hyper& hyper = info->hypers[i];
    SHARD_ASSIGN_OR_RETURN(const double value,
                           spec.TakeDouble(hyper.name, hyper.fallback));
    SHARD_RETURN_IF_ERROR(CheckRange(info->name, hyper, value));
    optimizer.hypers_.push_back(value);
  }
  SHARD_RETURN_IF_ERROR(spec.CheckAllTaken());
  const double* values = optimizer.hypers_.data();
  if (const char* conflict = info->conflict(values)) {
    return InvalidArgument(info->name, ": ", conflict, " in '", text, "'");
  }
  for (const FormulaInfo& form : kFormulas) {
    if (std::string_view(form.name) == info->name && form.serves(values)) {
      optimizer.formula_ = form.id;
      optimizer.state_names_.assign(form.states, form.states + form.num_states);
      return optimizer;
    }
  }
  return Internal("no formula serves '", text, "'");
}

StatusOr<double> Optimizer::Get(std::string_view key) const {
  const FormulaInfo& info = InfoOf(formula_);
  for (size_t i = 0; i < info.num_hypers; ++i) {
    if (key == info.hypers[i].name) return hypers_[i];
  }
  return NotFound(info.name, " has no hyperparameter '", key, "'");
}

Status Optimizer::Set(std::string_view key, double value) {
  const FormulaInfo& info = InfoOf(formula_);
  for (size_t i = 0; i < info.num_hypers; ++i) {
    const Hyper& hyper = info.hypers[i];
    if (key != hyper.name) continue;
    SHARD_RETURN_IF_ERROR(CheckRange(info.name, hyper, value));
    std::vector<double> changed = hypers_;
    changed[i] = value;
    if (const char* conflict = info.conflict(changed.data())) {
      return InvalidArgument(info.name, ": ", conflict, "; ", key, "=", value);
    }
    if (!info.serves(changed.data())) {
      return FailedPrecondition(info.name, ": ", key, "=", value,
                                " needs other optimizer states than those "
                                "allocated; create a new plan");
    }
    hypers_ = std::move(changed);
    return Status();
  }
  return NotFound(info.name, " has no hyperparameter '", key, "'");
}

std::string Optimizer::ToString() const {
  const FormulaInfo& info = InfoOf(formula_);
  std::string text = info.name;
  for (size_t i = 0; i < info.num_hypers; ++i) {
    StrAppend(&text, i == 0 ? "?" : "&", info.hypers[i].name, "=", hypers_[i]);
  }
  return text;
}

}  // namespace shard
