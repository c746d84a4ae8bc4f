// SPDX-License-Identifier: Apache-2.0
//
// Adagrad: Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online
// Learning and Stochastic Optimization", JMLR 12, 2011, in the order of
// torch.optim.Adagrad:
//
//   g = -g if maximize
//   g = g + wd p
//   s = s + g g                  s starts at initial_accumulator_value
//   p = p - lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps)
//
// States are allocated as zeros, so the first step adds the initial value to s:
// the sums are the same, and before it s reads 0.
//
// Bytes per element, one gradient source: reads p, g, s (12), writes p, s (8).

#ifndef SHARD_KERNELS_FORMULA_ADAGRAD_H_
#define SHARD_KERNELS_FORMULA_ADAGRAD_H_

#include <cstdint>

#include "kernels/formula/hyper.h"

namespace shard {

struct Adagrad {
  static constexpr const char* kName = "adagrad";
  enum {
    kLr,
    kLrDecay,
    kWeightDecay,
    kInitialAccumulatorValue,
    kEps,
    kMaximize
  };
  static constexpr Hyper kHypers[] = {
      NonNegative("lr", 1e-2),
      NonNegative("lr_decay", 0.0),
      NonNegative("weight_decay", 0.0),
      NonNegative("initial_accumulator_value", 0.0),
      NonNegative("eps", 1e-10),
      Flag("maximize"),
  };
  static constexpr const char* kStates[] = {"sum"};
  static constexpr int kNumStates = 1;

  static bool IsFor(const double*) { return true; }
  static const char* Conflict(const double*) { return nullptr; }

  struct Scalars {
    double gradient_sign;
    double weight_decay;
    double initial;  // initial_accumulator_value; 0 after the first step.
    double eps;
    double negative_lr;  // -lr / (1 + (t - 1) lr_decay)
  };

  static Scalars Prepare(const double* h, int64_t t) {
    Scalars s;
    s.gradient_sign = h[kMaximize] != 0 ? -1.0 : 1.0;
    s.weight_decay = h[kWeightDecay];
    s.initial = t == 1 ? h[kInitialAccumulatorValue] : 0.0;
    s.eps = h[kEps];
    s.negative_lr = -h[kLr] / (1.0 + static_cast<double>(t - 1) * h[kLrDecay]);
    return s;
  }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_ADAGRAD_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_ADAGRAD_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_ADAGRAD_RULE
#undef SHARD_KERNELS_FORMULA_ADAGRAD_RULE
#else
#define SHARD_KERNELS_FORMULA_ADAGRAD_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A>
struct AdagradRule {
  using V = typename A::V;

  SHARD_FORMULA_INLINE AdagradRule(const A& arithmetic,
                                   const Adagrad::Scalars& s)
      : a(arithmetic),
        weight_decay(a.Set(s.weight_decay)),
        initial(a.Set(s.initial)),
        eps(a.Set(s.eps)),
        negative_lr(a.Set(s.negative_lr)) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    V& sum = states[0];
    g = a.MulAdd(weight_decay, p, g);
    sum = a.MulAdd(g, g, a.Add(sum, initial));
    p = a.MulAdd(negative_lr, a.Div(g, a.Add(a.Sqrt(sum), eps)), p);
  }

  A a;
  V weight_decay, initial, eps, negative_lr;
};

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_ADAGRAD_RULE
