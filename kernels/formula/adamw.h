// SPDX-License-Identifier: Apache-2.0
//
// AdamW: Loshchilov and Hutter, "Decoupled Weight Decay Regularization",
// ICLR 2019, algorithm 2, in the order of torch.optim.AdamW:
//
//   g = -g if maximize
//   p = p (1 - lr wd)
//   m = m + (1 - beta1) (g - m)
//   v = beta2 v + (1 - beta2) g g
//   x = max(x, v)                                    amsgrad; else x is v
//   p = p - lr / (1 - beta1^t) * m / (sqrt(x) / sqrt(1 - beta2^t) + eps)
//
// Bytes per element, one gradient source: AdamW reads p, g, m, v (16) and
// writes p, m, v (12); AdamWAmsgrad reads and writes x as well (20 and 16).

#include "kernels/formula/adam_moments.h"

#ifndef SHARD_KERNELS_FORMULA_ADAMW_H_
#define SHARD_KERNELS_FORMULA_ADAMW_H_

#include <cstdint>

#include "kernels/formula/hyper.h"

namespace shard {

// The declarations that all profiles share.
struct AdamWDeclaration : AdamMoments {
  static constexpr const char* kName = "adamw";
  static constexpr Hyper kHypers[] = {
      NonNegative("lr", 1e-3),
      Decay("beta1", 0.9),
      Decay("beta2", 0.999),
      NonNegative("eps", 1e-8),
      NonNegative("weight_decay", 0.01),
      Flag("amsgrad"),
      Flag("maximize"),
      Choice("profile", kProfiles),
      Choice("states", kStorages),
  };
};

// The declarations that torch's two forms share.
struct AdamWBase : AdamWDeclaration {
  struct Scalars : MomentScalars {
    double decay;  // 1 - lr wd
  };

  static Scalars Prepare(const double* h, int64_t t) {
    return {PrepareMoments(h, t), 1.0 - h[kLr] * h[kWeightDecay]};
  }
};

struct AdamW : AdamWBase, WithoutAmsgrad<AdamMoments::kTorch> {};
struct AdamWAmsgrad : AdamWBase, WithAmsgrad<AdamMoments::kTorch> {};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_ADAMW_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_ADAMW_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_ADAMW_RULE
#undef SHARD_KERNELS_FORMULA_ADAMW_RULE
#else
#define SHARD_KERNELS_FORMULA_ADAMW_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A, bool kAmsgrad>
struct AdamWRuleOf {
  using V = typename A::V;

  SHARD_FORMULA_INLINE AdamWRuleOf(const A& arithmetic,
                                   const AdamWBase::Scalars& s)
      : a(arithmetic), moments(arithmetic, s), decay(a.Set(s.decay)) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    p = a.MulAdd(moments.negative_step_size, moments.Direction(g, states),
                 a.Mul(p, decay));
  }

  A a;
  AdamMomentsRule<A, kAmsgrad> moments;
  V decay;
};

template <class A>
using AdamWRule = AdamWRuleOf<A, false>;
template <class A>
using AdamWAmsgradRule = AdamWRuleOf<A, true>;

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_ADAMW_RULE
