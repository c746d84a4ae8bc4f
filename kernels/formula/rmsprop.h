// SPDX-License-Identifier: Apache-2.0
//
// RMSprop: Hinton, "Neural Networks for Machine Learning", lecture 6e, 2012;
// the centered form: Graves, "Generating Sequences With Recurrent Neural
// Networks", 2013. In the order of torch.optim.RMSprop:
//
//   g = -g if maximize
//   g = g + wd p
//   v = alpha v + (1 - alpha) g g
//   a = a + (1 - alpha) (g - a)                      centered
//   d = sqrt(centered ? v - a a : v) + eps
//   p = p - lr g / d                                 without momentum
//   b = momentum b + g / d;  p = p - lr b            with momentum
//
// v - a a is a variance; where rounding makes it negative, torch's parameter
// becomes NaN, while this formula uses 0.
//
// Each choice of momentum and centered keeps other states, so there are four
// formulas. Bytes per element, one gradient source: RmsProp reads p, g, v (12)
// and writes p, v (8); momentum adds b, centered adds a (each 4 and 4).

#ifndef SHARD_KERNELS_FORMULA_RMSPROP_H_
#define SHARD_KERNELS_FORMULA_RMSPROP_H_

#include <cstdint>

#include "kernels/formula/hyper.h"

namespace shard {

// The declarations that the four forms share.
struct RmsPropBase {
  static constexpr const char* kName = "rmsprop";
  enum { kLr, kAlpha, kEps, kWeightDecay, kMomentum, kCentered, kMaximize };
  static constexpr Hyper kHypers[] = {
      NonNegative("lr", 1e-2),
      Decay("alpha", 0.99),
      NonNegative("eps", 1e-8),
      NonNegative("weight_decay", 0.0),
      NonNegative("momentum", 0.0),
      Flag("centered"),
      Flag("maximize"),
  };

  static const char* Conflict(const double*) { return nullptr; }

  struct Scalars {
    double gradient_sign;
    double weight_decay;
    double alpha;
    double one_minus_alpha;
    double eps;
    double momentum;
    double negative_lr;
  };

  static Scalars Prepare(const double* h, int64_t) {
    Scalars s;
    s.gradient_sign = h[kMaximize] != 0 ? -1.0 : 1.0;
    s.weight_decay = h[kWeightDecay];
    s.alpha = h[kAlpha];
    s.one_minus_alpha = 1.0 - h[kAlpha];
    s.eps = h[kEps];
    s.momentum = h[kMomentum];
    s.negative_lr = -h[kLr];
    return s;
  }
};

struct RmsProp : RmsPropBase {
  static constexpr const char* kStates[] = {"square_avg"};
  static constexpr int kNumStates = 1;
  static bool IsFor(const double* h) {
    return h[kMomentum] == 0 && h[kCentered] == 0;
  }
};

struct RmsPropMomentum : RmsPropBase {
  static constexpr const char* kStates[] = {"square_avg", "momentum_buffer"};
  static constexpr int kNumStates = 2;
  static bool IsFor(const double* h) {
    return h[kMomentum] != 0 && h[kCentered] == 0;
  }
};

struct RmsPropCentered : RmsPropBase {
  static constexpr const char* kStates[] = {"square_avg", "grad_avg"};
  static constexpr int kNumStates = 2;
  static bool IsFor(const double* h) {
    return h[kMomentum] == 0 && h[kCentered] != 0;
  }
};

struct RmsPropCenteredMomentum : RmsPropBase {
  static constexpr const char* kStates[] = {"square_avg", "grad_avg",
                                            "momentum_buffer"};
  static constexpr int kNumStates = 3;
  static bool IsFor(const double* h) {
    return h[kMomentum] != 0 && h[kCentered] != 0;
  }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_RMSPROP_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_RMSPROP_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_RMSPROP_RULE
#undef SHARD_KERNELS_FORMULA_RMSPROP_RULE
#else
#define SHARD_KERNELS_FORMULA_RMSPROP_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A, bool kCentered, bool kMomentum>
struct RmsPropRuleOf {
  using V = typename A::V;

  SHARD_FORMULA_INLINE RmsPropRuleOf(const A& arithmetic,
                                     const RmsPropBase::Scalars& s)
      : a(arithmetic),
        zero(a.Set(0.0)),
        weight_decay(a.Set(s.weight_decay)),
        alpha(a.Set(s.alpha)),
        one_minus_alpha(a.Set(s.one_minus_alpha)),
        eps(a.Set(s.eps)),
        momentum(a.Set(s.momentum)),
        negative_lr(a.Set(s.negative_lr)) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    V& square_avg = states[0];
    g = a.MulAdd(weight_decay, p, g);
    square_avg =
        a.MulAdd(alpha, square_avg, a.Mul(one_minus_alpha, a.Mul(g, g)));
    V variance = square_avg;
    if constexpr (kCentered) {
      V& grad_avg = states[1];
      grad_avg = a.MulAdd(one_minus_alpha, a.Sub(g, grad_avg), grad_avg);
      variance = a.Max(zero, a.Sub(square_avg, a.Mul(grad_avg, grad_avg)));
    }
    V direction = a.Div(g, a.Add(a.Sqrt(variance), eps));
    if constexpr (kMomentum) {
      V& buffer = states[kCentered ? 2 : 1];
      buffer = a.MulAdd(momentum, buffer, direction);
      direction = buffer;
    }
    p = a.MulAdd(negative_lr, direction, p);
  }

  A a;
  V zero, weight_decay, alpha, one_minus_alpha, eps, momentum, negative_lr;
};

template <class A>
using RmsPropRule = RmsPropRuleOf<A, false, false>;
template <class A>
using RmsPropMomentumRule = RmsPropRuleOf<A, false, true>;
template <class A>
using RmsPropCenteredRule = RmsPropRuleOf<A, true, false>;
template <class A>
using RmsPropCenteredMomentumRule = RmsPropRuleOf<A, true, true>;

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_RMSPROP_RULE
