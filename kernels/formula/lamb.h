// SPDX-License-Identifier: Apache-2.0
//
// LAMB: You et al., "Large Batch Optimization for Deep Learning: Training BERT
// in 76 minutes", ICLR 2020, algorithm 2 with phi(x) = x. A tensor formula:
//
//   g = -g if maximize
//   m = m + (1 - beta1) (g - m)
//   v = beta2 v + (1 - beta2) g g
//   u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + eps) + wd p
//   r = |p| / |u|, or 1 where either is 0          the trust ratio
//   p = p - lr r u
//
// with the 2-norms of the whole parameter. NVIDIA apex's FusedLAMB with
// use_nvlamb=True and timm's Lamb with always_adapt=True compute the same,
// except that they also clip the global norm, which is no part of a formula. By
// default both keep r at 1 where there is no weight decay; here, as in the
// paper, r does not depend on weight decay. r has no bounds: no clamp of |p| at
// 10, which other implementations have, and no trust_clip at 1.

#include "kernels/formula/adam_moments.h"

#ifndef SHARD_KERNELS_FORMULA_LAMB_H_
#define SHARD_KERNELS_FORMULA_LAMB_H_

#include <cmath>
#include <cstdint>

#include "kernels/formula/host_math.h"
#include "kernels/formula/hyper.h"
#include "kernels/formula/shape.h"

namespace shard {

struct Lamb {
  static constexpr const char* kName = "lamb";
  // The order of Adam up to weight_decay.
  enum { kLr, kBeta1, kBeta2, kEps, kWeightDecay, kMaximize };
  static constexpr Hyper kHypers[] = {
      NonNegative("lr", 1e-3),
      Decay("beta1", 0.9),
      Decay("beta2", 0.999),
      NonNegative("eps", 1e-6),
      NonNegative("weight_decay", 0.01),
      Flag("maximize"),
  };
  static constexpr const char* kStates[] = {"exp_avg", "exp_avg_sq"};
  static constexpr int kNumStates = 2;

  static bool IsFor(const double*) { return true; }
  static const char* Conflict(const double*) { return nullptr; }

  static const char* ShapeError(const int64_t*, int) { return nullptr; }
  static int64_t StateNumel(int, const int64_t* shape, int ndim) {
    return ShapeNumel(shape, ndim);
  }
  static int64_t Cost(const int64_t* shape, int ndim) {
    return ShapeNumel(shape, ndim);
  }

  struct Scalars : AdamMoments::MomentScalars {
    double inverse_correction1;  // 1 / (1 - beta1^t)
    double weight_decay;
    double lr;
  };

  static Scalars Prepare(const double* h, int64_t t) {
    return {AdamMoments::PrepareMoments(h, t, kMaximize),
            1.0 / (1.0 - std::pow(h[kBeta1], static_cast<double>(t))),
            h[kWeightDecay], h[kLr]};
  }

  // Returns -lr r from the sums of squares of p and u. NaN where a sum is NaN:
  // without the norms no element's update is known. `math` has Sqrt(x), of
  // doubles: this is for the host and for kernels of a GPU.
  template <class Math>
  static constexpr double StepSizeWith(const Math& math, const Scalars& s,
                                       double param_squares,
                                       double update_squares) {
    const bool trusted = param_squares != 0 && update_squares != 0;
    return trusted ? -s.lr * math.Sqrt(param_squares / update_squares) : -s.lr;
  }
  static double StepSize(const Scalars& s, double param_squares,
                         double update_squares) {
    return StepSizeWith(HostMath(), s, param_squares, update_squares);
  }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_LAMB_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_LAMB_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_LAMB_RULE
#undef SHARD_KERNELS_FORMULA_LAMB_RULE
#else
#define SHARD_KERNELS_FORMULA_LAMB_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A>
struct LambRule {
  using V = typename A::V;

  SHARD_FORMULA_INLINE LambRule(const A& arithmetic, const Lamb::Scalars& s)
      : a(arithmetic),
        moments(arithmetic, s),
        inverse_correction1(a.Set(s.inverse_correction1)),
        weight_decay(a.Set(s.weight_decay)) {}

  // Updates the moments and returns u. `g` already has its sign from
  // gradient_sign.
  SHARD_FORMULA_INLINE V Update(V g, V p, V* states) const {
    return WithDecay(moments.Direction(g, states), p);
  }

  // Returns the same u again, from the moments that Update left.
  SHARD_FORMULA_INLINE V UpdateAgain(V p, const V* states) const {
    return WithDecay(moments.Direction(states), p);
  }

  // Returns the new p. `step_size` comes from Lamb::StepSize.
  SHARD_FORMULA_INLINE V Apply(V p, V u, V step_size) const {
    return a.MulAdd(step_size, u, p);
  }

  SHARD_FORMULA_INLINE V WithDecay(V direction, V p) const {
    return a.MulAdd(direction, inverse_correction1, a.Mul(weight_decay, p));
  }

  A a;
  AdamMomentsRule<A, false> moments;
  V inverse_correction1, weight_decay;
};

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_LAMB_RULE
