// SPDX-License-Identifier: Apache-2.0
//
// Muon: Jordan et al., "Muon: An optimizer for hidden layers in neural
// networks", 2024 (kellerjordan.github.io/posts/muon), in the order of
// torch.optim.Muon. A tensor formula, for matrices of `rows` x `cols`:
//
//   b = b + (1 - momentum) (g - b)
//   d = nesterov ? b + (1 - momentum) (g - b) : b
//   o = NewtonSchulz(d / max(|d|, eps))                  |d|: Frobenius norm
//   p = p (1 - lr wd)
//   p = p - lr s o
//
// s makes the size of an update independent of the shape. By `adjust`, s is
//   original         sqrt(max(1, rows / cols))
//   match_rms_adamw  0.2 sqrt(max(rows, cols)), which gives an update the root
//                    mean square of AdamW's, and AdamW's lr and wd their
//                    meaning: Liu et al., "Muon is Scalable for LLM Training",
//                    2025
//
// NewtonSchulz is ns_steps times
//
//   x = a x + b (x x^T) x + c (x x^T)^2 x                 (a, b, c) below
//
// which moves every singular value of x towards 1 and keeps its vectors. The
// coefficients are Jordan's: steepest at 0, so that 5 steps are enough, at the
// price that singular values do not settle at 1 but between about 0.7 and 1.2.
// matmul_precision is the least precision of these products: `highest` is fp32,
// `high` TF32, and `medium` bf16, in which torch takes these steps; a device
// may take more. What the names mean is torch.set_float32_matmul_precision's.
//
// Where rows > cols, x^T replaces x, because x x^T is then the smaller of the
// two products.

#ifndef SHARD_KERNELS_FORMULA_MUON_H_
#define SHARD_KERNELS_FORMULA_MUON_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/formula/hyper.h"

namespace shard {

struct Muon {
  static constexpr const char* kName = "muon";
  enum {
    kLr,
    kWeightDecay,
    kMomentum,
    kNesterov,
    kNsSteps,
    kEps,
    kAdjustLrFn,
    kMatmulPrecision
  };
  enum { kOriginal, kMatchRmsAdamW, kNumAdjustments };
  static constexpr const char* kAdjustments[] = {"original", "match_rms_adamw"};
  enum { kHighest, kHigh, kMedium, kNumPrecisions };
  static constexpr const char* kPrecisions[] = {"highest", "high", "medium"};
  static constexpr Hyper kHypers[] = {
      NonNegative("lr", 1e-3),
      NonNegative("weight_decay", 0.1),
      Decay("momentum", 0.95),
      Flag("nesterov", 1.0),
      {"ns_steps", 5.0, 1.0, 100.0, false, false},
      NonNegative("eps", 1e-7),
      Choice("adjust_lr_fn", kAdjustments),
      Choice("matmul_precision", kPrecisions),
  };
  static constexpr const char* kStates[] = {"momentum_buffer"};
  static constexpr int kNumStates = 1;

  // The coefficients a, b and c.
  static constexpr double kLinear = 3.4445;
  static constexpr double kCubic = -4.7750;
  static constexpr double kQuintic = 2.0315;

  static bool IsFor(const double*) { return true; }
  // Rejects a number of steps that is not whole, which Hyper cannot express.
  static const char* Conflict(const double* h) {
    return h[kNsSteps] == std::floor(h[kNsSteps])
               ? nullptr
               : "needs a whole number of ns_steps";
  }

  static const char* ShapeError(const int64_t* shape, int ndim) {
    if (ndim != 2) return "a matrix: a shape of exactly 2 dimensions";
    // The greatest integer of a CBLAS.
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (shape[0] > kMost || shape[1] > kMost) {
      return "a matrix of at most 2147483647 rows and columns";
    }
    return nullptr;
  }

  // Returns the elements of a state. REQUIRES, as the functions below: a shape
  // that ShapeError accepts.
  static int64_t StateNumel(int, const int64_t* shape, int) {
    return shape[0] * shape[1];
  }

