// SPDX-License-Identifier: Apache-2.0
//
// Adadelta: Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012,
// algorithm 1, in the order of torch.optim.Adadelta:
//
//   g = -g if maximize
//   g = g + wd p
//   v = rho v + (1 - rho) g g
//   d = sqrt(u + eps) / sqrt(v + eps) * g
//   u = rho u + (1 - rho) d d
//   p = p - lr d
//
// The two roots are computed as one, of the quotient.
//
// Bytes per element, one gradient source: reads p, g, v, u (16), writes p, v, u
// (12).

#ifndef SHARD_KERNELS_FORMULA_ADADELTA_H_
#define SHARD_KERNELS_FORMULA_ADADELTA_H_

#include <cstdint>

#include "kernels/formula/hyper.h"

namespace shard {

struct Adadelta {
  static constexpr const char* kName = "adadelta";
  enum { kLr, kRho, kEps, kWeightDecay, kMaximize };
  static constexpr Hyper kHypers[] = {
      NonNegative("lr", 1.0),   {"rho", 0.9, 0.0, 1.0, true, false},
      NonNegative("eps", 1e-6), NonNegative("weight_decay", 0.0),
      Flag("maximize"),
  };
  static constexpr const char* kStates[] = {"square_avg", "acc_delta"};
  static constexpr int kNumStates = 2;

  static bool IsFor(const double*) { return true; }
  static const char* Conflict(const double*) { return nullptr; }

  struct Scalars {
    double gradient_sign;
    double weight_decay;
    double rho;
    double one_minus_rho;
    double eps;
    double negative_lr;
  };

  static Scalars Prepare(const double* h, int64_t) {
    Scalars s;
    s.gradient_sign = h[kMaximize] != 0 ? -1.0 : 1.0;
    s.weight_decay = h[kWeightDecay];
    s.rho = h[kRho];
    s.one_minus_rho = 1.0 - h[kRho];
    s.eps = h[kEps];
    s.negative_lr = -h[kLr];
    return s;
  }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_ADADELTA_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_ADADELTA_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_ADADELTA_RULE
#undef SHARD_KERNELS_FORMULA_ADADELTA_RULE
#else
#define SHARD_KERNELS_FORMULA_ADADELTA_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A>
struct AdadeltaRule {
  using V = typename A::V;

  SHARD_FORMULA_INLINE AdadeltaRule(const A& arithmetic,
                                    const Adadelta::Scalars& s)
      : a(arithmetic),
        weight_decay(a.Set(s.weight_decay)),
        rho(a.Set(s.rho)),
        one_minus_rho(a.Set(s.one_minus_rho)),
        eps(a.Set(s.eps)),
        negative_lr(a.Set(s.negative_lr)) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    V& square_avg = states[0];
    V& acc_delta = states[1];
    g = a.MulAdd(weight_decay, p, g);
    square_avg = a.MulAdd(rho, square_avg, a.Mul(one_minus_rho, a.Mul(g, g)));
    const V ratio = a.Div(a.Add(acc_delta, eps), a.Add(square_avg, eps));
    const V delta = a.Mul(a.Sqrt(ratio), g);
    acc_delta =
        a.MulAdd(rho, acc_delta, a.Mul(one_minus_rho, a.Mul(delta, delta)));
    p = a.MulAdd(negative_lr, delta, p);
  }

  A a;
  V weight_decay, rho, one_minus_rho, eps, negative_lr;
};

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_ADADELTA_RULE
