// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/step_options.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace shard {

namespace {

// The least normal and the greatest number of fp32.
constexpr double kLeastFloat = std::numeric_limits<float>::min();
constexpr double kMostFloat = std::numeric_limits<float>::max();

struct StepField {
  const char* name;
  double StepEntry::*value;
};

constexpr StepField kStepFields[] = {
    {"max_grad_norm", &StepEntry::max_grad_norm},
    {"grad_norm_type", &StepEntry::grad_norm_type},
    {"clip_value", &StepEntry::clip_value},
    {"grad_divisor", &StepEntry::grad_divisor},
    {"average_active", &StepEntry::average_active},
    {"loss_scale", &StepEntry::loss_scale},
    {"skip_nonfinite", &StepEntry::skip_nonfinite},
    {"step number", &StepEntry::step},
};

// Returns whether `same` holds between the ranks that have not joined.
template <typename Same>
bool SameOfActive(const std::vector<Proposal>& proposals, const Same& same) {
  const Proposal* first = nullptr;
  for (const Proposal& proposal : proposals) {
    if (proposal.activity == Activity::kJoin) continue;
    if (first == nullptr) first = &proposal;
    if (!same(*first, proposal)) return false;
  }
  return true;
}

}  // namespace

NormType NormTypeOf(double p) {
  if (p == 0 || p == 2) return NormType::kTwo;
  if (p == 1) return NormType::kOne;
  return std::isinf(p) ? NormType::kInf : NormType::kP;
}

double LossScaleOf(const StepOptions& options, const StepSetting& setting) {
  return options.loss_scale > 0 ? options.loss_scale
                                : setting.loss_scaler->scale();
}

double GradDivisorOf(const StepOptions& options, const StepSetting& setting,
                     int active) {
  if (options.grad_divisor > 0) return options.grad_divisor;
  return options.average_active ? active : setting.world_size;
}

Status CheckStepOptions(const StepOptions& options,
                        const StepSetting& setting) {
  const struct {
    const char* name;
    double value;
  } fields[] = {{"max_grad_norm", options.max_grad_norm},
                {"clip_value", options.clip_value},
                {"grad_divisor", options.grad_divisor},
                {"loss_scale", options.loss_scale}};
  for (const auto& field : fields) {
    if (!std::isfinite(field.value) || field.value < 0) {
      return InvalidArgument("step option ", field.name, "=", field.value,
                             " is out of range; allowed: a finite number, "
                             "at least 0");
    }
  }
  // Infinity is allowed: it is the maximum norm.
  if (!(options.grad_norm_type >= 0)) {
    return InvalidArgument(
        "step option grad_norm_type=", options.grad_norm_type,
        " is out of range; allowed: above 0, infinity for "
        "the largest magnitude, or 0 for the default, 2");
  }
  // The norm of equal magnitudes has the factor count^(1/p).
  if (NormTypeOf(options.grad_norm_type) == NormType::kP &&
      !std::isfinite(
          std::pow(setting.trainable_numel, 1 / options.grad_norm_type))) {
    return InvalidArgument(
        "step option grad_norm_type=", options.grad_norm_type,
        " is too small: the norm of ", setting.trainable_numel,
        " elements would overflow");
  }
  // The kernels take the value in fp32.
  if (options.clip_value > 0 &&
      (options.clip_value < kLeastFloat || options.clip_value > kMostFloat)) {
    return InvalidArgument("step option clip_value=", options.clip_value,
                           " is out of range; allowed: ", kLeastFloat, " to ",
                           kMostFloat, ", or 0 for none");
  }
  if (options.max_grad_norm > 0 && options.clip_value > 0) {
    return InvalidArgument("step options max_grad_norm=", options.max_grad_norm,
                           " and clip_value=", options.clip_value,
                           " exclude each other; set one of them");
  }
  if (options.loss_scale > 0 && setting.loss_scaler->active()) {
    return InvalidArgument("step option loss_scale=", options.loss_scale,
                           " and the engine's loss_scaling exclude each other; "
                           "leave loss_scale 0");
  }
  if (options.grad_divisor > 0 && options.average_active) {
    return InvalidArgument("step options grad_divisor=", options.grad_divisor,
                           " and average_active exclude each other; set one "
                           "of them");
  }
  const double divisor =
      GradDivisorOf(options, setting, 1) * LossScaleOf(options, setting);
  const double scale = 1 / divisor;
  if (!(scale >= kLeastFloat && scale <= kMostFloat)) {
    return InvalidArgument("grad_divisor * loss_scale = ", divisor,
                           " leaves nothing of the gradients in fp32: their "
                           "scale would be ",
                           scale);
  }
  return Status();
}

Status CheckSameStep(const StepOptions& options, const StepOptions& begun) {
  const auto same = [&](const StepOptions& other) {
    return options.max_grad_norm == other.max_grad_norm &&
           options.grad_norm_type == other.grad_norm_type &&
           options.clip_value == other.clip_value &&
           options.grad_divisor == other.grad_divisor &&
           options.loss_scale == other.loss_scale &&
           options.skip_nonfinite == other.skip_nonfinite &&
           options.average_active == other.average_active;
  };
  if (same(StepOptions()) || same(begun)) return Status();
  return InvalidArgument(
      "step options differ from those of begin_step; leave them out, or give "
      "the same");
}

StepEntry EntryOf(const StepOptions& options, const StepSetting& setting,
                  double hypers, int64_t step) {
  StepEntry entry;
  entry.hypers = hypers;
  entry.max_grad_norm = options.max_grad_norm;
  entry.grad_norm_type = options.grad_norm_type;
  entry.clip_value = options.clip_value;
  entry.grad_divisor = options.grad_divisor;
  entry.average_active = options.average_active ? 1 : 0;
  entry.loss_scale = LossScaleOf(options, setting);
  entry.skip_nonfinite = options.skip_nonfinite ? 1 : 0;
  entry.step = static_cast<double>(step);
  return entry;
}

StepOptions OptionsOf(const StepEntry& entry) {
  StepOptions options;
  options.max_grad_norm = entry.max_grad_norm;
  options.grad_norm_type = entry.grad_norm_type;
  options.clip_value = entry.clip_value;
  options.grad_divisor = entry.grad_divisor;
  options.average_active = entry.average_active != 0;
  options.loss_scale = entry.loss_scale;
  options.skip_nonfinite = entry.skip_nonfinite != 0;
  return options;
}

bool SameEntries(const std::vector<Proposal>& proposals) {
  int64_t zeroed = kNeverZeroed;
  for (const Proposal& proposal : proposals) {
    if (proposal.zeroed == kNeverZeroed) continue;
    if (zeroed == kNeverZeroed) zeroed = proposal.zeroed;
    if (proposal.zeroed != zeroed) return false;
  }
  return SameOfActive(proposals, [](const Proposal& a, const Proposal& b) {
    return std::all_of(std::begin(kStepFields), std::end(kStepFields),
                       [&](const StepField& field) {
                         return a.step.*field.value == b.step.*field.value;
                       });
  });
}

bool SameHypers(const std::vector<Proposal>& proposals) {
  return SameOfActive(proposals, [](const Proposal& a, const Proposal& b) {
    return a.step.hypers == b.step.hypers;
  });
}

void DescribeEntry(const Proposal& proposal, FactSink* sink) {
  for (const StepField& field : kStepFields) {
    sink->Add("", field.name, proposal.step.*field.value);
  }
  sink->Add("",
            "number of zero_grad calls since the last step (a rank that called "
            "it less often calls it, too)",
            proposal.zeroed);
}

}  // namespace shard
