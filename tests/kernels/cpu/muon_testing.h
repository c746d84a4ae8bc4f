// SPDX-License-Identifier: Apache-2.0
//
// Computes singular values, to check the effect of Newton-Schulz, and has the
// BLAS and the workspace that the kernels need.

#ifndef SHARD_TESTS_KERNELS_CPU_MUON_TESTING_H_
#define SHARD_TESTS_KERNELS_CPU_MUON_TESTING_H_

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
#include "tests/kernels/formula/newton_schulz_reference.h"

namespace shard {

// Computes singular values by one-sided Jacobi rotations: pairs of rows are
// rotated until each row is orthogonal to all others; the lengths of the rows
// are then the singular values.
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

// A workspace for Orthogonalize: `size` elements that are NaN, and one more
// that must not change.
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

#endif  // SHARD_TESTS_KERNELS_CPU_MUON_TESTING_H_
