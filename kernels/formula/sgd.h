// SPDX-License-Identifier: Apache-2.0
//
// SGD with optional momentum, in the order of torch.optim.SGD:
//
//   g = -g if maximize
//   g = g + wd p
//   b = g                            first step
//   b = momentum b + (1 - dampening) g   later steps
//   p = p - lr (nesterov ? g + momentum b : b)
//
// Momentum as in Sutskever et al., "On the importance of initialization and
// momentum in deep learning", ICML 2013, with torch's placement of lr.
//
// Without momentum there is no buffer b, so it is a formula of its own: Sgd
// reads p, g and writes p; SgdMomentum reads and writes b as well.

#ifndef SHARD_KERNELS_FORMULA_SGD_H_
#define SHARD_KERNELS_FORMULA_SGD_H_

#include <cstdint>

#include "kernels/formula/hyper.h"

namespace shard {

// The declarations that both forms share.
struct SgdBase {
  static constexpr const char* kName = "sgd";
  enum { kLr, kMomentum, kDampening, kWeightDecay, kNesterov, kMaximize };
  static constexpr Hyper kHypers[] = {
      NonNegative("lr", 1e-3),
      NonNegative("momentum", 0.0),
      {"dampening", 0.0, -kNoMaximum, kNoMaximum, true, false},
      NonNegative("weight_decay", 0.0),
      Flag("nesterov"),
      Flag("maximize"),
  };

  static const char* Conflict(const double* h) {
    if (h[kNesterov] != 0 && (h[kMomentum] <= 0 || h[kDampening] != 0)) {
      return "nesterov=1 needs momentum above 0 and dampening 0";
    }
    return nullptr;
  }

  struct Scalars {
    double gradient_sign;
    double weight_decay;
    double momentum;        // The factor of b; 0 on the first step.
    double undampened;      // 1 - dampening; 1 on the first step.
    double nesterov_blend;  // momentum when nesterov, else unused.
    double negative_lr;
    bool nesterov;
  };

  static Scalars Prepare(const double* h, int64_t t) {
    Scalars s;
    s.gradient_sign = h[kMaximize] != 0 ? -1.0 : 1.0;
    s.weight_decay = h[kWeightDecay];
    s.momentum = t == 1 ? 0.0 : h[kMomentum];
    s.undampened = t == 1 ? 1.0 : 1.0 - h[kDampening];
    s.nesterov_blend = h[kMomentum];
    s.negative_lr = -h[kLr];
    s.nesterov = h[kNesterov] != 0;
    return s;
  }
};

struct Sgd : SgdBase {
  static constexpr const char* const* kStates = nullptr;
  static constexpr int kNumStates = 0;
  static bool IsFor(const double* h) { return h[kMomentum] == 0; }
};

struct SgdMomentum : SgdBase {
  static constexpr const char* kStates[] = {"momentum_buffer"};
  static constexpr int kNumStates = 1;
  static bool IsFor(const double* h) { return h[kMomentum] != 0; }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_SGD_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_SGD_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_SGD_RULE
#undef SHARD_KERNELS_FORMULA_SGD_RULE
#else
#define SHARD_KERNELS_FORMULA_SGD_RULE
#endif

SHARD_FORMULA_BEGIN

template <class A>
struct SgdRule {
  using V = typename A::V;

  SHARD_FORMULA_INLINE SgdRule(const A& arithmetic, const Sgd::Scalars& s)
      : a(arithmetic),
        weight_decay(a.Set(s.weight_decay)),
        negative_lr(a.Set(s.negative_lr)) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V*) const {
    p = a.MulAdd(negative_lr, a.MulAdd(weight_decay, p, g), p);
  }

  A a;
  V weight_decay, negative_lr;
};

template <class A>
struct SgdMomentumRule {
  using V = typename A::V;

  SHARD_FORMULA_INLINE SgdMomentumRule(const A& arithmetic,
                                       const SgdMomentum::Scalars& s)
      : a(arithmetic),
        weight_decay(a.Set(s.weight_decay)),
        momentum(a.Set(s.momentum)),
        undampened(a.Set(s.undampened)),
        nesterov_blend(a.Set(s.nesterov_blend)),
        negative_lr(a.Set(s.negative_lr)),
        nesterov(s.nesterov) {}

  SHARD_FORMULA_INLINE void Update(V g, V& p, V* states) const {
    V& b = states[0];
    g = a.MulAdd(weight_decay, p, g);
    b = a.MulAdd(momentum, b, a.Mul(undampened, g));
    const V direction = nesterov ? a.MulAdd(nesterov_blend, b, g) : b;
    p = a.MulAdd(negative_lr, direction, p);
  }

  A a;
  V weight_decay, momentum, undampened, nesterov_blend, negative_lr;
  bool nesterov;
};

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_SGD_RULE
