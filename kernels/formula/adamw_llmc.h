// SPDX-License-Identifier: Apache-2.0
//
// AdamW in the order of llm.c (llmc/adamw.cuh), which writes out the fused
// operations of its moments:
//
//   m = beta1 m + (g - beta1 g)
//   v = beta2 v + (g g - beta2 (g g))
//   u = (m / c1) / (sqrt(v / c2) + eps)
//   p = p - lr (u + wd p)
//
// Constants are floats. c = 1 - beta^t in float, as is the power.
//
// All three divisions are made and rounded once each; llm.c is built with
// --use_fast_math, for which see adam_apex.h. m and v have llm.c's bits.
//
// Bytes per element as AdamW's (adamw.h).

#include "kernels/formula/adamw.h"

#ifndef SHARD_KERNELS_FORMULA_ADAMW_LLMC_H_
#define SHARD_KERNELS_FORMULA_ADAMW_LLMC_H_

#include <cmath>
#include <cstdint>

namespace shard {

struct AdamWLlmc : AdamWDeclaration, WithoutAmsgrad<AdamMoments::kLlmc> {
  struct Scalars {
    double gradient_sign;
    double beta1;
    double beta2;
    double correction1;  // c1
    double correction2;  // c2
    double eps;
    double weight_decay;
    double negative_lr;
  };

  static Scalars Prepare(const double* h, int64_t t) {
    const auto beta1 = static_cast<float>(h[kBeta1]);
    const auto beta2 = static_cast<float>(h[kBeta2]);
    const auto power = static_cast<float>(t);
    Scalars s;
    s.gradient_sign = h[kMaximize] != 0 ? -1.0 : 1.0;
    s.beta1 = beta1;
    s.beta2 = beta2;
    s.correction1 = 1.0f - std::pow(beta1, power);
    s.correction2 = 1.0f - std::pow(beta2, power);
    s.eps = h[kEps];
    s.weight_decay = h[kWeightDecay];
    s.negative_lr = -h[kLr];
    return s;
  }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_ADAMW_LLMC_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_ADAMW_LLMC_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_ADAMW_LLMC_RULE
#undef SHARD_KERNELS_FORMULA_ADAMW_LLMC_RULE
#else
#define SHARD_KERNELS_FORMULA_ADAMW_LLMC_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A>
struct AdamWLlmcRule {
  using V = typename A::V;

  SHARD_FORMULA_INLINE AdamWLlmcRule(const A& arithmetic,
                                     const AdamWLlmc::Scalars& s)
      : a(arithmetic),
        beta1(a.Set(s.beta1)),
        negative_beta1(a.Set(-s.beta1)),
        beta2(a.Set(s.beta2)),
        negative_beta2(a.Set(-s.beta2)),
        correction1(a.Set(s.correction1)),
        correction2(a.Set(s.correction2)),
        eps(a.Set(s.eps)),
        weight_decay(a.Set(s.weight_decay)),
        negative_lr(a.Set(s.negative_lr)) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    V& m = states[0];
    V& v = states[1];
    const V square = a.Mul(g, g);
    m = a.MulAdd(beta1, m, a.MulAdd(negative_beta1, g, g));
    v = a.MulAdd(beta2, v, a.MulAdd(negative_beta2, square, square));
    const V update =
        a.Div(a.Div(m, correction1), a.Add(a.Sqrt(a.Div(v, correction2)), eps));
    p = a.MulAdd(negative_lr, a.MulAdd(weight_decay, p, update), p);
  }

  A a;
  V beta1, negative_beta1, beta2, negative_beta2, correction1, correction2, eps,
      weight_decay, negative_lr;
};

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_ADAMW_LLMC_RULE
