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

#include "kernels/cpu/adafactor_sums.h"
#include "kernels/cpu/square_sum.h"
#include "kernels/cpu/vector_arithmetic.h"
#include "kernels/formula/all.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

// The elements by which the parameter is prefetched ahead of a tile, whose
// order of reading no processor predicts.
inline constexpr size_t kAdafactorAhead = 2 * kSquareTile;

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

  // Stores u of a piece of a row in `updates`, and prefetches what lies at
  // `next`.
  HWY_INLINE size_t Updates(const float* grad, float row_scale,
                            const float* col_scales, const float* next,
                            float* updates, size_t begin, size_t count) const {
    const V row = hn::Set(d_, row_scale);
    size_t i = begin;
    for (; i + lanes_ <= count; i += lanes_) {
      hwy::Prefetch(next + i);
      const V scale = hn::Mul(row, hn::LoadU(d_, col_scales + i));
      hn::StoreU(rule_.Update(hn::LoadU(d_, grad + i), scale), d_, updates + i);
    }
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
  // stores u in `updates`.
  HWY_INLINE size_t AverageElements(const float* grad, float* variance,
                                    float* updates, size_t begin,
                                    size_t count) const {
    size_t i = begin;
    for (; i + lanes_ <= count; i += lanes_) {
      const V g = hn::LoadU(d_, grad + i);
      const V v = rule_.Average(hn::LoadU(d_, variance + i), hn::Mul(g, g));
      hn::StoreU(v, d_, variance + i);
      hn::StoreU(rule_.Update(g, rule_.Scale(v)), d_, updates + i);
    }
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

  GroupedSum<Adafactor::kRowGroup> sum;
  for (size_t i = 0; i < matrix.rows; ++i) {
    sum.Add(static_cast<double>(matrix.row_var[i]));
  }
  const auto scale = [&](const float* state, double inverse_mean, float* scales,
                         size_t count) HWY_ATTR {
    const size_t done = vectors.Scales(state, inverse_mean, scales, 0, count);
    rest.Scales(state, inverse_mean, scales, done, count);
  };
  scale(matrix.row_var,
        Adafactor::InverseRowMean(scalars, sum.Take(),
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

// The parameter's rows, those of all its matrices, read in order.
class AdafactorRows {
 public:
  HWY_INLINE explicit AdafactorRows(const TensorStepArgs& args)
      : args_(args), matrix_(MatrixOf(args, 0)) {}

  // Calls piece(begin, count, row_scale, col_scales) for each piece of a row
  // in the next `count` elements. `begin` is the piece's first element, from
  // the parameter's.
  template <class Piece>
  HWY_INLINE void Next(size_t count, const Piece& piece) {
    while (count > 0) {
      if (col_ == matrix_.cols) NextRow();
      const size_t here = std::min(count, matrix_.cols - col_);
      piece(at_, here, matrix_.row_scratch[row_], matrix_.col_scratch + col_);
      at_ += here;
      col_ += here;
      count -= here;
    }
  }

 private:
  HWY_INLINE void NextRow() {
    col_ = 0;
    if (++row_ < matrix_.rows) return;
    row_ = 0;
    matrix_ = MatrixOf(args_, ++batch_);
  }

  const TensorStepArgs& args_;
  AdafactorMatrix matrix_;
  size_t batch_ = 0;
  size_t row_ = 0;
  size_t col_ = 0;
  size_t at_ = 0;
};

// The second pass: calls updates(begin, count, to) for each tile, which stores
// u of its elements, and returns the step size that follows.
template <class Updates>
HWY_INLINE double AdafactorStepSize(const Adafactor::Scalars& scalars,
                                    const float* param, size_t numel,
                                    const Updates& updates) {
  TileSum param_squares;
  TileSum update_squares;
  float tile[kSquareTile];
  for (size_t begin = 0; begin < numel; begin += kSquareTile) {
    const size_t count = std::min(kSquareTile, numel - begin);
    updates(begin, count, tile);
    param_squares.Add(SumSquares(param + begin, count));
    update_squares.Add(SumSquares(tile, count));
  }
  return Adafactor::StepSize(scalars, param_squares.Take(),
                             update_squares.Take(),
                             static_cast<int64_t>(numel));
}

static HWY_NOINLINE void AdafactorStepMatrices(
    const Adafactor::Scalars& scalars, const TensorStepArgs& args,
    size_t numel) {
  const AdafactorVectors vectors(scalars);
  const AdafactorRest rest(scalars);
  const auto batches =
      static_cast<size_t>(Adafactor::MatricesOf(args.shape, args.ndim).batches);
  for (size_t b = 0; b < batches; ++b) {
    const AdafactorMatrix matrix = MatrixOf(args, b);
    AdafactorSums(matrix);
    AdafactorScales(scalars, matrix, vectors, rest);
  }
  AdafactorRows rows(args);
  const double step = AdafactorStepSize(
      scalars, args.param, numel,
      [&](size_t, size_t count, float* to) HWY_ATTR {
        rows.Next(count, [&](size_t begin, size_t here, float row,
                             const float* cols) HWY_ATTR {
          const float* const grad = args.grad + begin;
          const float* const next =
              args.param + std::min(begin + kAdafactorAhead, numel - here);
          const size_t done =
              vectors.Updates(grad, row, cols, next, to, 0, here);
          rest.Updates(grad, row, cols, next, to, done, here);
          to += here;
        });
      });
  AdafactorRows(args).Next(numel, [&](size_t begin, size_t count, float row,
                                      const float* cols) HWY_ATTR {
    const float* const grad = args.grad + begin;
    float* const param = args.param + begin;
    const size_t done = vectors.Apply(grad, row, cols, step, param, 0, count);
    rest.Apply(grad, row, cols, step, param, done, count);
  });
}

static HWY_NOINLINE void AdafactorStepElements(
    const Adafactor::Scalars& scalars, const TensorStepArgs& args,
    size_t numel) {
  const AdafactorVectors vectors(scalars);
  const AdafactorRest rest(scalars);
  float* const variance = args.states[Adafactor::kVariance];
  const double step = AdafactorStepSize(
      scalars, args.param, numel,
      [&](size_t begin, size_t count, float* to) HWY_ATTR {
        const float* const grad = args.grad + begin;
        const size_t done =
            vectors.AverageElements(grad, variance + begin, to, 0, count);
        rest.AverageElements(grad, variance + begin, to, done, count);
      });
  const size_t done =
      vectors.ApplyElements(args.grad, variance, step, args.param, 0, numel);
  rest.ApplyElements(args.grad, variance, step, args.param, done, numel);
}

HWY_INLINE void AdafactorStep(const Adafactor::Scalars& scalars,
                              const TensorStepArgs& args) {
  const auto numel = static_cast<size_t>(ShapeNumel(args.shape, args.ndim));
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
