// SPDX-License-Identifier: Apache-2.0
//
// The lists of formulas: a new formula adds one line here. Each X(Name) stands
// for struct shard::Name (hyperparameters, states, Scalars), in the header
// named after the optimizer. The forms of one optimizer, which share its kName,
// are adjacent.
//
// An element formula updates each element on its own. NameRule<A> is its update
// over arithmetic A, and the fused pass runs the rule over any range of
// elements.
//
// A tensor formula needs a whole parameter: its norms, rows or columns. It is
// given whole parameters only, and declares the properties that follow from
// their shape:
//   static const char* ShapeError(const int64_t* shape, int ndim)
//       nullptr, or the requirement that a parameter of this shape does not
//       meet
//   static int64_t StateNumel(int state, const int64_t* shape, int ndim)
//       elements of a state tensor
//   static int64_t Cost(const int64_t* shape, int ndim)
//       the work of a step, in units of its own, for balancing ranks

#ifndef SHARD_KERNELS_FORMULA_REGISTRY_H_
#define SHARD_KERNELS_FORMULA_REGISTRY_H_

#include <cstdint>

#define SHARD_ELEMENT_FORMULAS(X) \
  X(Adadelta)                     \
  X(Adagrad)                      \
  X(Adam)                         \
  X(AdamAmsgrad)                  \
  X(AdamApex)                     \
  X(AdamDeepSpeedCpu)             \
  X(Adamax)                       \
  X(AdamW)                        \
  X(AdamWAmsgrad)                 \
  X(AdamWApex)                    \
  X(AdamWDeepSpeedCpu)            \
  X(AdamWLlmc)                    \
  X(AdamWLlmcCpu)                 \
  X(AdamWGgml)                    \
  X(Lion)                         \
  X(RmsProp)                      \
  X(RmsPropMomentum)              \
  X(RmsPropCentered)              \
  X(RmsPropCenteredMomentum)      \
  X(Rprop)                        \
  X(Sgd)                          \
  X(SgdMomentum)

#define SHARD_TENSOR_FORMULAS(X) \
  X(Adafactor)                   \
  X(Lamb)                        \
  X(Muon)

#define SHARD_FORMULAS(X)   \
  SHARD_ELEMENT_FORMULAS(X) \
  SHARD_TENSOR_FORMULAS(X)

namespace shard {

// The number of a formula. Not persistent: files and fingerprints hold names.
enum class Formula : int32_t {
#define SHARD_FORMULA_ID(Name) k##Name,
  SHARD_FORMULAS(SHARD_FORMULA_ID)
#undef SHARD_FORMULA_ID
};

// The greatest number of states that any formula keeps; all.h checks it.
inline constexpr int kMaxStates = 3;

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_REGISTRY_H_
