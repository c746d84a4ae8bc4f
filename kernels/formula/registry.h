// SPDX-License-Identifier: Apache-2.0
//
// The list of formulas: the one line to add for a new one. Each X(Name) stands
// for struct shard::Name (hyperparameters, states, Scalars) and NameRule<A>
// (the update over arithmetic A), both in the header named after the optimizer.
// The forms of one optimizer, which share its kName, stand together.

#ifndef SHARD_KERNELS_FORMULA_REGISTRY_H_
#define SHARD_KERNELS_FORMULA_REGISTRY_H_

#include <cstdint>

#define SHARD_FORMULAS(X)    \
  X(Adadelta)                \
  X(Adagrad)                 \
  X(Adam)                    \
  X(AdamAmsgrad)             \
  X(Adamax)                  \
  X(AdamW)                   \
  X(AdamWAmsgrad)            \
  X(Lion)                    \
  X(RmsProp)                 \
  X(RmsPropMomentum)         \
  X(RmsPropCentered)         \
  X(RmsPropCenteredMomentum) \
  X(Rprop)                   \
  X(Sgd)                     \
  X(SgdMomentum)

namespace shard {

// Not persistent: files and fingerprints hold names.
enum class Formula : int32_t {
#define SHARD_FORMULA_ID(Name) k##Name,
  SHARD_FORMULAS(SHARD_FORMULA_ID)
#undef SHARD_FORMULA_ID
};

// The most states any formula keeps; all.h checks it.
inline constexpr int kMaxStates = 3;

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_REGISTRY_H_
