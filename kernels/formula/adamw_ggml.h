// SPDX-License-Identifier: Apache-2.0
//
// AdamW in the order of ggml's OPT_STEP_ADAMW on the CPU
// (ggml/src/ggml-cpu/ops.cpp; its constants in ggml/src/ggml-opt.cpp):
//
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) (g g)
//   p = (1 - lr wd) p - (lr (m k1)) / (sqrt(v k2) + eps)
//
// Constants are floats, 1 - beta included. k = 1 / (1 - beta^t) in float, as is
// the power. Where a sum has two products, gcc and clang fuse the left one on
// processors that can, and this formula does the same, also in 1 - lr wd.
//
// ggml's CUDA kernel (ggml/src/ggml-cuda/opt-step-adamw.cu) has the same order;
// its compiler fuses the right product in m and v, and is told to approximate
// divisions and roots, for which see adam_apex.h.
//
// Bytes per element as AdamW's (adamw.h).

#include "kernels/formula/adamw.h"

#ifndef SHARD_KERNELS_FORMULA_ADAMW_GGML_H_
#define SHARD_KERNELS_FORMULA_ADAMW_GGML_H_

#include <cmath>
#include <cstdint>

namespace shard {

struct AdamWGgml : AdamWDeclaration, WithoutAmsgrad<AdamMoments::kGgml> {
  struct Scalars {
    double gradient_sign;
    double beta1;
    double one_minus_beta1;
    double beta2;
    double one_minus_beta2;
    double inverse_correction1;  // k1
    double inverse_correction2;  // k2
    double eps;
    double decay;  // 1 - lr wd
    double negative_lr;
  };

  static Scalars Prepare(const double* h, int64_t t) {
    const auto lr = static_cast<float>(h[kLr]);
    const auto beta1 = static_cast<float>(h[kBeta1]);
    const auto beta2 = static_cast<float>(h[kBeta2]);
    const auto weight_decay = static_cast<float>(h[kWeightDecay]);
    const auto power = static_cast<float>(t);
    Scalars s;
    s.gradient_sign = h[kMaximize] != 0 ? -1.0 : 1.0;
    s.beta1 = beta1;
    s.one_minus_beta1 = 1.0f - beta1;
    s.beta2 = beta2;
    s.one_minus_beta2 = 1.0f - beta2;
    s.inverse_correction1 = 1.0f / (1.0f - std::pow(beta1, power));
    s.inverse_correction2 = 1.0f / (1.0f - std::pow(beta2, power));
    s.eps = h[kEps];
    s.decay = std::fma(-lr, weight_decay, 1.0f);
    s.negative_lr = -lr;
    return s;
  }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_ADAMW_GGML_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_ADAMW_GGML_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_ADAMW_GGML_RULE
#undef SHARD_KERNELS_FORMULA_ADAMW_GGML_RULE
#else
#define SHARD_KERNELS_FORMULA_ADAMW_GGML_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A>
struct AdamWGgmlRule {
  using V = typename A::V;

  SHARD_FORMULA_INLINE AdamWGgmlRule(const A& arithmetic,
                                     const AdamWGgml::Scalars& s)
      : a(arithmetic),
        beta1(a.Set(s.beta1)),
        one_minus_beta1(a.Set(s.one_minus_beta1)),
        beta2(a.Set(s.beta2)),
        one_minus_beta2(a.Set(s.one_minus_beta2)),
        inverse_correction1(a.Set(s.inverse_correction1)),
        inverse_correction2(a.Set(s.inverse_correction2)),
        eps(a.Set(s.eps)),
        decay(a.Set(s.decay)),
        negative_lr(a.Set(s.negative_lr)) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    V& m = states[0];
    V& v = states[1];
    m = a.MulAdd(m, beta1, a.Mul(g, one_minus_beta1));
    v = a.MulAdd(v, beta2, a.Mul(a.Mul(g, g), one_minus_beta2));
    const V step = a.Mul(negative_lr, a.Mul(m, inverse_correction1));
    const V root = a.Add(a.Sqrt(a.Mul(v, inverse_correction2)), eps);
    p = a.MulAdd(p, decay, a.Div(step, root));
  }

  A a;
  V beta1, one_minus_beta1, beta2, one_minus_beta2, inverse_correction1,
      inverse_correction2, eps, decay, negative_lr;
};

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_ADAMW_GGML_RULE
