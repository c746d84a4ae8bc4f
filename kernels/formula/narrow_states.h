// SPDX-License-Identifier: Apache-2.0
//
// The formulas that may keep their states in bf16 or 8 bits; see state_kind.h.

#ifndef SHARD_KERNELS_FORMULA_NARROW_STATES_H_
#define SHARD_KERNELS_FORMULA_NARROW_STATES_H_

#include "kernels/formula/all.h"
#include "kernels/formula/registry.h"
#include "kernels/formula/state_kind.h"

namespace shard {

template <class F>
constexpr const StateKind* kNarrowStateKinds = nullptr;
template <HasNarrowStates F>
constexpr const StateKind* kNarrowStateKinds<F> = F::kStateKinds;

// Returns the kind of each of the formula's states; null when all are kept in
// fp32 only.
inline const StateKind* NarrowStateKinds(Formula formula) {
  switch (formula) {
#define SHARD_NARROW_CASE(Name) \
  case Formula::k##Name:        \
    return kNarrowStateKinds<Name>;
    SHARD_FORMULAS(SHARD_NARROW_CASE)
#undef SHARD_NARROW_CASE
  }
  return nullptr;
}

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_NARROW_STATES_H_
