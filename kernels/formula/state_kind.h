// SPDX-License-Identifier: Apache-2.0
//
// StateKind: the kind of an optimizer state, which decides how it may be stored
// in fewer than 32 bits. A formula that declares
//
//   static constexpr StateKind kStateKinds[]   one for each of kStates
//
// may have its states narrowed; the others keep theirs in fp32.
//
// The values go into checkpoints and are frozen. 0 to 2 were the same kinds
// with other codes of 8 bits, which are no longer read.

#ifndef SHARD_KERNELS_FORMULA_STATE_KIND_H_
#define SHARD_KERNELS_FORMULA_STATE_KIND_H_

#include <cstdint>

namespace shard {

enum class StateKind : uint8_t {
  // An average of values of either sign. It is rounded stochastically: a step
  // changes a slow average by less than half a unit in its last place, and
  // rounded to nearest it would never move.
  kAverage = 3,
  // An average of squares, never negative. It is rounded stochastically as
  // well.
  kSquareAverage = 4,
  // The largest of the squares so far. It is rounded to nearest: a maximum
  // keeps every upward error, so stochastic rounding would make it grow without
  // a reason.
  kSquareMaximum = 5,
};

constexpr bool IsRoundedStochastically(StateKind kind) {
  return kind != StateKind::kSquareMaximum;
}

template <class F>
concept HasNarrowStates = requires {
  F::kStateKinds;
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_STATE_KIND_H_
