// SPDX-License-Identifier: Apache-2.0
//
// Which formulas may keep their states in bf16 or 8 bits; see state_kind.h.

#ifndef SHARD_KERNELS_FORMULA_NARROW_STATES_H_
#define SHARD_KERNELS_FORMULA_NARROW_STATES_H_

#include "kernels/formula/all.h"
#include "kernels/formula/registry.h"
#include "kernels/formula/state_kind.h"

namespace shard {

inline bool SupportsNarrowStates(Formula formula) {
  switch (formula) {
#define SHARD_NARROW_CASE(Name) \
  case Formula::k##Name:        \
    return HasNarrowStates<Name>;
    SHARD_FORMULAS(SHARD_NARROW_CASE)
#undef SHARD_NARROW_CASE
  }
  return false;
}

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_NARROW_STATES_H_
