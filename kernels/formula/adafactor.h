// SPDX-License-Identifier: Apache-2.0
//
// Adafactor: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with
// Sublinear Memory Cost", ICML 2018, algorithms 4 and 5, in the form of
// torch.optim.Adafactor. A tensor formula:
//
//   g = -g if maximize
//   w = t^beta2_decay                              1 - the paper's beta2
//   alpha = max(eps2, rms(p)) min(lr, 1 / sqrt(t))
//   p = p (1 - lr wd)
//   row_var = (1 - w) row_var + w mean(g g)        over a row
//   col_var = (1 - w) col_var + w mean(g g)        over a column
//   x = row_var col_var / max(mean(row_var), eps1)
//   u = g / sqrt(max(x, eps1 eps1))
//   p = p - alpha / max(1, rms(u) / d) u
//
// rms(p) and rms(u) are those of the whole parameter, before weight decay. Rows
// and columns are those of the last two dimensions; the dimensions before them
// count matrices, each with its own mean(row_var). A parameter of fewer
// dimensions has x = variance, which is (1 - w) variance + w g g.
//
// As in torch and unlike the paper: means, not sums, of squares; eps1 is a
// lower bound of divisors and is not added to g g; lr bounds the step size;
// weight decay. torch's default eps1 is the epsilon of the parameters' type.
//
// Unlike torch, an eps1 whose square is no float (below 1e-19) bounds x at the
// least normal float instead of at 0, where a gradient of 0 would become NaN.
// Also unlike torch, an infinite gradient makes its matrix NaN in every step.
// torch does so only where its lerp meets inf - inf (w >= 1/2, steps 1 and 2):
// in later steps its x is 0 and its u the gradient divided by eps1.

#ifndef SHARD_KERNELS_FORMULA_ADAFACTOR_H_
#define SHARD_KERNELS_FORMULA_ADAFACTOR_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/formula/host_math.h"
#include "kernels/formula/hyper.h"
#include "kernels/formula/shape.h"

namespace shard {

struct Adafactor {
  static constexpr const char* kName = "adafactor";
  enum { kLr, kBeta2Decay, kEps1, kEps2, kD, kWeightDecay, kMaximize };
  static constexpr Hyper kHypers[] = {
      NonNegative("lr", 1e-2),
      NonPositive("beta2_decay", -0.8),
      NonNegative("eps1", std::numeric_limits<float>::epsilon()),
      NonNegative("eps2", 1e-3),
      AtLeast("d", 1.0, 1.0),
      NonNegative("weight_decay", 0.0),
      Flag("maximize"),
  };
  enum { kRowVar, kColVar, kVariance };
  static constexpr const char* kStates[] = {"row_var", "col_var", "variance"};
  static constexpr int kNumStates = 3;

  static bool IsFor(const double*) { return true; }
  static const char* Conflict(const double*) { return nullptr; }

  // A parameter as `batches` matrices. REQUIRES: ndim >= 2.
  struct Matrices {
    int64_t batches;
    int64_t rows;
    int64_t cols;
  };
  static Matrices MatricesOf(const int64_t* shape, int ndim) {
    return {ShapeNumel(shape, ndim - 2), shape[ndim - 2], shape[ndim - 1]};
  }

  static const char* ShapeError(const int64_t*, int) { return nullptr; }
  // Returns the elements of a state. row_var has the parameter's shape with 1
  // column, col_var with 1 row; 0 when a parameter of these dimensions does not
  // keep the state.
  static int64_t StateNumel(int state, const int64_t* shape, int ndim) {
    if (ShapeNumel(shape, ndim) == 0) return 0;
    if (ndim < 2) return state == kVariance ? ShapeNumel(shape, ndim) : 0;
    const Matrices m = MatricesOf(shape, ndim);
    if (state == kRowVar) return m.batches * m.rows;
    return state == kColVar ? m.batches * m.cols : 0;
  }
  static int64_t Cost(const int64_t* shape, int ndim) {
    return ShapeNumel(shape, ndim);
  }

  struct Scalars {
    double gradient_sign;
    double beta2;            // 1 - t^beta2_decay
    double one_minus_beta2;  // t^beta2_decay
    double least_mean;       // of row_var
    double greatest_scale;   // of a gradient: 1 / sqrt(the least x)
    double rho;              // min(lr, 1 / sqrt(t))
    double eps2;
    double d;
    double decay;  // 1 - lr wd
  };

  static Scalars Prepare(const double* h, int64_t t) {
    constexpr double kLeast = std::numeric_limits<float>::min();
    const auto time = static_cast<double>(t);
    Scalars s;
    s.gradient_sign = h[kMaximize] != 0 ? -1.0 : 1.0;
    s.one_minus_beta2 = std::pow(time, h[kBeta2Decay]);
    s.beta2 = 1.0 - s.one_minus_beta2;
    s.least_mean = std::max(h[kEps1], kLeast);
    s.greatest_scale = 1.0 / std::sqrt(std::max(h[kEps1] * h[kEps1], kLeast));
    s.rho = std::min(h[kLr], 1.0 / std::sqrt(time));
    s.eps2 = h[kEps2];
    s.d = h[kD];
    s.decay = 1.0 - h[kLr] * h[kWeightDecay];
    return s;
  }

