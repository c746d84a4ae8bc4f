// SPDX-License-Identifier: Apache-2.0
//
// Adafactor's passes over a parameter; see tensor_step.h.
//
// Compiled once per SIMD target, like the .cc that includes it; the include
// guard admits it once per target.

#if defined(SHARD_KERNELS_CPU_ADAFACTOR_STEP_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_ADAFACTOR_STEP_H_
#undef SHARD_KERNELS_CPU_ADAFACTOR_STEP_H_
#else
#define SHARD_KERNELS_CPU_ADAFACTOR_STEP_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/cpu/square_sum.h"
#include "kernels/cpu/vector_arithmetic.h"
#include "kernels/formula/all.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

// The sum for whole vectors of D, a tag of floats.
template <class D>
class SquareSum;

// The scalar target has no half vectors, and needs only the specialization
// below.
#if HWY_TARGET != HWY_SCALAR
template <class D>
class SquareSum {
 public:
  // Spelled out, because members that the compiler generates are not compiled
  // for the target.
  HWY_INLINE SquareSum() : low_(hn::Zero(kWide)), high_(hn::Zero(kWide)) {}

  HWY_INLINE void Add(hn::Vec<D> x) {
    const auto low = hn::PromoteTo(kWide, hn::LowerHalf(kHalf, x));
    const auto high = hn::PromoteTo(kWide, hn::UpperHalf(kHalf, x));
    low_ = hn::MulAdd(low, low, low_);
    high_ = hn::MulAdd(high, high, high_);
  }

  HWY_INLINE double Total() const {
    return hn::GetLane(hn::SumOfLanes(kWide, hn::Add(low_, high_)));
  }

 private:
  static constexpr hn::Repartition<double, D> kWide{};
  static constexpr hn::Half<D> kHalf{};
  hn::Vec<decltype(kWide)> low_;
  hn::Vec<decltype(kWide)> high_;
};
#endif

// The sum of single elements: the rest of a row, and all elements on the scalar
// target.
template <>
class SquareSum<hn::CappedTag<float, 1>> {
 public:
  HWY_INLINE void Add(hn::Vec<hn::CappedTag<float, 1>> x) {
    const auto value = static_cast<double>(hn::GetLane(x));
    total_ += value * value;
  }

  HWY_INLINE double Total() const { return total_; }

 private:
  double total_ = 0;
};

struct AdafactorSquares {
  double param;
  double update;
};

// One of the parameter's matrices, row-major.
struct AdafactorMatrix {
  size_t rows;
  size_t cols;
  const float* grad;
  float* param;
  float* row_var;
  float* col_var;
  // The sums of squares before AdafactorScales, the gradient's scales after it.
  float* row_scratch;
  float* col_scratch;
};

// Number of columns whose sums are kept at the same time: 8 KiB of doubles,
// which stay in the first level cache while rows are read in pieces of a page.
inline constexpr size_t kAdafactorTile = 1024;

// Number of rows that are read together, so that a column's sum is read and
// written once for all of them.
inline constexpr size_t kAdafactorRows = 4;

// Adds the squares of `width` elements of each of the rows: the sums of rows
// are stored in row_sums, those of columns are added to col_sums. The next rows
// are `ahead` elements further on and are prefetched, because pieces of rows
// are too short for the processor to predict (16 GB/s without the prefetch, 27
// with it, on one core of a Zen 5).
HWY_INLINE void AdafactorSumRows(const float* const* rows, size_t width,
                                 size_t ahead, double* row_sums,
                                 double* col_sums) {
  static_assert(kAdafactorRows == 4, "there are as many sums below");
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> narrow;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  auto sum2 = hn::Zero(d);
  auto sum3 = hn::Zero(d);
  size_t j = 0;
  for (; j + lanes <= width; j += lanes) {
    hwy::Prefetch(rows[0] + ahead + j);
    hwy::Prefetch(rows[1] + ahead + j);
    hwy::Prefetch(rows[2] + ahead + j);
    hwy::Prefetch(rows[3] + ahead + j);
    const auto g0 = hn::PromoteTo(d, hn::LoadU(narrow, rows[0] + j));
    const auto g1 = hn::PromoteTo(d, hn::LoadU(narrow, rows[1] + j));
    const auto g2 = hn::PromoteTo(d, hn::LoadU(narrow, rows[2] + j));
    const auto g3 = hn::PromoteTo(d, hn::LoadU(narrow, rows[3] + j));
    sum0 = hn::MulAdd(g0, g0, sum0);
    sum1 = hn::MulAdd(g1, g1, sum1);
    sum2 = hn::MulAdd(g2, g2, sum2);
    sum3 = hn::MulAdd(g3, g3, sum3);
    const auto low = hn::MulAdd(g1, g1, hn::Mul(g0, g0));
    const auto high = hn::MulAdd(g3, g3, hn::Mul(g2, g2));
    const auto col = hn::LoadU(d, col_sums + j);
    hn::StoreU(hn::Add(col, hn::Add(low, high)), d, col_sums + j);
  }
  row_sums[0] = hn::GetLane(hn::SumOfLanes(d, sum0));
  row_sums[1] = hn::GetLane(hn::SumOfLanes(d, sum1));
  row_sums[2] = hn::GetLane(hn::SumOfLanes(d, sum2));
  row_sums[3] = hn::GetLane(hn::SumOfLanes(d, sum3));
  for (; j < width; ++j) {
    for (size_t r = 0; r < kAdafactorRows; ++r) {
      const auto g = static_cast<double>(rows[r][j]);
      row_sums[r] += g * g;
      col_sums[j] += g * g;
    }
  }
}

