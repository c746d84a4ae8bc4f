// SPDX-License-Identifier: Apache-2.0
//
// Adamax: Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR
// 2015, algorithm 2 (Adam by the infinity norm), in the order of
// torch.optim.Adamax:
//
//   g = -g if maximize
//   g = g + wd p
//   m = m + (1 - beta1) (g - m)
//   u = max(beta2 u, |g| + eps)
//   p = p - lr / (1 - beta1^t) * m / u
//
// Bytes per element, one gradient source: reads p, g, m, u (16), writes p, m, u
// (12).

#ifndef SHARD_KERNELS_FORMULA_ADAMAX_H_
#define SHARD_KERNELS_FORMULA_ADAMAX_H_

#include <cmath>
#include <cstdint>

#include "kernels/formula/hyper.h"

namespace shard {

struct Adamax {
  static constexpr const char* kName = "adamax";
  enum { kLr, kBeta1, kBeta2, kEps, kWeightDecay, kMaximize };
  static constexpr Hyper kHypers[] = {
      NonNegative("lr", 2e-3),
      Decay("beta1", 0.9),
      Decay("beta2", 0.999),
      NonNegative("eps", 1e-8),
      NonNegative("weight_decay", 0.0),
      Flag("maximize"),
  };
  static constexpr const char* kStates[] = {"exp_avg", "exp_inf"};
  static constexpr int kNumStates = 2;

  static bool IsFor(const double*) { return true; }
  static const char* Conflict(const double*) { return nullptr; }

  struct Scalars {
    double gradient_sign;
    double weight_decay;
    double one_minus_beta1;
    double beta2;
    double eps;
    double negative_step_size;  // -lr / (1 - beta1^t)
  };

  static Scalars Prepare(const double* h, int64_t t) {
    Scalars s;
    s.gradient_sign = h[kMaximize] != 0 ? -1.0 : 1.0;
    s.weight_decay = h[kWeightDecay];
    s.one_minus_beta1 = 1.0 - h[kBeta1];
    s.beta2 = h[kBeta2];
    s.eps = h[kEps];
    s.negative_step_size =
        -h[kLr] / (1.0 - std::pow(h[kBeta1], static_cast<double>(t)));
    return s;
  }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_ADAMAX_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_ADAMAX_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_ADAMAX_RULE
#undef SHARD_KERNELS_FORMULA_ADAMAX_RULE
#else
#define SHARD_KERNELS_FORMULA_ADAMAX_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A>
struct AdamaxRule {
  using V = typename A::V;

  SHARD_FORMULA_INLINE AdamaxRule(const A& arithmetic, const Adamax::Scalars& s)
      : a(arithmetic),
        zero(a.Set(0.0)),
        weight_decay(a.Set(s.weight_decay)),
        one_minus_beta1(a.Set(s.one_minus_beta1)),
        beta2(a.Set(s.beta2)),
        eps(a.Set(s.eps)),
        negative_step_size(a.Set(s.negative_step_size)) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    V& m = states[0];
    V& u = states[1];
    g = a.MulAdd(weight_decay, p, g);
    m = a.MulAdd(one_minus_beta1, a.Sub(g, m), m);
    const V magnitude = a.Max(g, a.Sub(zero, g));
    u = a.Max(a.Mul(beta2, u), a.Add(magnitude, eps));
    p = a.MulAdd(negative_step_size, a.Div(m, u), p);
  }

  A a;
  V zero, weight_decay, one_minus_beta1, beta2, eps, negative_step_size;
};

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_ADAMAX_RULE
