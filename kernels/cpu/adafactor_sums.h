// SPDX-License-Identifier: Apache-2.0
//
// AdafactorSums: the sums of squares of a matrix's rows and columns, the first
// of Adafactor's passes; see tensor_step.h.
//
// Compiled once per SIMD target, like the .cc that includes it; the include
// guard admits it once per target.

#if defined(SHARD_KERNELS_CPU_ADAFACTOR_SUMS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_ADAFACTOR_SUMS_H_
#undef SHARD_KERNELS_CPU_ADAFACTOR_SUMS_H_
#else
#define SHARD_KERNELS_CPU_ADAFACTOR_SUMS_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/cpu/square_sum.h"
#include "kernels/formula/all.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

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

// The columns whose sums are kept at the same time: 8 KiB of doubles, which
// stay in the first level cache while rows are read in pieces of a page.
inline constexpr size_t kAdafactorStrip = Adafactor::kStrip;
static_assert(kAdafactorStrip % kSquareTile == 0);

// The rows that are read together, so that a column's sum is read and written
// once for all of them.
inline constexpr size_t kAdafactorRows = 4;
inline constexpr size_t kAdafactorBlock = Adafactor::kRowBlock;
static_assert(kAdafactorBlock % kAdafactorRows == 0);

// The squares of kAdafactorRows rows in kSize columns: their sums over the
// columns, in the order of SumSquares, and over the rows. The rows that come
// next are prefetched meanwhile, because pieces of rows are too short for the
// processor to predict.
template <size_t kSize>
class AdafactorTile {
 public:
  HWY_INLINE AdafactorTile(const float* const* rows, const float* const* next,
                           double* col_sums)
      : row0_(rows[0]),
        row1_(rows[1]),
        row2_(rows[2]),
        row3_(rows[3]),
        next_(next),
        col_sums_(col_sums) {}

  // Adds the sums of rows to row_sums, and those of columns to col_sums.
  HWY_INLINE void AddTo(double* row_sums) const {
    const Sums sums = SumStrided<kTileVector, 0>(0);
    row_sums[0] += SumOfVector(TileDoubles(), sums.row0);
    row_sums[1] += SumOfVector(TileDoubles(), sums.row1);
    row_sums[2] += SumOfVector(TileDoubles(), sums.row2);
    row_sums[3] += SumOfVector(TileDoubles(), sums.row3);
  }

 private:
  static_assert(kAdafactorRows == 4, "as many are spelled out");
  using V = hn::Vec<TileDoubles>;
  struct Sums {
    V row0, row1, row2, row3;
  };

  // Returns the sums of the vectors from column j on, kStride apart, after
  // kDone vectors.
  template <size_t kStride, size_t kDone>
  HWY_INLINE Sums SumStrided(size_t j) const {
    if constexpr (kStride == kSize) {
      return Squares(j);
    } else if constexpr (2 * kStride == kSize) {
      for (size_t r = 0; r < kAdafactorRows; ++r) {
        hwy::Prefetch(next_[r] + kDone * kTileVector);
      }
      return SquaresOfPair(j, j + kStride);
    } else {
      constexpr size_t kHalf = kSize / kStride / 2;
      const Sums a = SumStrided<2 * kStride, kDone>(j);
      const Sums b = SumStrided<2 * kStride, kDone + kHalf>(j + kStride);
      return {hn::Add(a.row0, b.row0), hn::Add(a.row1, b.row1),
              hn::Add(a.row2, b.row2), hn::Add(a.row3, b.row3)};
    }
  }

  HWY_INLINE Sums Squares(size_t j) const {
    const Sums s = {Square(row0_ + j), Square(row1_ + j), Square(row2_ + j),
                    Square(row3_ + j)};
    AddToCols(j, hn::Add(hn::Add(s.row0, s.row1), hn::Add(s.row2, s.row3)));
    return s;
  }

  // Returns the sums of two vectors of each row.
  HWY_INLINE Sums SquaresOfPair(size_t j, size_t k) const {
    const Sums s = Squares(j);
    const V x0 = Load(row0_ + k);
    const V x1 = Load(row1_ + k);
    const V x2 = Load(row2_ + k);
    const V x3 = Load(row3_ + k);
    AddToCols(k, hn::Add(hn::MulAdd(x1, x1, hn::Mul(x0, x0)),
                         hn::MulAdd(x3, x3, hn::Mul(x2, x2))));
    return {hn::MulAdd(x0, x0, s.row0), hn::MulAdd(x1, x1, s.row1),
            hn::MulAdd(x2, x2, s.row2), hn::MulAdd(x3, x3, s.row3)};
  }

  HWY_INLINE void AddToCols(size_t j, V sum) const {
    hn::StoreU(hn::Add(hn::LoadU(TileDoubles(), col_sums_ + j), sum),
               TileDoubles(), col_sums_ + j);
  }

  HWY_INLINE V Square(const float* x) const {
    const V wide = Load(x);
    return hn::Mul(wide, wide);
  }
  HWY_INLINE V Load(const float* x) const {
    return hn::PromoteTo(TileDoubles(), hn::LoadU(TileFloats(), x));
  }

  const float* row0_;
  const float* row1_;
  const float* row2_;
  const float* row3_;
  const float* const* next_;
  double* col_sums_;
};

