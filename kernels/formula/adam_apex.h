// SPDX-License-Identifier: Apache-2.0
//
// Adam and AdamW in the order of NVIDIA apex's FusedAdam
// (csrc/multi_tensor_adam.cu: mode 0 is Adam, mode 1 AdamW):
//
//   g = g + wd p                                       Adam
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g g
//   u = (m / c1) / (sqrt(v / c2) + eps)
//   u = u + wd p                                       AdamW
//   p = p - lr u
//
// Constants are floats, 1 - beta included. c = 1 - beta^t: the power of the
// float beta is in double, and the difference is rounded to float.
//
// All three divisions are made and rounded once each. apex is built with
// --use_fast_math, which makes divisions and roots approximations of the
// hardware, a few units in the last place of u off at most. No order of rounded
// operations gives its bits, so the order of its source is kept: the pass is
// bound by memory with three divisions as well. m and v, which need no
// division, differ from apex's only where its compiler fused the other product
// of a sum.
//
// Bytes per element as Adam's (adam.h).

#include "kernels/formula/adam.h"
#include "kernels/formula/adamw.h"

#ifndef SHARD_KERNELS_FORMULA_ADAM_APEX_H_
#define SHARD_KERNELS_FORMULA_ADAM_APEX_H_

#include <cmath>
#include <cstdint>

namespace shard {

struct ApexScalars {
  double gradient_sign;
  double beta1;
  double one_minus_beta1;
  double beta2;
  double one_minus_beta2;
  double correction1;  // c1
  double correction2;  // c2
  double eps;
  double weight_decay;
  double negative_lr;
};

template <class Declaration>
struct ApexForm : Declaration, WithoutAmsgrad<AdamMoments::kApex> {
  using Scalars = ApexScalars;

  static Scalars Prepare(const double* h, int64_t t) {
    const auto beta1 = static_cast<float>(h[Declaration::kBeta1]);
    const auto beta2 = static_cast<float>(h[Declaration::kBeta2]);
    Scalars s;
    s.gradient_sign = h[Declaration::kMaximize] != 0 ? -1.0 : 1.0;
    s.beta1 = beta1;
    s.one_minus_beta1 = 1.0f - beta1;
    s.beta2 = beta2;
    s.one_minus_beta2 = 1.0f - beta2;
    s.correction1 = Correction(beta1, t);
    s.correction2 = Correction(beta2, t);
    s.eps = h[Declaration::kEps];
    s.weight_decay = h[Declaration::kWeightDecay];
    s.negative_lr = -h[Declaration::kLr];
    return s;
  }

 private:
  static float Correction(double beta, int64_t t) {
    return static_cast<float>(1.0 - std::pow(beta, static_cast<double>(t)));
  }
};

struct AdamApex : ApexForm<AdamDeclaration> {};
struct AdamWApex : ApexForm<AdamWDeclaration> {};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_ADAM_APEX_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_ADAM_APEX_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_ADAM_APEX_RULE
#undef SHARD_KERNELS_FORMULA_ADAM_APEX_RULE
#else
#define SHARD_KERNELS_FORMULA_ADAM_APEX_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A, bool kDecoupled>
struct ApexRuleOf {
  using V = typename A::V;

  SHARD_FORMULA_INLINE ApexRuleOf(const A& arithmetic, const ApexScalars& s)
      : a(arithmetic),
        beta1(a.Set(s.beta1)),
        one_minus_beta1(a.Set(s.one_minus_beta1)),
        beta2(a.Set(s.beta2)),
        one_minus_beta2(a.Set(s.one_minus_beta2)),
        correction1(a.Set(s.correction1)),
        correction2(a.Set(s.correction2)),
        eps(a.Set(s.eps)),
        weight_decay(a.Set(s.weight_decay)),
        negative_lr(a.Set(s.negative_lr)) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    V& m = states[0];
    V& v = states[1];
    if constexpr (!kDecoupled) g = a.MulAdd(weight_decay, p, g);
    m = a.MulAdd(beta1, m, a.Mul(one_minus_beta1, g));
    v = a.MulAdd(beta2, v, a.Mul(a.Mul(one_minus_beta2, g), g));
    V update =
        a.Div(a.Div(m, correction1), a.Add(a.Sqrt(a.Div(v, correction2)), eps));
    if constexpr (kDecoupled) update = a.MulAdd(weight_decay, p, update);
    p = a.MulAdd(negative_lr, update, p);
  }

  A a;
  V beta1, one_minus_beta1, beta2, one_minus_beta2, correction1, correction2,
      eps, weight_decay, negative_lr;
};

template <class A>
using AdamApexRule = ApexRuleOf<A, false>;
template <class A>
using AdamWApexRule = ApexRuleOf<A, true>;

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_ADAM_APEX_RULE