// The first pass: stores the sums of squares of rows and columns in the
// scratch.
HWY_INLINE void AdafactorSums(const AdafactorMatrix& matrix) {
  double col_sums[kAdafactorTile];
  // Replaces the rows that are missing in the last group.
  float zeros[kAdafactorTile];
  for (size_t begin = 0; begin < matrix.cols; begin += kAdafactorTile) {
    const size_t width = std::min(kAdafactorTile, matrix.cols - begin);
    std::fill_n(col_sums, width, 0.0);
    std::fill_n(zeros, width, 0.0f);
    for (size_t i = 0; i < matrix.rows; i += kAdafactorRows) {
      const size_t present = std::min(kAdafactorRows, matrix.rows - i);
      const float* rows[kAdafactorRows];
      for (size_t r = 0; r < kAdafactorRows; ++r) {
        rows[r] =
            r < present ? matrix.grad + (i + r) * matrix.cols + begin : zeros;
      }
      double row_sums[kAdafactorRows];
      const bool more = i + 2 * kAdafactorRows <= matrix.rows;
      const size_t ahead = more ? kAdafactorRows * matrix.cols : 0;
      AdafactorSumRows(rows, width, ahead, row_sums, col_sums);
      for (size_t r = 0; r < present; ++r) {
        const auto sum = static_cast<float>(row_sums[r]);
        float& total = matrix.row_scratch[i + r];
        total = begin == 0 ? sum : total + sum;
      }
    }
    for (size_t j = 0; j < width; ++j) {
      matrix.col_scratch[begin + j] = static_cast<float>(col_sums[j]);
    }
  }
}

// The work of the passes on elements [begin, count), in whole vectors of D.
// Methods that return a position return the first element not done.
template <class D>
class AdafactorRange {
 public:
  using V = hn::Vec<D>;

  HWY_INLINE explicit AdafactorRange(const Adafactor::Scalars& scalars)
      : rule_(arithmetic_, scalars) {}

  // Makes a step of row_var or col_var.
  HWY_INLINE size_t Average(const float* sums, double inverse_count,
                            float* state, size_t begin, size_t count) const {
    const V inverse = arithmetic_.Set(inverse_count);
    size_t i = begin;
    for (; i + lanes_ <= count; i += lanes_) {
      const V mean = hn::Mul(hn::LoadU(d_, sums + i), inverse);
      hn::StoreU(rule_.Average(hn::LoadU(d_, state + i), mean), d_, state + i);
    }
    return i;
  }

  // Stores the scales of rows or columns. `inverse_mean` is 1 for columns.
  HWY_INLINE size_t Scales(const float* state, double inverse_mean,
                           float* scales, size_t begin, size_t count) const {
    const V inverse = arithmetic_.Set(inverse_mean);
    size_t i = begin;
    for (; i + lanes_ <= count; i += lanes_) {
      hn::StoreU(rule_.RowScale(hn::LoadU(d_, state + i), inverse), d_,
                 scales + i);
    }
    return i;
  }

