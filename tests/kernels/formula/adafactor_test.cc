// SPDX-License-Identifier: Apache-2.0
//
// Adafactor compared with torch.optim.Adafactor's sequence of operations (2.5
// and later, single tensor), which is written out once more without the
// formula: torch's lerp, clamps and norms, in its order. Other cases are worked
// out by hand.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/formula/all.h"
#include "tests/kernels/formula/tensor_reference.h"

namespace shard::adafactor_test {
namespace {

using AdafactorReference = TensorReference<Adafactor>;

struct TorchOptions {
  double lr = 1e-2;
  double beta2_decay = -0.8;
  double eps1 = std::numeric_limits<float>::epsilon();
  double eps2 = 1e-3;
  double d = 1;
  double weight_decay = 0;
  bool maximize = false;
};

double Norm(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

double Lerp(double start, double end, double weight) {
  return weight < 0.5 ? start + weight * (end - start)
                      : end - (end - start) * (1 - weight);
}

// A parameter of shape {batches, rows, cols}, or of fewer than 2 dimensions if
// rows is 0, as torch steps it.
class Torch {
 public:
  Torch(size_t batches, size_t rows, size_t cols, std::vector<double> param,
        const TorchOptions& options)
      : batches_(batches),
        rows_(rows),
        cols_(cols),
        param_(std::move(param)),
        row_var_(batches * rows),
        col_var_(rows == 0 ? 0 : batches * cols),
        variance_(rows == 0 ? param_.size() : 0),
        o_(options) {}

  void Step(const std::vector<float>& gradient) {
    std::vector<double> grad(gradient.begin(), gradient.end());
    if (o_.maximize) {
      for (double& g : grad) g = -g;
    }
    const double numel = static_cast<double>(param_.size());
    step_ += 1;
    const double one_minus_beta2_t = std::pow(step_, o_.beta2_decay);
    const double rho_t = std::min(o_.lr, 1 / std::sqrt(step_));
    const double alpha =
        std::max(o_.eps2, Norm(param_) / std::sqrt(numel)) * rho_t;
    if (o_.weight_decay != 0) {
      for (double& p : param_) p *= 1 - o_.lr * o_.weight_decay;
    }
    std::vector<double> update = rows_ == 0
                                     ? VectorEstimate(grad, one_minus_beta2_t)
                                     : MatrixEstimate(grad, one_minus_beta2_t);
    for (size_t i = 0; i < update.size(); ++i) {
      update[i] = grad[i] / std::sqrt(std::max(update[i], o_.eps1 * o_.eps1));
    }
    const double denom =
        std::max(1.0, Norm(update) / (std::sqrt(numel) * o_.d));
    for (size_t i = 0; i < update.size(); ++i) {
      param_[i] += -alpha / denom * update[i];
    }
  }

  const std::vector<double>& param() const { return param_; }
  const std::vector<double>& row_var() const { return row_var_; }
  const std::vector<double>& col_var() const { return col_var_; }
  const std::vector<double>& variance() const { return variance_; }

 private:
  std::vector<double> VectorEstimate(const std::vector<double>& grad,
                                     double weight) {
    for (size_t i = 0; i < grad.size(); ++i) {
      variance_[i] = Lerp(variance_[i], grad[i] * grad[i], weight);
    }
    return variance_;
  }

  std::vector<double> MatrixEstimate(const std::vector<double>& grad,
                                     double weight) {
    std::vector<double> estimate;
    for (size_t b = 0; b < batches_; ++b) {
      const double* const g = grad.data() + b * rows_ * cols_;
      double* const row_var = row_var_.data() + b * rows_;
      double* const col_var = col_var_.data() + b * cols_;
      double mean = 0;
      for (size_t i = 0; i < rows_; ++i) {
        std::vector<double> row(g + i * cols_, g + (i + 1) * cols_);
        const double norm = Norm(row);
        row_var[i] =
            Lerp(row_var[i], norm * norm / static_cast<double>(cols_), weight);
        mean += row_var[i] / static_cast<double>(rows_);
      }
      for (size_t j = 0; j < cols_; ++j) {
        std::vector<double> col;
        for (size_t i = 0; i < rows_; ++i) col.push_back(g[i * cols_ + j]);
        const double norm = Norm(col);
        col_var[j] =
            Lerp(col_var[j], norm * norm / static_cast<double>(rows_), weight);
      }
      for (size_t i = 0; i < rows_; ++i) {
        for (size_t j = 0; j < cols_; ++j) {
          estimate.push_back(row_var[i] * col_var[j] / std::max(mean, o_.eps1));
        }
      }
    }
    return estimate;
  }

  size_t batches_;
  size_t rows_;
  size_t cols_;
  std::vector<double> param_;
  std::vector<double> row_var_;
  std::vector<double> col_var_;
  std::vector<double> variance_;
  double step_ = 0;
  TorchOptions o_;
};

void ExpectNear(const std::vector<double>& actual,
                const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 1e-12 * std::abs(expected[i]))
        << "element " << i;
  }
}

// Returns gradients with exact zeros, whole rows of them too, 1e-12 and 1e4
// among them.
std::vector<float> Gradient(size_t count, int64_t step) {
  std::mt19937 generator(static_cast<uint32_t>(step));
  std::normal_distribution<float> normal;
  std::vector<float> grad(count);
  for (size_t i = 0; i < count; ++i) {
    grad[i] = normal(generator);
    if (i % 5 == 1 || (i < 8 && step < 4)) grad[i] = 0;
    if (i % 7 == 2) grad[i] = 1e-12f;
    if (i % 11 == 3 && step % 3 == 0) grad[i] = -1e4f;
    if (step == 6) grad[i] = 0;
    // All of this gradient is far below eps1.
    if (step > 8) grad[i] *= 1e-16f;
  }
  return grad;
}

void ExpectAsTorch(const std::vector<int64_t>& shape,
                   const TorchOptions& options) {
  const auto ndim = static_cast<int>(shape.size());
  const auto numel = static_cast<size_t>(ShapeNumel(shape.data(), ndim));
  std::mt19937 generator(7);
  std::normal_distribution<float> normal(0, 0.1f);
  std::vector<float> start(numel);
  for (float& p : start) p = normal(generator);
  Adafactor::Matrices m = {1, 0, 0};
  if (ndim >= 2) m = Adafactor::MatricesOf(shape.data(), ndim);
  Torch torch(static_cast<size_t>(m.batches), static_cast<size_t>(m.rows),
              static_cast<size_t>(m.cols), {start.begin(), start.end()},
              options);
  AdafactorReference ours(
      shape, start,
      HypersOf<Adafactor>({{"lr", options.lr},
                           {"beta2_decay", options.beta2_decay},
                           {"eps1", options.eps1},
                           {"eps2", options.eps2},
                           {"d", options.d},
                           {"weight_decay", options.weight_decay},
                           {"maximize", options.maximize ? 1.0 : 0.0}}));
  for (int64_t step = 1; step <= 12; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const std::vector<float> grad = Gradient(numel, step);
    torch.Step(grad);
    ours.Step(grad, step);
    ExpectNear(ours.param(), torch.param());
    ExpectNear(ours.state(Adafactor::kRowVar), torch.row_var());
    ExpectNear(ours.state(Adafactor::kColVar), torch.col_var());
    ExpectNear(ours.state(Adafactor::kVariance), torch.variance());
  }
}

TEST(AdafactorTest, AsTorch) {
  std::vector<TorchOptions> choices(6);
  choices[1].maximize = true;
  choices[1].weight_decay = 0.1;
  choices[2].lr = 0.9;  // Above 1 / sqrt(t) from step 2 on.
  choices[2].weight_decay = 0.1;
  choices[2].d = 1.5;
  choices[3].beta2_decay = 0;  // States have no memory.
  choices[4].beta2_decay = -0.3;
  choices[4].eps1 = 1e-3;
  choices[5].eps2 = 0.5;  // Above rms(p).
  for (size_t i = 0; i < choices.size(); ++i) {
    SCOPED_TRACE("choice " + std::to_string(i));
    ExpectAsTorch({}, choices[i]);
    ExpectAsTorch({9}, choices[i]);
    ExpectAsTorch({5, 4}, choices[i]);
    ExpectAsTorch({1, 9}, choices[i]);
    ExpectAsTorch({9, 1}, choices[i]);
    ExpectAsTorch({3, 4, 5}, choices[i]);
    ExpectAsTorch({2, 3, 4, 2}, choices[i]);
  }
}

TEST(AdafactorTest, ByHand) {
  // Step 1 has w = 1: the states are the means of the squares. rms(p) = 2.
  AdafactorReference matrix({2, 2}, {2.0f, -2.0f, 2.0f, 2.0f},
                            HypersOf<Adafactor>({{"lr", 0.5}}));
  matrix.Step({1.0f, 7.0f, 3.0f, 1.0f}, 1);
  EXPECT_DOUBLE_EQ(matrix.state(Adafactor::kRowVar)[0], 25);
  EXPECT_DOUBLE_EQ(matrix.state(Adafactor::kRowVar)[1], 5);
  EXPECT_DOUBLE_EQ(matrix.state(Adafactor::kColVar)[0], 5);
  EXPECT_DOUBLE_EQ(matrix.state(Adafactor::kColVar)[1], 25);
  EXPECT_TRUE(matrix.state(Adafactor::kVariance).empty());
  // x = 25 5, 25 25, 5 5, 5 25, each / 15.
  const double u[] = {std::sqrt(15.0 / 125), 7 * std::sqrt(15.0 / 625),
                      3 * std::sqrt(15.0 / 25), std::sqrt(15.0 / 125)};
  // Squares 0.12 + 1.176 + 5.4 + 0.12: rms above d = 1.
  const double step_size = -2 * 0.5 / std::sqrt(6.816 / 4);
  const double p[] = {2, -2, 2, 2};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(matrix.param()[i], p[i] + step_size * u[i], 1e-14);
  }
}

