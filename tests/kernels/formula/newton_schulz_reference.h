// SPDX-License-Identifier: Apache-2.0
//
// Muon's iteration with plain loops: in double, as written in
// kernels/formula/muon.h, and with the roundings of torch.optim.Muon, whose
// errors are a measure of those of other forms in bf16.

#ifndef SHARD_TESTS_KERNELS_FORMULA_NEWTON_SCHULZ_REFERENCE_H_
#define SHARD_TESTS_KERNELS_FORMULA_NEWTON_SCHULZ_REFERENCE_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace shard {

struct DoubleMatrix {
  size_t rows = 0;
  size_t cols = 0;
  std::vector<double> values;

  double& at(size_t i, size_t j) { return values[i * cols + j]; }
  double at(size_t i, size_t j) const { return values[i * cols + j]; }
};

template <typename T>
DoubleMatrix MatrixOf(const T* values, size_t rows, size_t cols) {
  return {rows, cols, {values, values + rows * cols}};
}

inline DoubleMatrix Transposed(const DoubleMatrix& a) {
  DoubleMatrix t{a.cols, a.rows, std::vector<double>(a.values.size())};
  for (size_t i = 0; i < a.rows; ++i) {
    for (size_t j = 0; j < a.cols; ++j) t.at(j, i) = a.at(i, j);
  }
  return t;
}

// Returns factor a b + term_factor term.
inline DoubleMatrix Product(double factor, const DoubleMatrix& a,
                            const DoubleMatrix& b, double term_factor,
                            const DoubleMatrix& term) {
  DoubleMatrix c{a.rows, b.cols, std::vector<double>(a.rows * b.cols)};
  for (size_t i = 0; i < a.rows; ++i) {
    for (size_t k = 0; k < a.cols; ++k) {
      for (size_t j = 0; j < b.cols; ++j) {
        c.at(i, j) += factor * a.at(i, k) * b.at(k, j);
      }
    }
  }
  for (size_t i = 0; i < term.values.size(); ++i) {
    c.values[i] += term_factor * term.values[i];
  }
  return c;
}

// Returns the Frobenius norm of the difference.
inline double Distance(const DoubleMatrix& a, const DoubleMatrix& b) {
  double squares = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    squares += (a.values[i] - b.values[i]) * (a.values[i] - b.values[i]);
  }
  return std::sqrt(squares);
}

inline DoubleMatrix NewtonSchulzReference(DoubleMatrix x, int steps,
                                          double eps) {
  const bool tall = x.rows > x.cols;
  if (tall) x = Transposed(x);
  double squares = 0;
  for (const double value : x.values) squares += value * value;
  const double norm = std::max(std::sqrt(squares), eps);
  for (double& value : x.values) value /= norm;
  for (int step = 0; step < steps; ++step) {
    const DoubleMatrix gram = Product(1, x, Transposed(x), 0, {});
    const DoubleMatrix update = Product(2.0315, gram, gram, -4.7750, gram);
    x = Product(1, update, x, 3.4445, x);
  }
  return tall ? Transposed(x) : x;
}

// Rounds to nearest even.
inline DoubleMatrix InBF16(DoubleMatrix matrix) {
  for (double& value : matrix.values) {
    const auto word = std::bit_cast<uint32_t>(static_cast<float>(value));
    value =
        std::bit_cast<float>((word + 0x7FFF + (word >> 16 & 1)) >> 16 << 16);
  }
  return matrix;
}

// Returns what torch.optim.Muon makes of a gradient: each matrix is rounded to
// bf16, the gradient and its norm included. The sums of a product are exact
// here and in fp32 there.
inline DoubleMatrix NewtonSchulzOfTorch(const DoubleMatrix& gradient, int steps,
                                        double eps) {
  DoubleMatrix x = InBF16(gradient);
  const bool tall = x.rows > x.cols;
  if (tall) x = Transposed(x);
  double squares = 0;
  for (const double value : x.values) squares += value * value;
  const double norm = InBF16({1, 1, {std::sqrt(squares)}}).values[0];
  for (double& value : x.values) value /= std::max(norm, eps);
  x = InBF16(std::move(x));
  for (int step = 0; step < steps; ++step) {
    const DoubleMatrix gram = InBF16(Product(1, x, Transposed(x), 0, {}));
    const DoubleMatrix update =
        InBF16(Product(2.0315, gram, gram, -4.7750, gram));
    x = InBF16(Product(1, update, x, 3.4445, x));
  }
  return tall ? Transposed(x) : x;
}

}  // namespace shard

#endif  // SHARD_TESTS_KERNELS_FORMULA_NEWTON_SCHULZ_REFERENCE_H_