  // Adds the squares of p and u in a row.
  HWY_INLINE size_t AddSquares(const float* grad, const float* param,
                               float row_scale, const float* col_scales,
                               size_t begin, size_t count,
                               AdafactorSquares* squares) const {
    const V row = hn::Set(d_, row_scale);
    SquareSum<D> param_squares;
    SquareSum<D> update_squares;
    size_t i = begin;
    for (; i + lanes_ <= count; i += lanes_) {
      const V scale = hn::Mul(row, hn::LoadU(d_, col_scales + i));
      param_squares.Add(hn::LoadU(d_, param + i));
      update_squares.Add(rule_.Update(hn::LoadU(d_, grad + i), scale));
    }
    squares->param += param_squares.Total();
    squares->update += update_squares.Total();
    return i;
  }

  HWY_INLINE size_t Apply(const float* grad, float row_scale,
                          const float* col_scales, double step_size,
                          float* param, size_t begin, size_t count) const {
    const V row = hn::Set(d_, row_scale);
    const V step = arithmetic_.Set(step_size);
    size_t i = begin;
    for (; i + lanes_ <= count; i += lanes_) {
      const V scale = hn::Mul(row, hn::LoadU(d_, col_scales + i));
      const V u = rule_.Update(hn::LoadU(d_, grad + i), scale);
      hn::StoreU(rule_.Apply(hn::LoadU(d_, param + i), u, step), d_, param + i);
    }
    return i;
  }

  // For a parameter without rows and columns: makes a step of variance, and
  // adds the squares of p and u.
  HWY_INLINE size_t AverageElements(const float* grad, const float* param,
                                    float* variance, size_t begin, size_t count,
                                    AdafactorSquares* squares) const {
    SquareSum<D> param_squares;
    SquareSum<D> update_squares;
    size_t i = begin;
    for (; i + lanes_ <= count; i += lanes_) {
      const V g = hn::LoadU(d_, grad + i);
      const V v = rule_.Average(hn::LoadU(d_, variance + i), hn::Mul(g, g));
      hn::StoreU(v, d_, variance + i);
      param_squares.Add(hn::LoadU(d_, param + i));
      update_squares.Add(rule_.Update(g, rule_.Scale(v)));
    }
    squares->param += param_squares.Total();
    squares->update += update_squares.Total();
    return i;
  }

  HWY_INLINE size_t ApplyElements(const float* grad, const float* variance,
                                  double step_size, float* param, size_t begin,
                                  size_t count) const {
    const V step = arithmetic_.Set(step_size);
    size_t i = begin;
    for (; i + lanes_ <= count; i += lanes_) {
      const V scale = rule_.Scale(hn::LoadU(d_, variance + i));
      const V u = rule_.Update(hn::LoadU(d_, grad + i), scale);
      hn::StoreU(rule_.Apply(hn::LoadU(d_, param + i), u, step), d_, param + i);
    }
    return i;
  }

 private:
  D d_;
  size_t lanes_ = hn::Lanes(D());
  VectorArithmetic<D> arithmetic_;
  AdafactorRule<VectorArithmetic<D>> rule_;
};

using AdafactorVectors = AdafactorRange<hn::ScalableTag<float>>;
using AdafactorRest = AdafactorRange<hn::CappedTag<float, 1>>;

// Makes a step of the states of one matrix, and stores the scales that follow
// from them in the scratch.
HWY_INLINE void AdafactorScales(const Adafactor::Scalars& scalars,
                                const AdafactorMatrix& matrix,
                                const AdafactorVectors& vectors,
                                const AdafactorRest& rest) {
  const auto average = [&](const float* sums, size_t divisor, float* state,
                           size_t count) HWY_ATTR {
    const double inverse = 1.0 / static_cast<double>(divisor);
    const size_t done = vectors.Average(sums, inverse, state, 0, count);
    rest.Average(sums, inverse, state, done, count);
  };
  average(matrix.row_scratch, matrix.cols, matrix.row_var, matrix.rows);
  average(matrix.col_scratch, matrix.rows, matrix.col_var, matrix.cols);

  double sum = 0;
  for (size_t i = 0; i < matrix.rows; ++i) {
    sum += static_cast<double>(matrix.row_var[i]);
  }
  const auto scale = [&](const float* state, double inverse_mean, float* scales,
                         size_t count) HWY_ATTR {
    const size_t done = vectors.Scales(state, inverse_mean, scales, 0, count);
    rest.Scales(state, inverse_mean, scales, done, count);
  };
  scale(matrix.row_var,
        Adafactor::InverseRowMean(scalars, sum,
                                  static_cast<int64_t>(matrix.rows)),
        matrix.row_scratch, matrix.rows);
  scale(matrix.col_var, 1.0, matrix.col_scratch, matrix.cols);
}

