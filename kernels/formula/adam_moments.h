// SPDX-License-Identifier: Apache-2.0
//
// The parts that Adam, AdamW and LAMB share: all but the place of weight decay
// and the length of the step, in the order of torch:
//
//   m = m + (1 - beta1) (g - m)
//   v = beta2 v + (1 - beta2) g g
//   x = max(x, v)                                    amsgrad; else x is v
//   direction = m / (sqrt(x) / sqrt(1 - beta2^t) + eps)
//   step size = lr / (1 - beta1^t)
//
// amsgrad: Reddi, Kale and Kumar, "On the Convergence of Adam and Beyond",
// ICLR 2018, with torch's maximum of the uncorrected v. It keeps one state
// more, so it is a formula of its own.
//
// Other programs compute the same update in another order of float operations,
// which gives other last bits. Each such order is a formula of its own with the
// same states, chosen by `profile`, so that a run which began in such a program
// can continue here: adam_apex.h, adam_deepspeed_cpu.h, adamw_llmc.h,
// adamw_llmc_cpu.h, adamw_ggml.h. docs/numerics.md compares them.

#ifndef SHARD_KERNELS_FORMULA_ADAM_MOMENTS_H_
#define SHARD_KERNELS_FORMULA_ADAM_MOMENTS_H_

#include <cmath>
#include <cstdint>

#include "kernels/formula/hyper.h"
#include "kernels/formula/state_kind.h"

namespace shard {

struct AdamMoments {
  // The order of kHypers in Adam and AdamW.
  enum {
    kLr,
    kBeta1,
    kBeta2,
    kEps,
    kWeightDecay,
    kAmsgrad,
    kMaximize,
    kProfile,
    kStorage
  };

  // Not an enum: C++20 compares an enum with a double only after a cast.
  static constexpr int kTorch = 0;
  static constexpr int kApex = 1;
  static constexpr int kDeepSpeedCpu = 2;
  static constexpr int kLlmc = 3;
  static constexpr int kLlmcCpu = 4;
  static constexpr int kGgml = 5;
  static constexpr const char* kProfiles[] = {
      "torch", "apex", "deepspeed_cpu", "llmc", "llmc_cpu", "ggml"};

  static const char* Conflict(const double* h) {
    if (h[kAmsgrad] != 0 && h[kProfile] != kTorch) {
      return "amsgrad=1 needs profile=torch: no other has it";
    }
    // The other profiles' corrections are 1 - beta^t of the float beta.
    if (h[kProfile] != kTorch &&
        (IsOneInFloat(h[kBeta1]) || IsOneInFloat(h[kBeta2]))) {
      return "beta1 and beta2 must be below 1 in float with this profile";
    }
    return nullptr;
  }

  static bool IsOneInFloat(double x) { return static_cast<float>(x) == 1.0f; }

  // The constants of step `t` = 1, 2, ...; bias corrections in double.
  // `maximize` is the position of that flag in formulas without amsgrad, which
  // comes before it.
  struct MomentScalars {
    double gradient_sign;
    double one_minus_beta1;
    double beta2;
    double one_minus_beta2;
    double inverse_root_correction2;  // 1 / sqrt(1 - beta2^t)
    double eps;
    double negative_step_size;  // -lr / (1 - beta1^t)
  };

  static MomentScalars PrepareMoments(const double* h, int64_t t,
                                      int maximize = kMaximize) {
    const auto power = static_cast<double>(t);
    MomentScalars s;
    s.gradient_sign = h[maximize] != 0 ? -1.0 : 1.0;
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

// The states of a profile's form without amsgrad.
template <int kProfile>
struct WithoutAmsgrad {
  static constexpr const char* kStates[] = {"exp_avg", "exp_avg_sq"};
  static constexpr StateKind kStateKinds[] = {StateKind::kAverage,
                                              StateKind::kSquareAverage};
  static constexpr int kNumStates = 2;
  static bool IsFor(const double* h) {
    return h[AdamMoments::kAmsgrad] == 0 &&
           h[AdamMoments::kProfile] == kProfile;
  }
};

template <int kProfile>
struct WithAmsgrad {
  static constexpr const char* kStates[] = {"exp_avg", "exp_avg_sq",
                                            "max_exp_avg_sq"};
  static constexpr StateKind kStateKinds[] = {StateKind::kAverage,
                                              StateKind::kSquareAverage,
                                              StateKind::kSquareMaximum};
  static constexpr int kNumStates = 3;
  static bool IsFor(const double* h) {
    return h[AdamMoments::kAmsgrad] != 0 &&
           h[AdamMoments::kProfile] == kProfile;
  }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_ADAM_MOMENTS_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_ADAM_MOMENTS_RULE) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_ADAM_MOMENTS_RULE
#undef SHARD_KERNELS_FORMULA_ADAM_MOMENTS_RULE
#else
#define SHARD_KERNELS_FORMULA_ADAM_MOMENTS_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A, bool kAmsgrad>
struct AdamMomentsRule {
  using V = typename A::V;

  SHARD_FORMULA_INLINE AdamMomentsRule(const A& arithmetic,
                                       const AdamMoments::MomentScalars& s)
      : a(arithmetic),
        one_minus_beta1(a.Set(s.one_minus_beta1)),
        beta2(a.Set(s.beta2)),
        one_minus_beta2(a.Set(s.one_minus_beta2)),
        inverse_root_correction2(a.Set(s.inverse_root_correction2)),
        eps(a.Set(s.eps)),
        negative_step_size(a.Set(s.negative_step_size)) {}

  // Updates the moments and returns the direction. `g` already has its sign
  // from gradient_sign, folded into its scale.
  SHARD_FORMULA_INLINE V Direction(V g, V* states) const {
    V& m = states[0];
    V& v = states[1];
    m = a.MulAdd(one_minus_beta1, a.Sub(g, m), m);
    v = a.MulAdd(beta2, v, a.Mul(one_minus_beta2, a.Mul(g, g)));
    if constexpr (kAmsgrad) states[2] = a.Max(states[2], v);
    return Direction(states);
  }

  // Returns the direction without updating the moments.
  SHARD_FORMULA_INLINE V Direction(const V* states) const {
    const V second_moment = states[kAmsgrad ? 2 : 1];
    return a.Div(states[0], a.MulAdd(a.Sqrt(second_moment),
                                     inverse_root_correction2, eps));
  }

  A a;
  V one_minus_beta1, beta2, one_minus_beta2, inverse_root_correction2, eps,
      negative_step_size;
};

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_ADAM_MOMENTS_RULE
