// SPDX-License-Identifier: Apache-2.0
//
// Hyper: one hyperparameter of an optimizer, as its formula header declares it:
// a number, a flag, or a choice among named values. Names and defaults are
// torch's, where torch has the hyperparameter.
//
// A formula reads each as a double. A choice is the index of its name, which is
// not persistent: texts and files hold the name.

#ifndef SHARD_KERNELS_FORMULA_HYPER_H_
#define SHARD_KERNELS_FORMULA_HYPER_H_

#include <cstddef>
#include <limits>

namespace shard {

struct Hyper {
  const char* name;
  double fallback;
  // The allowed values: min <= value, and value < max (value <= max when
  // closed).
  double min;
  double max;
  bool closed;
  // True for a flag, which is 0 or 1.
  bool flag;
  // The names of the values 0, 1, ..., max of a choice; otherwise nullptr.
  const char* const* choices = nullptr;
};

// The greatest number of fp32, in which the kernels compute.
inline constexpr double kNoMaximum = std::numeric_limits<float>::max();

constexpr Hyper NonNegative(const char* name, double fallback) {
  return {name, fallback, 0.0, kNoMaximum, true, false};
}

constexpr Hyper AtLeast(const char* name, double fallback, double min) {
  return {name, fallback, min, kNoMaximum, true, false};
}

constexpr Hyper NonPositive(const char* name, double fallback) {
  return {name, fallback, -kNoMaximum, 0.0, true, false};
}

// Declares a number in [0, 1).
constexpr Hyper Decay(const char* name, double fallback) {
  return {name, fallback, 0.0, 1.0, false, false};
}

constexpr Hyper Flag(const char* name, double fallback = 0.0) {
  return {name, fallback, 0.0, 1.0, true, true};
}

// Declares a choice. The first of `choices` is the default. The value is fixed
// when the optimizer is created.
template <size_t kCount>
constexpr Hyper Choice(const char* name, const char* const (&choices)[kCount]) {
  return {name, 0.0,   0.0,    static_cast<double>(kCount - 1),
          true, false, choices};
}

// The dtypes in which state tensors can be stored; arithmetic is in fp32 with
// all of them. A formula's choice over these names determines
// Optimizer::state_dtype; a formula without one stores its states in fp32.
inline constexpr const char* kStorages[] = {"f32", "bf16", "q8"};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_HYPER_H_