  // Returns the floating point operations of one Newton-Schulz step, as
  // Orthogonalize computes it: half of a product for each of the two symmetric
  // matrices, and a whole one. Only products are counted. Saturates at
  // int64_t's greatest number.
  static int64_t Cost(const int64_t* shape, int) {
    const auto small = static_cast<double>(std::min(shape[0], shape[1]));
    const auto large = static_cast<double>(std::max(shape[0], shape[1]));
    const double flops = small * small * (3 * large + small);
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    return flops < static_cast<double>(kMost) ? static_cast<int64_t>(flops)
                                              : kMost;
  }

  struct MomentumScalars {
    double one_minus_momentum;
    bool nesterov;
  };

  struct ApplyScalars {
    double decay;               // 1 - lr wd
    double negative_step_size;  // -lr s
  };

  struct Scalars {
    MomentumScalars momentum;
    double decay;
    double negative_lr;
    double eps;
    int ns_steps;
    int adjustment;
  };

  // The same for every step number.
  static Scalars Prepare(const double* h, int64_t) {
    return {{1.0 - h[kMomentum], h[kNesterov] != 0},
            1.0 - h[kLr] * h[kWeightDecay],
            -h[kLr],
            h[kEps],
            static_cast<int>(h[kNsSteps]),
            static_cast<int>(h[kAdjustLrFn])};
  }

  // Returns s for a shape.
  static double AdjustmentOf(int adjustment, int64_t rows, int64_t cols) {
    const auto m = static_cast<double>(rows);
    const auto n = static_cast<double>(cols);
    return adjustment == kMatchRmsAdamW ? 0.2 * std::sqrt(std::max(m, n))
                                        : std::sqrt(std::max(1.0, m / n));
  }
  static constexpr ApplyScalars ApplyWith(const Scalars& s, double adjustment) {
    return {s.decay, s.negative_lr * adjustment};
  }
  static ApplyScalars ApplyTo(const Scalars& s, int64_t rows, int64_t cols) {
    return ApplyWith(s, AdjustmentOf(s.adjustment, rows, cols));
  }

  // Returns 1 / max(|d|, eps), or NaN for a norm that is not finite: a factor
  // of 1 / infinity would leave zeros beside one NaN, which a BLAS may skip.
  static constexpr float FactorOf(double norm, double eps) {
    constexpr double kFinite = std::numeric_limits<double>::max();
    if (!(norm <= kFinite)) return std::numeric_limits<float>::quiet_NaN();
    // Zeros divided by a tiny eps stay zeros.
    constexpr double kMost = std::numeric_limits<float>::max();
    const double factor = 1.0 / (norm > eps ? norm : eps);
    return static_cast<float>(factor < kMost ? factor : kMost);
  }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_MUON_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_MUON_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_MUON_RULE
#undef SHARD_KERNELS_FORMULA_MUON_RULE
#else
#define SHARD_KERNELS_FORMULA_MUON_RULE
#endif

SHARD_FORMULA_BEGIN

// The rule before NewtonSchulz: updates b and computes d.
template <class A>
struct MuonMomentumRule {
  using V = typename A::V;

  SHARD_FORMULA_INLINE MuonMomentumRule(const A& arithmetic,
                                        const Muon::MomentumScalars& s)
      : a(arithmetic),
        one_minus_momentum(a.Set(s.one_minus_momentum)),
        nesterov(s.nesterov) {}

  SHARD_FORMULA_INLINE V Direction(V g, V& buffer) const {
    buffer = Towards(g, buffer);
    return nesterov ? Towards(g, buffer) : buffer;
  }

  A a;
  V one_minus_momentum;
  bool nesterov;

 private:
  SHARD_FORMULA_INLINE V Towards(V g, V buffer) const {
    return a.MulAdd(one_minus_momentum, a.Sub(g, buffer), buffer);
  }
};

// The rule after NewtonSchulz: updates p.
template <class A>
struct MuonApplyRule {
  using V = typename A::V;

  SHARD_FORMULA_INLINE MuonApplyRule(const A& arithmetic,
                                     const Muon::ApplyScalars& s)
      : a(arithmetic),
        decay(a.Set(s.decay)),
        negative_step_size(a.Set(s.negative_step_size)) {}

  SHARD_FORMULA_INLINE void Update(V o, V& p) const {
    p = a.MulAdd(negative_step_size, o, a.Mul(p, decay));
  }

  A a;
  V decay, negative_step_size;
};

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_MUON_RULE
