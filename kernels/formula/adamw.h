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
// amsgrad: Reddi, Kale and Kumar, "On the Convergence of Adam and Beyond",
// ICLR 2018, with torch's maximum of the uncorrected v. It keeps one state
// more, so it is a formula of its own.
//
// Bytes per element, one gradient source: AdamW reads p, g, m, v (16) and
// writes p, m, v (12); AdamWAmsgrad reads and writes x as well (20 and 16).

#ifndef SHARD_KERNELS_FORMULA_ADAMW_H_
#define SHARD_KERNELS_FORMULA_ADAMW_H_

#include <cmath>
#include <cstdint>

#include "kernels/formula/hyper.h"

namespace shard {

// What both forms share.
struct AdamWBase {
  static constexpr const char* kName = "adamw";
  enum { kLr, kBeta1, kBeta2, kEps, kWeightDecay, kAmsgrad, kMaximize };
  static constexpr Hyper kHypers[] = {
      NonNegative("lr", 1e-3),
      Decay("beta1", 0.9),
      Decay("beta2", 0.999),
      NonNegative("eps", 1e-8),
      NonNegative("weight_decay", 0.01),
      Flag("amsgrad"),
      Flag("maximize"),
  };

  // NULL, or what is wrong with a combination of values each allowed.
  static const char* Conflict(const double*) { return nullptr; }

  // The constants of step `t` = 1, 2, ...; bias corrections in double.
  struct Scalars {
    double gradient_sign;
    double decay;  // 1 - lr wd
    double one_minus_beta1;
    double beta2;
    double one_minus_beta2;
    double inverse_root_correction2;  // 1 / sqrt(1 - beta2^t)
    double eps;
    double negative_step_size;  // -lr / (1 - beta1^t)
  };

  static Scalars Prepare(const double* h, int64_t t) {
    const auto power = static_cast<double>(t);
    Scalars s;
    s.gradient_sign = h[kMaximize] != 0 ? -1.0 : 1.0;
    s.decay = 1.0 - h[kLr] * h[kWeightDecay];
    s.one_minus_beta1 = 1.0 - h[kBeta1];
    s.beta2 = h[kBeta2];
    s.one_minus_beta2 = 1.0 - h[kBeta2];
    s.inverse_root_correction2 =
        1.0 / std::sqrt(1.0 - std::pow(h[kBeta2], power));
    s.eps = h[kEps];
    s.negative_step_size = -h[kLr] / (1.0 - std::pow(h[kBeta1], power));
    return s;
  }
};

struct AdamW : AdamWBase {
  static constexpr const char* kStates[] = {"exp_avg", "exp_avg_sq"};
  static constexpr int kNumStates = 2;
  static bool Serves(const double* h) { return h[kAmsgrad] == 0; }
};

struct AdamWAmsgrad : AdamWBase {
  static constexpr const char* kStates[] = {"exp_avg", "exp_avg_sq",
                                            "max_exp_avg_sq"};
  static constexpr int kNumStates = 3;
  static bool Serves(const double* h) { return h[kAmsgrad] != 0; }
};

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
      : a(arithmetic),
        decay(a.Set(s.decay)),
        one_minus_beta1(a.Set(s.one_minus_beta1)),
        beta2(a.Set(s.beta2)),
        one_minus_beta2(a.Set(s.one_minus_beta2)),
        inverse_root_correction2(a.Set(s.inverse_root_correction2)),
        eps(a.Set(s.eps)),
        negative_step_size(a.Set(s.negative_step_size)) {}

  // `g` has its sign from gradient_sign already, folded into its scale.
  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    V& m = states[0];
    V& v = states[1];
    m = a.MulAdd(one_minus_beta1, a.Sub(g, m), m);
    v = a.MulAdd(beta2, v, a.Mul(one_minus_beta2, a.Mul(g, g)));
    V second_moment = v;
    if constexpr (kAmsgrad) {
      states[2] = a.Max(states[2], v);
      second_moment = states[2];
    }
    const V denominator =
        a.MulAdd(a.Sqrt(second_moment), inverse_root_correction2, eps);
    p = a.MulAdd(negative_step_size, a.Div(m, denominator), a.Mul(p, decay));
  }

  A a;
  V decay, one_minus_beta1, beta2, one_minus_beta2, inverse_root_correction2,
      eps, negative_step_size;
};

template <class A>
using AdamWRule = AdamWRuleOf<A, false>;
template <class A>
using AdamWAmsgradRule = AdamWRuleOf<A, true>;

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_ADAMW_RULE
