// SPDX-License-Identifier: Apache-2.0
//
// Warns of plans that the host may not have intended.

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/flat/kept_whole.h"
#include "core/flat/plan.h"
#include "core/flat/report.h"
#include "core/flat/units.h"

namespace shard {

namespace {

constexpr size_t kListedNames = 3;

// Returns "a, b, c and 9 more".
std::string NamesText(const std::vector<std::string>& first, int64_t count) {
  std::string text;
  for (const std::string& name : first) {
    StrAppend(&text, text.empty() ? "" : ", ", name);
  }
  const int64_t more = count - static_cast<int64_t>(first.size());
  if (more > 0) StrAppend(&text, " and ", Grouped(more), " more");
  return text;
}

// The frozen or the trainable parameters of one unit.
struct Kind {
  int64_t count = 0;
  int64_t numel = 0;
  std::vector<ParamId> first;
};

// By unit; [0] has the frozen parameters, [1] the trainable ones.
using Mixture = std::array<Kind, 2>;

std::vector<Mixture> MixturesOf(const Plan& plan) {
  const Model& model = plan.model();
  std::vector<Mixture> mixtures(plan.units().size());
  for (const ParamId param : WalkOf(plan.places(), plan.NumStored())) {
    const Model::Param& info = model.params()[static_cast<size_t>(param)];
    Mixture& mixture = mixtures[static_cast<size_t>(plan.UnitOf(param))];
    Kind& kind = mixture[info.trainable ? 1 : 0];
    ++kind.count;
    kind.numel += info.numel;
    if (kind.first.size() < kListedNames) kind.first.push_back(param);
  }
  return mixtures;
}

// Returns units in the order of torch's reports: inner units before outer ones,
// and otherwise as registered, so that the first warning is about the unit that
// a reader of the model meets first.
std::vector<size_t> PostOrder(const std::vector<UnitPlan>& units) {
  std::vector<size_t> order;
  std::vector<size_t> open;
  const auto close_from = [&](int32_t depth) {
    while (!open.empty() && units[open.back()].depth >= depth) {
      order.push_back(open.back());
      open.pop_back();
    }
  };
  for (size_t i = 0; i < units.size(); ++i) {
    close_from(units[i].depth);
    open.push_back(i);
  }
  close_from(0);
  return order;
}

int64_t FrozenPadding(const Plan& plan, const UnitPlan& unit) {
  int64_t bytes = 0;
  for (const int32_t index : unit.buffers) {
    const FlatBufferPlan& buffer = plan.buffer(index);
    if (buffer.trainable) continue;
    bytes += (buffer.layout.padded_numel() - buffer.layout.numel()) *
             static_cast<int64_t>(DTypeSize(buffer.dtype));
  }
  return bytes;
}

std::string MixtureText(const Plan& plan, const UnitPlan& unit,
                        const Mixture& mixture,
                        const std::vector<std::string>& fqns) {
  const auto describe = [&fqns](const Kind& kind) {
    std::vector<std::string> names;
    for (const ParamId param : kind.first) {
      names.push_back(fqns[static_cast<size_t>(param)]);
    }
    return StrCat(Grouped(kind.count), " of ", Grouped(kind.numel),
                  " elements (", NamesText(names, kind.count), ")");
  };
  const auto& [frozen, trainable] = mixture;
  return StrCat("unit ", UnitName(plan, unit),
                " has frozen and trainable parameters: ", describe(frozen),
                " are frozen, ", describe(trainable),
                " are not; one flat buffer for both would have ",
                Grouped(frozen.numel + trainable.numel),
                " elements of gradients instead of ", Grouped(trainable.numel),
                "; here they have separate ones, which costs ",
                Grouped(FrozenPadding(plan, unit)), " bytes of padding");
}

void AddF32Classes(const Plan& plan, std::vector<std::string>* warnings) {
  const ClassSet f32_classes = F32Classes(plan.options());
  if (f32_classes.empty()) return;
  std::vector<std::string> first;
  int64_t count = 0;
  for (const UnitPlan& unit : plan.units()) {
    const Model::Module& module =
        plan.model().modules()[static_cast<size_t>(unit.module)];
    if (!f32_classes.Contains(module.class_name)) continue;
    ++count;
    if (first.size() < kListedNames) first.push_back(UnitName(plan, unit));
  }
  if (count > 0) {
    warnings->push_back(
        StrCat(Grouped(count), count == 1 ? " module stays" : " modules stay",
               " f32 and in units of their own, by f32_classes: ",
               NamesText(first, count)));
  }
}

}  // namespace

std::string KeptWhole(const Plan& plan) {
  const PlanOptions& options = plan.options();
  if (options.world_size == 1) return "";
  const bool grads =
      options.stage >= 2 && !options.whole_grads && !plan.shards_grads();
  // In shard groups of one rank, each rank is to hold all parameters.
  const bool params = options.stage == 3 && !options.keep_after_forward &&
                      plan.ShardGroupSize() > 1 && !plan.shards_params();
  if (!grads && !params) return "";
  return StrCat(
      "stage ", options.stage, " keeps ",
      grads && params ? "gradients and parameters"
      : grads         ? "gradients"
                      : "parameters",
      " whole: with ", plan.units().size(),
      plan.units().size() == 1 ? " unit" : " units", " and prefetch ",
      options.prefetch,
      ", a rank's part and the slots of units in use would take no less; wrap "
      "smaller units, or lower prefetch");
}

std::vector<std::string> Plan::Warnings() const {
  std::vector<std::string> warnings;
  if (std::string kept = KeptWhole(*this); !kept.empty()) {
    warnings.push_back(std::move(kept));
  }
  AddF32Classes(*this, &warnings);
  const std::vector<Mixture> mixtures = MixturesOf(*this);
  std::vector<std::string> fqns;
  for (const size_t unit : PostOrder(units_)) {
    const Mixture& mixture = mixtures[unit];
    if (mixture[0].count == 0 || mixture[1].count == 0) continue;
    if (fqns.empty()) fqns = model_->ParamFqns();
    warnings.push_back(MixtureText(*this, units_[unit], mixture, fqns));
  }
  return warnings;
}

}  // namespace shard