HWY_INLINE AdafactorMatrix MatrixOf(const TensorStepArgs& args, size_t batch) {
  const Adafactor::Matrices all = Adafactor::MatricesOf(args.shape, args.ndim);
  const auto batches = static_cast<size_t>(all.batches);
  AdafactorMatrix matrix;
  matrix.rows = static_cast<size_t>(all.rows);
  matrix.cols = static_cast<size_t>(all.cols);
  matrix.grad = args.grad + batch * matrix.rows * matrix.cols;
  matrix.param = args.param + batch * matrix.rows * matrix.cols;
  matrix.row_var = args.states[Adafactor::kRowVar] + batch * matrix.rows;
  matrix.col_var = args.states[Adafactor::kColVar] + batch * matrix.cols;
  matrix.row_scratch = args.scratch + batch * matrix.rows;
  matrix.col_scratch =
      args.scratch + batches * matrix.rows + batch * matrix.cols;
  return matrix;
}

HWY_INLINE void AdafactorStepMatrices(const Adafactor::Scalars& scalars,
                                      const TensorStepArgs& args,
                                      int64_t numel) {
  const AdafactorVectors vectors(scalars);
  const AdafactorRest rest(scalars);
  AdafactorSquares squares = {};
  const auto batches =
      static_cast<size_t>(Adafactor::MatricesOf(args.shape, args.ndim).batches);
  for (size_t b = 0; b < batches; ++b) {
    const AdafactorMatrix matrix = MatrixOf(args, b);
    AdafactorSums(matrix);
    AdafactorScales(scalars, matrix, vectors, rest);
    for (size_t i = 0; i < matrix.rows; ++i) {
      const float* const grad = matrix.grad + i * matrix.cols;
      const float* const param = matrix.param + i * matrix.cols;
      const float row = matrix.row_scratch[i];
      const size_t done = vectors.AddSquares(
          grad, param, row, matrix.col_scratch, 0, matrix.cols, &squares);
      rest.AddSquares(grad, param, row, matrix.col_scratch, done, matrix.cols,
                      &squares);
    }
  }
  const double step =
      Adafactor::StepSize(scalars, squares.param, squares.update, numel);
  for (size_t b = 0; b < batches; ++b) {
    const AdafactorMatrix matrix = MatrixOf(args, b);
    for (size_t i = 0; i < matrix.rows; ++i) {
      const float* const grad = matrix.grad + i * matrix.cols;
      float* const param = matrix.param + i * matrix.cols;
      const float row = matrix.row_scratch[i];
      const size_t done = vectors.Apply(grad, row, matrix.col_scratch, step,
                                        param, 0, matrix.cols);
      rest.Apply(grad, row, matrix.col_scratch, step, param, done, matrix.cols);
    }
  }
}

HWY_INLINE void AdafactorStepElements(const Adafactor::Scalars& scalars,
                                      const TensorStepArgs& args,
                                      int64_t numel) {
  const AdafactorVectors vectors(scalars);
  const AdafactorRest rest(scalars);
  AdafactorSquares squares = {};
  const auto count = static_cast<size_t>(numel);
  float* const variance = args.states[Adafactor::kVariance];
  const size_t whole = vectors.AverageElements(args.grad, args.param, variance,
                                               0, count, &squares);
  rest.AverageElements(args.grad, args.param, variance, whole, count, &squares);
  const double step =
      Adafactor::StepSize(scalars, squares.param, squares.update, numel);
  vectors.ApplyElements(args.grad, variance, step, args.param, 0, count);
  rest.ApplyElements(args.grad, variance, step, args.param, whole, count);
}

HWY_INLINE void AdafactorStep(const Adafactor::Scalars& scalars,
                              const TensorStepArgs& args) {
  const int64_t numel = ShapeNumel(args.shape, args.ndim);
  if (numel == 0) return;
  if (args.ndim < 2) {
    AdafactorStepElements(scalars, args, numel);
  } else {
    AdafactorStepMatrices(scalars, args, numel);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_ADAFACTOR_STEP_H_