TEST(AdafactorTest, ByHandWithoutRows) {
  AdafactorReference scalar({}, {1e-4f},
                            HypersOf<Adafactor>({{"weight_decay", 0.5}}));
  // u = sign(g); |p| is below eps2: 1e-4 (1 - 0.01 0.5) - 1e-3 0.01.
  scalar.Step({-3.0f}, 1);
  EXPECT_DOUBLE_EQ(scalar.state(Adafactor::kVariance)[0], 9);
  EXPECT_TRUE(scalar.state(Adafactor::kRowVar).empty());
  EXPECT_NEAR(scalar.param()[0], 1e-4 * 0.995 + 1e-5, 1e-11);
  // w = 2^-0.8.
  scalar.Step({1.0f}, 2);
  EXPECT_DOUBLE_EQ(scalar.state(Adafactor::kVariance)[0],
                   9 - 8 * std::pow(2, -0.8));
}

// The square of eps1 is too small for a float: torch's bound of 0 would make
// these 0 / 0.
TEST(AdafactorTest, TheLeastEps1StaysFinite) {
  for (const double eps1 : {0.0, 1e-30}) {
    const auto scalars =
        Adafactor::Prepare(HypersOf<Adafactor>({{"eps1", eps1}}).data(), 1);
    const double greatest = std::numeric_limits<float>::max();
    EXPECT_LT(scalars.greatest_scale, greatest);
    EXPECT_LT(Adafactor::InverseRowMean(scalars, 0, 3), greatest);
    AdafactorReference matrix({2, 2}, {1.0f, 1.0f, 1.0f, 1.0f},
                              HypersOf<Adafactor>({{"eps1", eps1}}));
    matrix.Step({0.0f, 0.0f, 0.0f, 0.0f}, 1);
    for (const double p : matrix.param()) EXPECT_EQ(p, 1);
  }
}

}  // namespace
}  // namespace shard::adafactor_test