// Does the work of AdafactorTile, in loops and without prefetches, for the
// target whose vectors have one lane: there an operation for each element takes
// longer to compile than all that other targets have.
template <size_t kSize>
HWY_INLINE void AddAdafactorSquares(const float* const* rows, double* row_sums,
                                    double* col_sums) {
  double squares[kAdafactorRows][kSize];
  for (size_t r = 0; r < kAdafactorRows; ++r) {
    for (size_t j = 0; j < kSize; ++j) {
      const double x = rows[r][j];
      squares[r][j] = x * x;
    }
  }
  for (size_t j = 0; j < kSize; ++j) {
    col_sums[j] +=
        (squares[0][j] + squares[1][j]) + (squares[2][j] + squares[3][j]);
  }
  for (size_t r = 0; r < kAdafactorRows; ++r) {
    row_sums[r] += SumOfHalves(squares[r], kSize);
  }
}

// Adds the squares of the first `count` columns of rows, at most kSize.
template <size_t kSize>
HWY_INLINE void AddAdafactorTile(const float* const* rows,
                                 [[maybe_unused]] const float* const* next,
                                 size_t count, double* row_sums,
                                 double* col_sums) {
  // The tile's code, in which no loop is left, is there once for both.
  float filled[kAdafactorRows][kSize];
  const float* all[kAdafactorRows];
  for (size_t r = 0; r < kAdafactorRows; ++r) {
    all[r] = rows[r];
    if (count == kSize) continue;
    std::fill(std::copy_n(rows[r], count, filled[r]), filled[r] + kSize, 0.0f);
    all[r] = filled[r];
  }
#if HWY_TARGET == HWY_SCALAR
  AddAdafactorSquares<kSize>(all, row_sums, col_sums);
#else
  AdafactorTile<kSize>(all, next, col_sums).AddTo(row_sums);
#endif
}

// Adds the squares of `width` elements of each of the rows, at most a strip, to
// row_sums and col_sums; the latter has room for whole tiles. The next rows are
// `ahead` elements further on.
HWY_INLINE void AdafactorSumRows(const float* const* rows, size_t width,
                                 size_t ahead, double* row_sums,
                                 double* col_sums) {
  for (size_t begin = 0; begin < width; begin += kSquareTile) {
    const size_t count = std::min(kSquareTile, width - begin);
    const float* tile[kAdafactorRows];
    const float* next[kAdafactorRows];
    for (size_t r = 0; r < kAdafactorRows; ++r) {
      tile[r] = rows[r] + begin;
      next[r] = tile[r] + ahead;
    }
    double* const cols = col_sums + begin;
    // The zeros that fill a tile do not change sums, so that there are no more
    // of them than a power of 2 needs.
    if (count > 128) {
      AddAdafactorTile<256>(tile, next, count, row_sums, cols);
    } else if (count > 64) {
      AddAdafactorTile<128>(tile, next, count, row_sums, cols);
    } else if (count > 32) {
      AddAdafactorTile<64>(tile, next, count, row_sums, cols);
    } else if (count > 8) {
      AddAdafactorTile<32>(tile, next, count, row_sums, cols);
    } else {
      AddAdafactorTile<8>(tile, next, count, row_sums, cols);
    }
  }
}

// The first pass: stores the sums of squares of rows and columns in the
// scratch.
static HWY_NOINLINE void AdafactorSums(const AdafactorMatrix& matrix) {
  // Replaces the rows that are missing in the last group.
  const float zeros[kAdafactorStrip] = {};
  double col_sums[kAdafactorStrip];
  double block_sums[kAdafactorStrip];
  for (size_t begin = 0; begin < matrix.cols; begin += kAdafactorStrip) {
    const size_t width = std::min(kAdafactorStrip, matrix.cols - begin);
    std::fill_n(col_sums, width, 0.0);
    const size_t whole = hwy::RoundUpTo(width, kSquareTile);
    for (size_t i = 0; i < matrix.rows; i += kAdafactorRows) {
      if (i % kAdafactorBlock == 0) std::fill_n(block_sums, whole, 0.0);
      const size_t present = std::min(kAdafactorRows, matrix.rows - i);
      const float* rows[kAdafactorRows];
      for (size_t r = 0; r < kAdafactorRows; ++r) {
        rows[r] =
            r < present ? matrix.grad + (i + r) * matrix.cols + begin : zeros;
      }
      double row_sums[kAdafactorRows] = {};
      const bool more = i + 2 * kAdafactorRows <= matrix.rows;
      const size_t ahead = more ? kAdafactorRows * matrix.cols : 0;
      AdafactorSumRows(rows, width, ahead, row_sums, block_sums);
      for (size_t r = 0; r < present; ++r) {
        const auto sum = static_cast<float>(row_sums[r]);
        float& total = matrix.row_scratch[i + r];
        total = begin == 0 ? sum : total + sum;
      }
      const size_t end = i + kAdafactorRows;
      if (end % kAdafactorBlock != 0 && end < matrix.rows) continue;
      for (size_t j = 0; j < width; ++j) col_sums[j] += block_sums[j];
    }
    for (size_t j = 0; j < width; ++j) {
      matrix.col_scratch[begin + j] = static_cast<float>(col_sums[j]);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_ADAFACTOR_SUMS_H_
