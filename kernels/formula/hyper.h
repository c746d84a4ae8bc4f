// SPDX-License-Identifier: Apache-2.0
//
// Hyper: one hyperparameter of an optimizer, as its formula header declares
// it. Names and defaults are torch's.

#ifndef SHARD_KERNELS_FORMULA_HYPER_H_
#define SHARD_KERNELS_FORMULA_HYPER_H_

namespace shard {

struct Hyper {
  const char* name;
  double fallback;
  // Allowed: min <= value, and value < max (value <= max when closed).
  double min;
  double max;
  bool closed;
  // A flag is 0 or 1.
  bool flag;
};

inline constexpr double kNoMaximum = 1e300;

constexpr Hyper NonNegative(const char* name, double fallback) {
  return {name, fallback, 0.0, kNoMaximum, true, false};
}

constexpr Hyper AtLeast(const char* name, double fallback, double min) {
  return {name, fallback, min, kNoMaximum, true, false};
}

constexpr Hyper NonPositive(const char* name, double fallback) {
  return {name, fallback, -kNoMaximum, 0.0, true, false};
}

// In [0, 1).
constexpr Hyper Decay(const char* name, double fallback) {
  return {name, fallback, 0.0, 1.0, false, false};
}

constexpr Hyper Flag(const char* name) {
  return {name, 0.0, 0.0, 1.0, true, true};
}

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_HYPER_H_
