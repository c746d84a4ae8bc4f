// SPDX-License-Identifier: Apache-2.0
//
// FormulaScalars: the constants of one step of a formula, F::Scalars of any F.
// The host prepares them in double from hyperparameters and step number, so
// that kernels compute no powers, and steps of one number have equal bits on
// all devices.
//
// A value, which may be copied to any memory. Thread-compatible.

#ifndef SHARD_KERNELS_FORMULA_SCALARS_H_
#define SHARD_KERNELS_FORMULA_SCALARS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "kernels/formula/all.h"
#include "kernels/formula/registry.h"

namespace shard {

class FormulaScalars {
 public:
  FormulaScalars() = default;
  // `hypers` are in the order in which the formula declares them; `step` counts
  // from 1.
  FormulaScalars(Formula formula, const double* hypers, int64_t step) {
    switch (formula) {
#define SHARD_PREPARE_CASE(Name)                                      \
  case Formula::k##Name:                                              \
    static_assert(std::is_trivially_copyable_v<Name::Scalars>);       \
    ::new (bytes_.data()) Name::Scalars(Name::Prepare(hypers, step)); \
    return;
      SHARD_FORMULAS(SHARD_PREPARE_CASE)
#undef SHARD_PREPARE_CASE
    }
  }

  // Returns the F::Scalars.
  const void* data() const { return bytes_.data(); }
  template <typename F>
  const typename F::Scalars& as() const {
    return *std::launder(
        reinterpret_cast<const typename F::Scalars*>(bytes_.data()));
  }

 private:
  static constexpr size_t kSize = std::max({
#define SHARD_SCALARS_SIZE(Name) sizeof(Name::Scalars),
      SHARD_FORMULAS(SHARD_SCALARS_SIZE)
#undef SHARD_SCALARS_SIZE
  });

  alignas(double) std::array<std::byte, kSize> bytes_ = {};
};
static_assert(std::is_trivially_copyable_v<FormulaScalars>);

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_SCALARS_H_
