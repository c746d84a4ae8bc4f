// SPDX-License-Identifier: Apache-2.0
//
// Rprop: Riedmiller and Braun, "A Direct Adaptive Method for Faster
// Backpropagation Learning: The RPROP Algorithm", ICNN 1993, in the form and
// order of torch.optim.Rprop:
//
//   g = -g if maximize
//   f = etaplus where g prev > 0, etaminus where g prev < 0, else 1
//   s = clamp(s f, step_size_min, step_size_max)     s starts at lr
//   g = 0 where g prev < 0
//   p = p - sign(g) s
//   prev = g
//
// sign(NaN) is 0, as in torch: a NaN gradient leaves p and s unchanged, and has
// no effect from the second gradient after it on. An infinity has a sign.
//
// As in torch, lr is read on the first step only. States are allocated as
// zeros, so the first step adds lr to s; before that step s reads 0.
//
// Bytes per element, one gradient source: reads p, g, prev, s (16), writes p,
// prev, s (12).

#ifndef SHARD_KERNELS_FORMULA_RPROP_H_
#define SHARD_KERNELS_FORMULA_RPROP_H_

#include <cstdint>

#include "kernels/formula/hyper.h"

namespace shard {

struct Rprop {
  static constexpr const char* kName = "rprop";
  enum { kLr, kEtaMinus, kEtaPlus, kStepSizeMin, kStepSizeMax, kMaximize };
  static constexpr Hyper kHypers[] = {
      NonNegative("lr", 1e-2),
      Decay("etaminus", 0.5),
      AtLeast("etaplus", 1.2, 1.0),
      NonNegative("step_size_min", 1e-6),
      NonNegative("step_size_max", 50.0),
      Flag("maximize"),
  };
  static constexpr const char* kStates[] = {"prev", "step_size"};
  static constexpr int kNumStates = 2;

  static bool IsFor(const double*) { return true; }
  // Rejects etas at their lower bounds, which are open; Hyper cannot express
  // that.
  static const char* Conflict(const double* h) {
    if (h[kEtaMinus] <= 0 || h[kEtaPlus] <= 1) {
      return "needs 0 < etaminus < 1 < etaplus";
    }
    if (h[kStepSizeMin] > h[kStepSizeMax]) {
      return "needs step_size_min at most step_size_max";
    }
    return nullptr;
  }

  struct Scalars {
    double gradient_sign;
    double initial;  // lr; 0 after the first step.
    double eta_minus;
    double eta_plus;
    double step_size_min;
    double step_size_max;
  };

  static Scalars Prepare(const double* h, int64_t t) {
    Scalars s;
    s.gradient_sign = h[kMaximize] != 0 ? -1.0 : 1.0;
    s.initial = t == 1 ? h[kLr] : 0.0;
    s.eta_minus = h[kEtaMinus];
    s.eta_plus = h[kEtaPlus];
    s.step_size_min = h[kStepSizeMin];
    s.step_size_max = h[kStepSizeMax];
    return s;
  }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_RPROP_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_RPROP_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_RPROP_RULE
#undef SHARD_KERNELS_FORMULA_RPROP_RULE
#else
#define SHARD_KERNELS_FORMULA_RPROP_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A>
struct RpropRule {
  using V = typename A::V;

  SHARD_FORMULA_INLINE RpropRule(const A& arithmetic, const Rprop::Scalars& s)
      : a(arithmetic),
        zero(a.Set(0.0)),
        one(a.Set(1.0)),
        initial(a.Set(s.initial)),
        eta_minus(a.Set(s.eta_minus)),
        eta_plus(a.Set(s.eta_plus)),
        step_size_min(a.Set(s.step_size_min)),
        step_size_max(a.Set(s.step_size_max)) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    V& previous = states[0];
    V& size = states[1];
    const V agreement = a.Mul(g, previous);
    const V disagreement = a.Sub(zero, agreement);
    const V factor = a.IfPositive(agreement, eta_plus,
                                  a.IfPositive(disagreement, eta_minus, one));
    size = a.Mul(a.Add(size, initial), factor);
    size = a.Min(a.Max(size, step_size_min), step_size_max);
    g = a.IfPositive(disagreement, zero, g);
    const V minus_g = a.Sub(zero, g);
    // A NaN moves no parameter.
    const V move =
        a.IfPositive(g, a.Sub(zero, size), a.IfPositive(minus_g, size, zero));
    p = a.Add(p, move);
    previous = g;
  }

  A a;
  V zero, one, initial, eta_minus, eta_plus, step_size_min, step_size_max;
};

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_RPROP_RULE
