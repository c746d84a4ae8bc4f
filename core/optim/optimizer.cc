// SPDX-License-Identifier: Apache-2.0

#include "core/optim/optimizer.h"

#include <cstddef>
#include <iterator>
#include <utility>

#include "core/base/spec.h"
#include "core/base/strings.h"
#include "core/optim/workspace.h"
#include "kernels/formula/all.h"
#include "kernels/formula/hyper.h"

namespace shard {

namespace {

// A formula's declarations, independent of its type.
struct FormulaInfo {
  Formula id;
  const char* name;
  const Hyper* hypers;
  size_t num_hypers;
  const char* const* states;
  int num_states;
  bool (*is_for)(const double* hypers);
  const char* (*conflict)(const double* hypers);
  const TensorTraits* tensor;
};

template <class F, Formula kId>
constexpr TensorTraits kTraits = {
    &F::ShapeError, &F::StateNumel, &F::Cost,
    [](const int64_t* shape, int ndim) {
      return WorkspaceNumel(kId, shape, ndim);
    },
    [](const int64_t* shape, int ndim, int64_t count) {
      return GpuWorkspaceNumel(kId, shape, ndim, count);
    }};

constexpr FormulaInfo kFormulas[] = {
#define SHARD_FORMULA_INFO(Name, traits) \
  {Formula::k##Name,                     \
   Name::kName,                          \
   Name::kHypers,                        \
   std::size(Name::kHypers),             \
   Name::kStates,                        \
   Name::kNumStates,                     \
   &Name::IsFor,                         \
   &Name::Conflict,                      \
   traits},
#define SHARD_ELEMENT_INFO(Name) SHARD_FORMULA_INFO(Name, nullptr)
#define SHARD_TENSOR_INFO(Name) \
  SHARD_FORMULA_INFO(Name, (&kTraits<Name, Formula::k##Name>))
    SHARD_ELEMENT_FORMULAS(SHARD_ELEMENT_INFO)
        SHARD_TENSOR_FORMULAS(SHARD_TENSOR_INFO)
#undef SHARD_TENSOR_INFO
#undef SHARD_ELEMENT_INFO
#undef SHARD_FORMULA_INFO
};

const FormulaInfo& InfoOf(Formula formula) {
  return kFormulas[static_cast<size_t>(formula)];
}

std::string KnownNames() {
  std::string names;
  std::string_view last;
  for (const FormulaInfo& info : kFormulas) {
    // The forms of one optimizer are adjacent and share its name.
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
  constexpr std::string_view kFinite = "finite in fp32";
  if (hyper.min > -kNoMaximum) {
    return StrCat("at least ", hyper.min, ", and ", kFinite);
  }
  if (hyper.max < kNoMaximum) {
    return StrCat("at most ", hyper.max, ", and ", kFinite);
  }
  return StrCat("any number that is ", kFinite);
}

Status CheckRange(const char* optimizer, const Hyper& hyper, double value) {
  const bool above = value >= hyper.min;
  const bool below = hyper.closed ? value <= hyper.max : value < hyper.max;
  const bool whole = !hyper.flag || value == 0 || value == 1;
  // NaN fails every comparison.
  if (above && below && whole) return Status();
  return ValueOutOfRange(optimizer, hyper.name, value, RangeText(hyper));
}

size_t NumChoices(const Hyper& hyper) {
  return static_cast<size_t>(hyper.max) + 1;
}

const char* ChoiceName(const Hyper& hyper, double value) {
  return hyper.choices[static_cast<size_t>(value)];
}

StatusOr<double> TakeChoice(Spec* spec, const char* optimizer,
                            const Hyper& hyper, double fallback,
                            StatusCode unknown) {
  const std::string text =
      spec->TakeString(hyper.name, ChoiceName(hyper, fallback));
  std::string known;
  for (size_t i = 0; i < NumChoices(hyper); ++i) {
    if (text == hyper.choices[i]) return static_cast<double>(i);
    StrAppend(&known, i == 0 ? "" : ", ", hyper.choices[i]);
  }
  return Status(unknown, StrCat(optimizer, ": unknown ", hyper.name, "='", text,
                                "'; allowed: ", known));
}

StatusOr<double> TakeValue(Spec* spec, const char* optimizer,
                           const Hyper& hyper, double fallback,
                           StatusCode unknown) {
  if (hyper.choices != nullptr) {
    return TakeChoice(spec, optimizer, hyper, fallback, unknown);
  }
  SHARD_ASSIGN_OR_RETURN(const double value,
                         spec->TakeDouble(hyper.name, fallback));
  SHARD_RETURN_IF_ERROR(CheckRange(optimizer, hyper, value));
  return value;
}

// Returns the dtype of a name in kStorages.
DType StorageOf(std::string_view name) {
  for (const DType dtype : {DType::kBF16, DType::kQ8}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return DType::kF32;
}

}  // namespace

StatusOr<Optimizer> Optimizer::Parse(std::string_view text,
                                     const Optimizer* base,
                                     StatusCode unknown) {
  const bool inherits = base != nullptr && (text.empty() || text[0] == '?');
  const std::string full =
      inherits ? StrCat(InfoOf(base->formula_).name, text)
               : std::string(text.empty() ? AdamW::kName : text);
  SHARD_ASSIGN_OR_RETURN(Spec spec, Spec::Parse(full));
  const FormulaInfo* info = nullptr;
  for (const FormulaInfo& candidate : kFormulas) {
    if (spec.name() == candidate.name) {
      info = &candidate;
      break;
    }
  }
  if (info == nullptr || spec.has_colon()) {
    return Status(
        unknown, StrCat("unknown optimizer '", text, "'; known: ", KnownNames(),
                        ", followed by ?key=value&key=value"));
  }

  Optimizer optimizer;
  for (size_t i = 0; i < info->num_hypers; ++i) {
    const Hyper& hyper = info->hypers[i];
    SHARD_ASSIGN_OR_RETURN(
        const double value,
        TakeValue(&spec, info->name, hyper,
                  inherits ? base->hypers_[i] : hyper.fallback, unknown));
    optimizer.hypers_.push_back(value);
    if (hyper.choices == kStorages) {
      optimizer.state_dtype_ = StorageOf(ChoiceName(hyper, value));
    }
  }
  if (const Status taken = spec.CheckAllTaken(); !taken.ok()) {
    return Status(unknown, taken.message());
  }
  const double* values = optimizer.hypers_.data();
  if (const char* conflict = info->conflict(values)) {
    return InvalidArgument(info->name, ": ", conflict, " in '", text, "'");
  }
  for (const FormulaInfo& form : kFormulas) {
    if (std::string_view(form.name) == info->name && form.is_for(values)) {
      optimizer.formula_ = form.id;
      optimizer.state_names_.assign(form.states, form.states + form.num_states);
      return optimizer;
    }
  }
  return Internal("no formula is for '", text, "'");
}

const TensorTraits* Optimizer::tensor() const {
  return InfoOf(formula_).tensor;
}

StatusOr<double> Optimizer::Get(std::string_view key) const {
  const FormulaInfo& info = InfoOf(formula_);
  for (size_t i = 0; i < info.num_hypers; ++i) {
    if (key == info.hypers[i].name) return hypers_[i];
  }
  return NotFound(info.name, " has no hyperparameter '", key, "'");
}

std::vector<std::pair<std::string, double>> Optimizer::Numbers() const {
  const FormulaInfo& info = InfoOf(formula_);
  std::vector<std::pair<std::string, double>> numbers;
  for (size_t i = 0; i < info.num_hypers; ++i) {
    if (info.hypers[i].choices != nullptr) continue;
    numbers.emplace_back(info.hypers[i].name, hypers_[i]);
  }
  return numbers;
}

Status Optimizer::Set(std::string_view key, double value) {
  const FormulaInfo& info = InfoOf(formula_);
  for (size_t i = 0; i < info.num_hypers; ++i) {
    const Hyper& hyper = info.hypers[i];
    if (key != hyper.name) continue;
    if (hyper.choices != nullptr && value != hypers_[i]) {
      return FailedPrecondition(info.name, ": ", key, " is ",
                                ChoiceName(hyper, hypers_[i]),
                                " and cannot change; create a new plan");
    }
    SHARD_RETURN_IF_ERROR(CheckRange(info.name, hyper, value));
    std::vector<double> changed = hypers_;
    changed[i] = value;
    if (const char* conflict = info.conflict(changed.data())) {
      return InvalidArgument(info.name, ": ", conflict, "; ", key, "=", value);
    }
    if (!info.is_for(changed.data())) {
      return FailedPrecondition(info.name, ": ", key, "=", value,
                                " needs other optimizer states than those "
                                "allocated; create a new plan");
    }
    hypers_ = std::move(changed);
    return Status();
  }
  return NotFound(info.name, " has no hyperparameter '", key, "'");
}

Status Optimizer::RestoreNumbers(const Optimizer& other) {
  const FormulaInfo& info = InfoOf(formula_);
  if (other.formula_ != formula_) {
    return FailedPrecondition("the optimizer is ", info.name, ", not ",
                              InfoOf(other.formula_).name);
  }
  std::vector<double> changed = other.hypers_;
  for (size_t i = 0; i < info.num_hypers; ++i) {
    if (info.hypers[i].choices != nullptr) changed[i] = hypers_[i];
  }
  if (const char* conflict = info.conflict(changed.data())) {
    return InvalidArgument(info.name, ": ", conflict);
  }
  if (!info.is_for(changed.data())) {
    return FailedPrecondition(other.ToString(),
                              " needs other optimizer states than those "
                              "allocated");
  }
  hypers_ = std::move(changed);
  return Status();
}

std::string Optimizer::ToString() const {
  const FormulaInfo& info = InfoOf(formula_);
  std::string text = info.name;
  for (size_t i = 0; i < info.num_hypers; ++i) {
    const Hyper& hyper = info.hypers[i];
    StrAppend(&text, i == 0 ? "?" : "&", hyper.name, "=");
    if (hyper.choices != nullptr) {
      StrAppend(&text, ChoiceName(hyper, hypers_[i]));
    } else {
      StrAppend(&text, hypers_[i]);
    }
  }
  return text;
}

}  // namespace shard