  // The columns whose squares in a row are added as doubles; sums of so many
  // are added as floats.
  static constexpr int64_t kStrip = 1024;
  // The rows whose squares in a column are added one after the other, four at a
  // time; sums of so many are added one after the other.
  static constexpr int64_t kRowBlock = 64;
  // The values of row_var that are one value of its sum.
  static constexpr int64_t kRowGroup = 256;

  // Returns 1 / max(mean(row_var), eps1) of one matrix's row_var; NaN for a
  // mean that is not finite, which makes all scales of the matrix NaN.
  static constexpr double InverseRowMean(const Scalars& s, double sum,
                                         int64_t rows) {
    // Infinity minus itself is NaN, and so is all that is made of NaN.
    if (sum - sum != 0) return std::numeric_limits<double>::quiet_NaN();
    return 1.0 / std::max(sum / static_cast<double>(rows), s.least_mean);
  }

  // Returns the factor of u in the sum with p, from the sums of squares of p
  // and u, where u has no sign from `maximize`. A sum that is NaN counts as a
  // small one, as with Python's max(1.0, nan). `math` has Sqrt(x), of doubles:
  // this is for the host and for kernels of a GPU. REQUIRES: numel > 0.
  template <class Math>
  static constexpr double StepSizeWith(const Math& math, const Scalars& s,
                                       double param_squares,
                                       double update_squares, int64_t numel) {
    const auto count = static_cast<double>(numel);
    const double alpha =
        s.rho * std::max(s.eps2, math.Sqrt(param_squares / count));
    const double clip = std::max(1.0, math.Sqrt(update_squares / count) / s.d);
    return -s.gradient_sign * alpha / clip;
  }
  static double StepSize(const Scalars& s, double param_squares,
                         double update_squares, int64_t numel) {
    return StepSizeWith(HostMath(), s, param_squares, update_squares, numel);
  }
};

}  // namespace shard

#endif  // SHARD_KERNELS_FORMULA_ADAFACTOR_H_

#include "kernels/formula/target.h"

#if defined(SHARD_KERNELS_FORMULA_ADAFACTOR_RULE) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_FORMULA_ADAFACTOR_RULE
#undef SHARD_KERNELS_FORMULA_ADAFACTOR_RULE
#else
#define SHARD_KERNELS_FORMULA_ADAFACTOR_RULE
#endif

SHARD_FORMULA_BEGIN

// The update over arithmetic A. The scale of a gradient is 1 / sqrt(x). For a
// matrix it is the product of RowScale and ColumnScale, each with a root of its
// own: that takes one division per row and column instead of one per element,
// and no product of two variances that a float cannot hold.
template <class A>
struct AdafactorRule {
  using V = typename A::V;

  SHARD_FORMULA_INLINE AdafactorRule(const A& arithmetic,
                                     const Adafactor::Scalars& s)
      : a(arithmetic),
        one(a.Set(1.0)),
        beta2(a.Set(s.beta2)),
        one_minus_beta2(a.Set(s.one_minus_beta2)),
        greatest_scale(a.Set(s.greatest_scale)),
        decay(a.Set(s.decay)) {}

  // Returns the next value of any of the three states.
  SHARD_FORMULA_INLINE V Average(V state, V mean_of_squares) const {
    return a.MulAdd(one_minus_beta2, mean_of_squares, a.Mul(beta2, state));
  }

  // Returns a row's scale. `inverse_mean` comes from Adafactor::InverseRowMean.
  SHARD_FORMULA_INLINE V RowScale(V row_var, V inverse_mean) const {
    return Scale(a.Mul(row_var, inverse_mean));
  }

  // Returns the scale of col_var or of variance; not finite where that is 0.
  SHARD_FORMULA_INLINE V Scale(V variance) const {
    return a.Div(one, a.Sqrt(variance));
  }

  // Returns u, without the sign from `maximize`.
  SHARD_FORMULA_INLINE V Update(V g, V scale) const {
    return a.Mul(g, a.Min(scale, greatest_scale));
  }

  // Returns the new p. `step_size` comes from Adafactor::StepSize.
  SHARD_FORMULA_INLINE V Apply(V p, V u, V step_size) const {
    return a.MulAdd(step_size, u, a.Mul(p, decay));
  }

  A a;
  V one, beta2, one_minus_beta2, greatest_scale, decay;
};

SHARD_FORMULA_END

#endif  // SHARD_KERNELS_FORMULA_ADAFACTOR_RULE
