// SPDX-License-Identifier: Apache-2.0

#include "core/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/spec.h"
#include "core/base/strings.h"
#include "core/model/names.h"

namespace shard {

namespace {

constexpr double kSmallest = std::numeric_limits<float>::min();
constexpr double kLargest = std::numeric_limits<float>::max();

// A value that no text parses to.
constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

// Rounds to fp32. REQUIRES: x is in [kSmallest, kLargest].
double NearestFloat(double x) { return static_cast<float>(x); }

Status CheckScale(const char* kind, const char* key, double value, double least,
                  double most) {
  if (value >= least && value <= most) return Status();
  return ValueOutOfRange(kind, key, value, StrCat("[", least, ", ", most, "]"));
}

}  // namespace

StatusOr<LossScaler> LossScaler::Parse(std::string_view text) {
  LossScaler scaler;
  if (text.empty()) return scaler;
  SHARD_ASSIGN_OR_RETURN(Spec spec, Spec::Parse(text));
  if (spec.name() == "static" && !spec.has_colon()) {
    scaler.kind_ = Kind::kStatic;
    SHARD_ASSIGN_OR_RETURN(const double scale,
                           spec.TakeDouble("scale", kNoNumber));
    SHARD_RETURN_IF_ERROR(spec.CheckAllTaken());
    if (std::isnan(scale)) {
      return InvalidArgument("static needs scale; '", text, "' has none");
    }
    SHARD_RETURN_IF_ERROR(
        CheckScale("static", "scale", scale, kSmallest, kLargest));
    scaler.init_scale_ = NearestFloat(scale);
    scaler.min_scale_ = scaler.max_scale_ = scaler.init_scale_;
  } else if (spec.name() == "dynamic" && !spec.has_colon()) {
    scaler.kind_ = Kind::kDynamic;
    SHARD_ASSIGN_OR_RETURN(scaler.init_scale_,
                           spec.TakeDouble("init_scale", 65536));
    SHARD_ASSIGN_OR_RETURN(scaler.growth_factor_,
                           spec.TakeDouble("growth_factor", 2));
    SHARD_ASSIGN_OR_RETURN(scaler.backoff_factor_,
                           spec.TakeDouble("backoff_factor", 0.5));
    SHARD_ASSIGN_OR_RETURN(scaler.growth_interval_,
                           spec.TakeInt("growth_interval", 2000));
    SHARD_ASSIGN_OR_RETURN(scaler.min_scale_, spec.TakeDouble("min_scale", 1));
    SHARD_ASSIGN_OR_RETURN(scaler.max_scale_,
                           spec.TakeDouble("max_scale", 0x1p24));
    SHARD_RETURN_IF_ERROR(spec.CheckAllTaken());
    SHARD_RETURN_IF_ERROR(scaler.CheckRanges());
    // Rounding is monotonic, so the bounds stay in order.
    scaler.init_scale_ = NearestFloat(scaler.init_scale_);
    scaler.min_scale_ = NearestFloat(scaler.min_scale_);
    scaler.max_scale_ = NearestFloat(scaler.max_scale_);
  } else {
    return InvalidArgument("unknown loss scaling '", text,
                           "'; known: dynamic, static, followed by "
                           "?key=value&key=value, and '' for none");
  }
  scaler.state_.scale = scaler.init_scale_;
  return scaler;
}

Status LossScaler::CheckRanges() const {
  constexpr const char* kName = "dynamic";
  SHARD_RETURN_IF_ERROR(
      CheckScale(kName, "max_scale", max_scale_, kSmallest, kLargest));
  SHARD_RETURN_IF_ERROR(
      CheckScale(kName, "min_scale", min_scale_, kSmallest, max_scale_));
  SHARD_RETURN_IF_ERROR(
      CheckScale(kName, "init_scale", init_scale_, min_scale_, max_scale_));
  if (growth_factor_ <= 1) {
    return ValueOutOfRange(kName, "growth_factor", growth_factor_, "above 1");
  }
  if (backoff_factor_ <= 0 || backoff_factor_ >= 1) {
    return ValueOutOfRange(kName, "backoff_factor", backoff_factor_,
                           "above 0 and below 1");
  }
  if (growth_interval_ < 1) {
    return ValueOutOfRange(kName, "growth_interval", growth_interval_,
                           "at least 1");
  }
  return Status();
}

void LossScaler::State::Take(std::string_view name, double value) {
  // The greatest count that doubles hold exactly.
  constexpr double kMost = 0x1p53;
  if (name == kLossScaleKey) scale = value;
  if (name == kGoodStepsKey && value >= 0 && value <= kMost &&
      value == std::floor(value)) {
    good_steps = static_cast<int64_t>(value);
  }
}

void LossScaler::Update(bool skipped) {
  if (kind_ != Kind::kDynamic) return;
  if (!skipped && ++state_.good_steps < growth_interval_) return;
  state_.good_steps = 0;
  const double wanted =
      state_.scale * (skipped ? backoff_factor_ : growth_factor_);
  // Clamped before rounding, so that the result is a normal float.
  state_.scale = NearestFloat(std::clamp(wanted, min_scale_, max_scale_));
}

Status LossScaler::Restore(const State& state) {
  if (kind_ == Kind::kNone && state.scale != 1) {
    return InvalidArgument("loss scale ", state.scale,
                           " needs an engine with loss scaling; set its option "
                           "loss_scaling");
  }
  // NaN fails both comparisons, and is not equal to itself.
  if (!(state.scale >= min_scale_ && state.scale <= max_scale_) ||
      NearestFloat(state.scale) != state.scale) {
    return InvalidArgument("loss scale ", state.scale, " does not belong to '",
                           ToString(), "'; allowed: numbers of fp32 in [",
                           min_scale_, ", ", max_scale_, "]");
  }
  if (state.good_steps < 0 || state.good_steps >= growth_interval_) {
    return InvalidArgument(state.good_steps, " good steps do not belong to '",
                           ToString(), "'; allowed: [0, ", growth_interval_,
                           ")");
  }
  state_ = state;
  return Status();
}

std::string LossScaler::ToString() const {
  switch (kind_) {
    case Kind::kNone:
      break;
    case Kind::kStatic:
      return StrCat("static?scale=", init_scale_);
    case Kind::kDynamic:
      return StrCat("dynamic?init_scale=", init_scale_,
                    "&growth_factor=", growth_factor_,
                    "&backoff_factor=", backoff_factor_,
                    "&growth_interval=", growth_interval_,
                    "&min_scale=", min_scale_, "&max_scale=", max_scale_);
  }
  return "";
}

}  // namespace shard
