// SPDX-License-Identifier: Apache-2.0

#include "core/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <numbers>

#include "core/base/spec.h"
#include "core/base/strings.h"

namespace shard {

// The keys that a kind has beside lr and warmup.
struct Schedule::KindInfo {
  const char* name;
  Kind kind;
  bool min_lr;
  bool total;
  bool decay;
};

constexpr Schedule::KindInfo Schedule::kKinds[] = {
    {"constant", Kind::kConstant, false, false, false},
    {"linear", Kind::kLinear, true, true, false},
    {"cosine", Kind::kCosine, true, true, false},
    {"inverse_sqrt", Kind::kInverseSqrt, true, false, false},
    {"wsd", Kind::kWsd, true, true, true},
};

// In the order of Shape.
constexpr const char* Schedule::kShapes[] = {"linear", "1-sqrt", "cosine"};

namespace {

// The fallbacks of Spec for missing keys; no text reads as NaN.
constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kNoInteger = std::numeric_limits<int64_t>::min();

}  // namespace

StatusOr<Schedule> Schedule::Parse(std::string_view text) {
  SHARD_ASSIGN_OR_RETURN(Spec spec, Spec::Parse(text));
  const KindInfo* info = nullptr;
  for (const KindInfo& candidate : kKinds) {
    if (spec.name() == candidate.name) info = &candidate;
  }
  if (info == nullptr || spec.has_colon()) {
    std::string known;
    for (const KindInfo& candidate : kKinds) {
      StrAppend(&known, known.empty() ? "" : ", ", candidate.name);
    }
    return InvalidArgument("unknown schedule '", text, "'; known: ", known,
                           ", followed by ?key=value&key=value");
  }

  Schedule schedule;
  schedule.kind_ = info->kind;
  SHARD_ASSIGN_OR_RETURN(schedule.lr_, spec.TakeDouble("lr", kNoNumber));
  if (info->min_lr) {
    SHARD_ASSIGN_OR_RETURN(schedule.min_lr_, spec.TakeDouble("min_lr", 0));
  }
  SHARD_ASSIGN_OR_RETURN(schedule.warmup_, spec.TakeInt("warmup", 0));
  if (info->total) {
    SHARD_ASSIGN_OR_RETURN(schedule.total_, spec.TakeInt("total", kNoInteger));
  }
  if (info->decay) {
    SHARD_ASSIGN_OR_RETURN(schedule.decay_, spec.TakeInt("decay", kNoInteger));
    const std::string shape = spec.TakeString("shape", kShapes[0]);
    const auto* const found =
        std::find(std::begin(kShapes), std::end(kShapes), shape);
    if (found == std::end(kShapes)) {
      return InvalidArgument(info->name, ": shape=", shape,
                             " is not one of linear, 1-sqrt, cosine");
    }
    schedule.shape_ = static_cast<Shape>(found - std::begin(kShapes));
  }
  // Reports a misspelt key as unknown, before its correct form would be
  // reported as missing.
  SHARD_RETURN_IF_ERROR(spec.CheckAllTaken());
  const char* missing = nullptr;
  if (schedule.decay_ == kNoInteger) missing = "decay";
  if (schedule.total_ == kNoInteger) missing = "total";
  if (std::isnan(schedule.lr_)) missing = "lr";
  if (missing != nullptr) {
    return InvalidArgument(info->name, " needs ", missing, "; '", text,
                           "' has none");
  }
  SHARD_RETURN_IF_ERROR(schedule.CheckRanges());
  return schedule;
}

Status Schedule::CheckRanges() const {
  const KindInfo& kind = info();
  if (lr_ < 0) return ValueOutOfRange(kind.name, "lr", lr_, "at least 0");
  if (min_lr_ < 0 || min_lr_ > lr_) {
    return ValueOutOfRange(kind.name, "min_lr", min_lr_,
                           StrCat("[0, lr=", lr_, "]"));
  }
  if (kind.total && total_ < 1) {
    return ValueOutOfRange(kind.name, "total", total_, "at least 1");
  }
  if (warmup_ < 0 || (kind.total && warmup_ > total_)) {
    return ValueOutOfRange(
        kind.name, "warmup", warmup_,
        kind.total ? StrCat("[0, total=", total_, "]") : "at least 0");
  }
  if (kind.decay && (decay_ < 1 || decay_ > total_ - warmup_)) {
    return ValueOutOfRange(kind.name, "decay", decay_,
                           StrCat("[1, total-warmup=", total_ - warmup_, "]"));
  }
  return Status();
}

const Schedule::KindInfo& Schedule::info() const {
  return kKinds[static_cast<size_t>(kind_)];
}

double Schedule::Remaining(Shape shape, double progress) {
  switch (shape) {
    case Shape::kLinear:
      return 1 - progress;
    case Shape::kOneMinusSqrt:
      return 1 - std::sqrt(progress);
    case Shape::kCosine:
      return (1 + std::cos(std::numbers::pi * progress)) / 2;
  }
  return 0;
}

double Schedule::Lr(int64_t step) const {
  int64_t t = step;
  if (info().total) t = std::min(t, total_);
  if (t <= warmup_) {
    return lr_ * (static_cast<double>(t) / static_cast<double>(warmup_));
  }
  int64_t begin = warmup_;
  Shape shape = shape_;
  switch (kind_) {
    case Kind::kConstant:
      return lr_;
    case Kind::kInverseSqrt: {
      const auto peak = static_cast<double>(std::max<int64_t>(warmup_, 1));
      return std::max(min_lr_, lr_ * std::sqrt(peak / static_cast<double>(t)));
    }
    case Kind::kLinear:
      break;
    case Kind::kCosine:
      shape = Shape::kCosine;
      break;
    case Kind::kWsd:
      begin = total_ - decay_;
      if (t <= begin) return lr_;
      break;
  }
  const double progress =
      static_cast<double>(t - begin) / static_cast<double>(total_ - begin);
  // std::lerp is the form of this sum that is exact at both ends.
  return std::lerp(min_lr_, lr_, Remaining(shape, progress));
}

std::string Schedule::ToString() const {
  const KindInfo& kind = info();
  std::string text = StrCat(kind.name, "?lr=", lr_);
  if (kind.min_lr) StrAppend(&text, "&min_lr=", min_lr_);
  StrAppend(&text, "&warmup=", warmup_);
  if (kind.total) StrAppend(&text, "&total=", total_);
  if (kind.decay) {
    StrAppend(&text, "&decay=", decay_,
              "&shape=", kShapes[static_cast<size_t>(shape_)]);
  }
  return text;
}

}  // namespace shard
