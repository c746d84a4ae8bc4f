// SPDX-License-Identifier: Apache-2.0
//
// Muon in double and with plain loops, as kernels/formula/muon.h writes it out;
// singular values, to see what it does; and what the kernels need to run.

#ifndef SHARD_TESTS_KERNELS_CPU_MUON_REFERENCE_H_
#define SHARD_TESTS_KERNELS_CPU_MUON_REFERENCE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cpu/newton_schulz.h"
#include "kernels/formula/muon.h"
#include "tests/kernels/formula/reference.h"

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

// factor a b + term_factor term.
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

// A parameter and its momentum buffer.
class MuonReference {
 public:
  MuonReference(const std::vector<float>& param, size_t rows, size_t cols,
                std::vector<double> hypers)
      : param_(MatrixOf(param.data(), rows, cols)),
        momentum_buffer_(param.size()),
        hypers_(std::move(hypers)) {}

  void Step(const std::vector<float>& gradient, double scale) {
    const DoubleArithmetic arithmetic;
    const formula::MuonMomentumRule<DoubleArithmetic> momentum(
        arithmetic, Muon::PrepareMomentum(hypers_.data()));
    DoubleMatrix direction = param_;
    for (size_t i = 0; i < gradient.size(); ++i) {
      direction.values[i] = momentum.Direction(
          static_cast<double>(gradient[i]) * scale, momentum_buffer_[i]);
    }
    direction = NewtonSchulzReference(direction,
                                      static_cast<int>(hypers_[Muon::kNsSteps]),
                                      hypers_[Muon::kEps]);
    const formula::MuonApplyRule<DoubleArithmetic> apply(
        arithmetic,
        Muon::PrepareApply(hypers_.data(), static_cast<int64_t>(param_.rows),
                           static_cast<int64_t>(param_.cols)));
    for (size_t i = 0; i < gradient.size(); ++i) {
      apply.Update(direction.values[i], param_.values[i]);
    }
  }

  const std::vector<double>& param() const { return param_.values; }
  const std::vector<double>& momentum_buffer() const {
    return momentum_buffer_;
  }

 private:
  DoubleMatrix param_;
  std::vector<double> momentum_buffer_;
  std::vector<double> hypers_;
};

// By one-sided Jacobi rotations: rows are turned in pairs until each is
// orthogonal to all others; their lengths are the singular values then.
inline std::vector<double> SingularValues(DoubleMatrix a) {
  if (a.rows > a.cols) a = Transposed(a);
  const auto dot = [&a](size_t p, size_t q) {
    double sum = 0;
    for (size_t j = 0; j < a.cols; ++j) sum += a.at(p, j) * a.at(q, j);
    return sum;
  };
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (size_t p = 0; p < a.rows; ++p) {
      for (size_t q = p + 1; q < a.rows; ++q) {
        const double angle =
            std::atan2(2 * dot(p, q), dot(p, p) - dot(q, q)) / 2;
        const double c = std::cos(angle);
        const double s = std::sin(angle);
        for (size_t j = 0; j < a.cols; ++j) {
          const double x = a.at(p, j);
          const double y = a.at(q, j);
          a.at(p, j) = c * x + s * y;
          a.at(q, j) = c * y - s * x;
        }
      }
    }
  }
  std::vector<double> values;
  for (size_t p = 0; p < a.rows; ++p) values.push_back(std::sqrt(dot(p, p)));
  return values;
}

inline std::vector<float> RandomFloats(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// For Orthogonalize: `size` elements that are not a number, and one more that
// must stay as it is.
class GuardedWorkspace {
 public:
  explicit GuardedWorkspace(size_t size)
      : elements_(size + kWorkspaceAlignment / sizeof(float),
                  std::numeric_limits<float>::quiet_NaN()),
        guard_(data() + size) {
    *guard_ = 17;
  }
  ~GuardedWorkspace() { EXPECT_EQ(*guard_, 17); }

  float* data() {
    void* first = elements_.data();
    size_t bytes = elements_.size() * sizeof(float);
    return static_cast<float*>(std::align(
        kWorkspaceAlignment, bytes - kWorkspaceAlignment, first, bytes));
  }

 private:
  std::vector<float> elements_;
  float* guard_;
};

}  // namespace shard

#endif  // SHARD_TESTS_KERNELS_CPU_MUON_REFERENCE_H_
