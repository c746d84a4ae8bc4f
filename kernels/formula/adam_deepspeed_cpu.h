// SPDX-License-Identifier: Apache-2.0
//
// Adam and AdamW in the order of DeepSpeedCPUAdam's vector loop
// (csrc/includes/cpu_adam.h), which writes its fused operations out:
//
//   g = g + wd p                                       Adam
//   m = (1 - beta1) g + beta1 m
//   v = (1 - beta2) (g g) + beta2 v
//   u = m / (r2 sqrt(v) + eps)
//   p = p - (lr wd) p                                  AdamW
//   p = p - (lr / c1) u
//
// Constants are floats, 1 - beta included. c1 = 1 - b1 and r2 = 1 / sqrt(1 -
// b2), where b is the float product of t factors beta, as DeepSpeed's optimizer
// object keeps it from step to step. (An object that was loaded at step s
// starts from pow(beta, s) instead.)
//
// DeepSpeed steps the elements left over at the end of a tensor in a scalar
// loop, in which its compiler may fuse operations differently.
//
// Bytes per element as Adam's (adam.h).

#include "kernels/formula/adam.h"
#include "kernels/formula/adamw.h"

#ifndef SHARD_KERNELS_FORMULA_ADAM_DEEPSPEED_CPU_H_
#define SHARD_KERNELS_FORMULA_ADAM_DEEPSPEED_CPU_H_

#include <cmath>
#include <cstdint>

namespace shard {

struct DeepSpeedCpuScalars {
  double gradient_sign;
  double beta1;
  double one_minus_beta1;
  double beta2;
  double one_minus_beta2;
  double inverse_root_correction2;  // r2
  double eps;
  double weight_decay;
  double negative_lr_weight_decay;
  double negative_step_size;  // -lr / c1
};

template <class Declaration>
struct DeepSpeedCpuForm : Declaration,
                          WithoutAmsgrad<AdamMoments::kDeepSpeedCpu> {
  using Scalars = DeepSpeedCpuScalars;

  static Scalars Prepare(const double* h, int64_t t) {
    const auto lr = static_cast<float>(h[Declaration::kLr]);
    const auto beta1 = static_cast<float>(h[Declaration::kBeta1]);
    const auto beta2 = static_cast<float>(h[Declaration::kBeta2]);
    const auto weight_decay = static_cast<float>(h[Declaration::kWeightDecay]);
    Scalars s;
    s.gradient_sign = h[Declaration::kMaximize] != 0 ? -1.0 : 1.0;
    s.beta1 = beta1;
    s.one_minus_beta1 = 1.0f - beta1;
    s.beta2 = beta2;
    s.one_minus_beta2 = 1.0f - beta2;
    s.inverse_root_correction2 = 1.0f / std::sqrt(Correction(beta2, t));
    s.eps = h[Declaration::kEps];
    s.weight_decay = weight_decay;
    s.negative_lr_weight_decay = -lr * weight_decay;
    s.negative_step_size = -lr / Correction(beta1, t);
    return s;
  }

 private:
  // Returns 1 - beta beta ... beta. A product so small that 1 minus it is 1
  // stays that small: the loop needs at most 17.4 / (1 - beta) multiplications,
  // for any t.
  static float Correction(float beta, int64_t t) {
    float product = 1.0f;
    for (int64_t i = 0; i < t && 1.0f - product != 1.0f; ++i) product *= beta;
    return 1.0f - product;
  }
};

struct AdamDeepSpeedCpu : DeepSpeedCpuForm<AdamDeclaration> {};
struct AdamWDeepSpeedCpu : DeepSpeedCpuForm<AdamWDeclaration> {};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_ADAM_DEEPSPEED_CPU_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_ADAM_DEEPSPEED_CPU_RULE) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_ADAM_DEEPSPEED_CPU_RULE
#undef SHARD_KERNELS_FORMULA_ADAM_DEEPSPEED_CPU_RULE
#else
#define SHARD_KERNELS_FORMULA_ADAM_DEEPSPEED_CPU_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A, bool kDecoupled>
struct DeepSpeedCpuRuleOf {
  using V = typename A::V;

  SHARD_FORMULA_INLINE DeepSpeedCpuRuleOf(const A& arithmetic,
                                          const DeepSpeedCpuScalars& s)
      : a(arithmetic),
        beta1(a.Set(s.beta1)),
        one_minus_beta1(a.Set(s.one_minus_beta1)),
        beta2(a.Set(s.beta2)),
        one_minus_beta2(a.Set(s.one_minus_beta2)),
        inverse_root_correction2(a.Set(s.inverse_root_correction2)),
        eps(a.Set(s.eps)),
        decay(a.Set(kDecoupled ? s.negative_lr_weight_decay : s.weight_decay)),
        negative_step_size(a.Set(s.negative_step_size)) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    V& m = states[0];
    V& v = states[1];
    if constexpr (!kDecoupled) g = a.MulAdd(p, decay, g);
    m = a.MulAdd(g, one_minus_beta1, a.Mul(m, beta1));
    v = a.MulAdd(a.Mul(g, g), one_minus_beta2, a.Mul(v, beta2));
    const V update =
        a.Div(m, a.MulAdd(a.Sqrt(v), inverse_root_correction2, eps));
    if constexpr (kDecoupled) p = a.MulAdd(p, decay, p);
    p = a.MulAdd(update, negative_step_size, p);
  }

  A a;
  V beta1, one_minus_beta1, beta2, one_minus_beta2, inverse_root_correction2,
      eps, decay, negative_step_size;
};

template <class A>
using AdamDeepSpeedCpuRule = DeepSpeedCpuRuleOf<A, false>;
template <class A>
using AdamWDeepSpeedCpuRule = DeepSpeedCpuRuleOf<A, true>;

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_ADAM_DEEPSPEED_CPU_RULE
