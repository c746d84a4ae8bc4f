// SPDX-License-Identifier: Apache-2.0
//
// Lion: Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS
// 2023, algorithm 2, in the order of the authors' own code:
//
//   p = p (1 - lr wd)
//   p = p - lr sign(beta1 m + (1 - beta1) g)
//   m = beta2 m + (1 - beta2) g
//
// with sign(0) = 0: padding stays 0. sign(NaN) is NaN, as in optax: m keeps the
// NaN, and with a sign of 0 the parameter would never change again.
//
// Bytes per element, one gradient source: reads p, g, m (12), writes p, m (8).

#ifndef SHARD_KERNELS_FORMULA_LION_H_
#define SHARD_KERNELS_FORMULA_LION_H_

#include <cstdint>

#include "kernels/formula/hyper.h"

namespace shard {

struct Lion {
  static constexpr const char* kName = "lion";
  enum { kLr, kBeta1, kBeta2, kWeightDecay };
  static constexpr Hyper kHypers[] = {
      NonNegative("lr", 1e-4),
      Decay("beta1", 0.9),
      Decay("beta2", 0.99),
      NonNegative("weight_decay", 0.0),
  };
  static constexpr const char* kStates[] = {"exp_avg"};
  static constexpr int kNumStates = 1;

  static bool IsFor(const double*) { return true; }
  static const char* Conflict(const double*) { return nullptr; }

  struct Scalars {
    double gradient_sign;
    double decay;  // 1 - lr wd
    double beta1;
    double one_minus_beta1;
    double beta2;
    double one_minus_beta2;
    double lr;
  };

  static Scalars Prepare(const double* h, int64_t) {
    Scalars s;
    s.gradient_sign = 1.0;
    s.decay = 1.0 - h[kLr] * h[kWeightDecay];
    s.beta1 = h[kBeta1];
    s.one_minus_beta1 = 1.0 - h[kBeta1];
    s.beta2 = h[kBeta2];
    s.one_minus_beta2 = 1.0 - h[kBeta2];
    s.lr = h[kLr];
    return s;
  }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_LION_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_LION_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_LION_RULE
#undef SHARD_KERNELS_FORMULA_LION_RULE
#else
#define SHARD_KERNELS_FORMULA_LION_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A>
struct LionRule {
  using V = typename A::V;

  SHARD_FORMULA_INLINE LionRule(const A& arithmetic, const Lion::Scalars& s)
      : a(arithmetic),
        zero(a.Set(0.0)),
        decay(a.Set(s.decay)),
        beta1(a.Set(s.beta1)),
        one_minus_beta1(a.Set(s.one_minus_beta1)),
        beta2(a.Set(s.beta2)),
        one_minus_beta2(a.Set(s.one_minus_beta2)),
        lr(a.Set(s.lr)),
        negative_lr(a.Set(-s.lr)) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    V& m = states[0];
    const V c = a.MulAdd(beta1, m, a.Mul(one_minus_beta1, g));
    const V move =
        a.IfPositive(c, negative_lr, a.IfPositive(a.Sub(zero, c), lr, c));
    p = a.MulAdd(p, decay, move);
    m = a.MulAdd(beta2, m, a.Mul(one_minus_beta2, g));
  }

  A a;
  V zero, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, lr,
      negative_lr;
};

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_LION_RULE
