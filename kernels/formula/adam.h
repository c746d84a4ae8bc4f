// SPDX-License-Identifier: Apache-2.0
//
// Adam: Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015,
// algorithm 1, with weight decay as an L2 penalty, in the order of
// torch.optim.Adam:
//
//   g = -g if maximize
//   g = g + wd p
//   m = m + (1 - beta1) (g - m)
//   v = beta2 v + (1 - beta2) g g
//   x = max(x, v)                                    amsgrad; else x is v
//   p = p - lr / (1 - beta1^t) * m / (sqrt(x) / sqrt(1 - beta2^t) + eps)
//
// Bytes per element, one gradient source: Adam reads p, g, m, v (16) and writes
// p, m, v (12); AdamAmsgrad reads and writes x as well (20 and 16).

#include "kernels/formula/adam_moments.h"

#ifndef SHARD_KERNELS_FORMULA_ADAM_H_
#define SHARD_KERNELS_FORMULA_ADAM_H_

#include <cstdint>

#include "kernels/formula/hyper.h"

namespace shard {

// The declarations that all profiles share.
struct AdamDeclaration : AdamMoments {
  static constexpr const char* kName = "adam";
  static constexpr Hyper kHypers[] = {
      NonNegative("lr", 1e-3),
      Decay("beta1", 0.9),
      Decay("beta2", 0.999),
      NonNegative("eps", 1e-8),
      NonNegative("weight_decay", 0.0),
      Flag("amsgrad"),
      Flag("maximize"),
      Choice("profile", kProfiles),
      Choice("states", kStorages),
  };

  static const char* Conflict(const double* h) {
    if (h[kProfile] == kLlmc || h[kProfile] == kLlmcCpu ||
        h[kProfile] == kGgml) {
      return "profile=llmc, llmc_cpu and ggml are adamw's: none has an L2 "
             "penalty";
    }
    return AdamMoments::Conflict(h);
  }
};

// The declarations that torch's two forms share.
struct AdamBase : AdamDeclaration {
  struct Scalars : MomentScalars {
    double weight_decay;
  };

  static Scalars Prepare(const double* h, int64_t t) {
    return {PrepareMoments(h, t), h[kWeightDecay]};
  }
};

struct Adam : AdamBase, WithoutAmsgrad<AdamMoments::kTorch> {};
struct AdamAmsgrad : AdamBase, WithAmsgrad<AdamMoments::kTorch> {};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_ADAM_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_ADAM_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_ADAM_RULE
#undef SHARD_KERNELS_FORMULA_ADAM_RULE
#else
#define SHARD_KERNELS_FORMULA_ADAM_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A, bool kAmsgrad>
struct AdamRuleOf {
  using V = typename A::V;

  SHARD_FORMULA_INLINE AdamRuleOf(const A& arithmetic,
                                  const AdamBase::Scalars& s)
      : a(arithmetic),
        moments(arithmetic, s),
        weight_decay(a.Set(s.weight_decay)) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    const V penalized = a.MulAdd(weight_decay, p, g);
    p = a.MulAdd(moments.negative_step_size,
                 moments.Direction(penalized, states), p);
  }

  A a;
  AdamMomentsRule<A, kAmsgrad> moments;
  V weight_decay;
};

template <class A>
using AdamRule = AdamRuleOf<A, false>;
template <class A>
using AdamAmsgradRule = AdamRuleOf<A, true>;

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_ADAM_RULE
