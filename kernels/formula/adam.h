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
// amsgrad: Reddi, Kale and Kumar, "On the Convergence of Adam and Beyond",
// ICLR 2018, with torch's maximum of the uncorrected v. It keeps one state
// more, so it is a formula of its own.
//
// Bytes per element, one gradient source: Adam reads p, g, m, v (16) and writes
// p, m, v (12); AdamAmsgrad reads and writes x as well (20 and 16).

#ifndef SHARD_KERNELS_FORMULA_ADAM_H_
#define SHARD_KERNELS_FORMULA_ADAM_H_

#include <cmath>
#include <cstdint>

#include "kernels/formula/hyper.h"

namespace shard {

// What both forms share.
struct AdamBase {
  static constexpr const char* kName = "adam";
  enum { kLr, kBeta1, kBeta2, kEps, kWeightDecay, kAmsgrad, kMaximize };
  static constexpr Hyper kHypers[] = {
      NonNegative("lr", 1e-3),
      Decay("beta1", 0.9),
      Decay("beta2", 0.999),
      NonNegative("eps", 1e-8),
      NonNegative("weight_decay", 0.0),
      Flag("amsgrad"),
      Flag("maximize"),
  };

  static const char* Conflict(const double*) { return nullptr; }

  struct Scalars {
    double gradient_sign;
    double weight_decay;
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
    s.weight_decay = h[kWeightDecay];
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

struct Adam : AdamBase {
  static constexpr const char* kStates[] = {"exp_avg", "exp_avg_sq"};
  static constexpr int kNumStates = 2;
  static bool Serves(const double* h) { return h[kAmsgrad] == 0; }
};

struct AdamAmsgrad : AdamBase {
  static constexpr const char* kStates[] = {"exp_avg", "exp_avg_sq",
                                            "max_exp_avg_sq"};
  static constexpr int kNumStates = 3;
  static bool Serves(const double* h) { return h[kAmsgrad] != 0; }
};

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
        weight_decay(a.Set(s.weight_decay)),
        one_minus_beta1(a.Set(s.one_minus_beta1)),
        beta2(a.Set(s.beta2)),
        one_minus_beta2(a.Set(s.one_minus_beta2)),
        inverse_root_correction2(a.Set(s.inverse_root_correction2)),
        eps(a.Set(s.eps)),
        negative_step_size(a.Set(s.negative_step_size)) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    V& m = states[0];
    V& v = states[1];
    g = a.MulAdd(weight_decay, p, g);
    m = a.MulAdd(one_minus_beta1, a.Sub(g, m), m);
    v = a.MulAdd(beta2, v, a.Mul(one_minus_beta2, a.Mul(g, g)));
    V second_moment = v;
    if constexpr (kAmsgrad) {
      states[2] = a.Max(states[2], v);
      second_moment = states[2];
    }
    const V denominator =
        a.MulAdd(a.Sqrt(second_moment), inverse_root_correction2, eps);
    p = a.MulAdd(negative_step_size, a.Div(m, denominator), p);
  }

  A a;
  V weight_decay, one_minus_beta1, beta2, one_minus_beta2,
      inverse_root_correction2, eps, negative_step_size;
};

template <class A>
using AdamRule = AdamRuleOf<A, false>;
template <class A>
using AdamAmsgradRule = AdamRuleOf<A, true>;

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_ADAM_RULE
