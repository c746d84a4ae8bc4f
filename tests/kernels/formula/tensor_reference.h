// SPDX-License-Identifier: Apache-2.0
//
// TensorReference<F>: a tensor formula in double, over a whole parameter, for
// tests to compare the kernels with. The rules are the formula's own; norms and
// means are plain loops. Include before any Highway header: see
// kernels/formula/target.h.

#ifndef SHARD_TESTS_KERNELS_FORMULA_TENSOR_REFERENCE_H_
#define SHARD_TESTS_KERNELS_FORMULA_TENSOR_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/formula/all.h"
#include "tests/kernels/formula/newton_schulz_reference.h"
#include "tests/kernels/formula/reference.h"

namespace shard {

// The members that the references share: the parameter, and the states, which
// start at 0.
template <class F>
class TensorReferenceBase {
 public:
  TensorReferenceBase(std::vector<int64_t> shape,
                      const std::vector<float>& param,
                      std::vector<double> hypers)
      : shape_(std::move(shape)),
        param_(param.begin(), param.end()),
        hypers_(std::move(hypers)) {
    for (int s = 0; s < F::kNumStates; ++s) {
      states_.emplace_back(
          static_cast<size_t>(F::StateNumel(s, shape_.data(), ndim())));
    }
  }

  const std::vector<double>& param() const { return param_; }
  const std::vector<double>& state(size_t s) const { return states_[s]; }

 protected:
  int ndim() const { return static_cast<int>(shape_.size()); }

  static double Squares(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return sum;
  }

  std::vector<int64_t> shape_;
  std::vector<double> param_;
  std::vector<std::vector<double>> states_;
  std::vector<double> hypers_;
};

template <class F>
class TensorReference;

template <>
class TensorReference<Lamb> : public TensorReferenceBase<Lamb> {
 public:
  using TensorReferenceBase::TensorReferenceBase;

  void Step(const std::vector<float>& grad, int64_t step) {
    const auto scalars = Lamb::Prepare(hypers_.data(), step);
    const formula::LambRule<DoubleArithmetic> rule(DoubleArithmetic(), scalars);
    std::vector<double> update(param_.size());
    for (size_t i = 0; i < param_.size(); ++i) {
      double states[] = {states_[0][i], states_[1][i]};
      const double g = scalars.gradient_sign * static_cast<double>(grad[i]);
      update[i] = rule.Update(g, param_[i], states);
      states_[0][i] = states[0];
      states_[1][i] = states[1];
    }
    const double step_size =
        Lamb::StepSize(scalars, Squares(param_), Squares(update));
    for (size_t i = 0; i < param_.size(); ++i) {
      param_[i] = rule.Apply(param_[i], update[i], step_size);
    }
  }
};

template <>
class TensorReference<Adafactor> : public TensorReferenceBase<Adafactor> {
 public:
  using TensorReferenceBase::TensorReferenceBase;

  void Step(const std::vector<float>& grad, int64_t step) {
    if (param_.empty()) return;
    const auto scalars = Adafactor::Prepare(hypers_.data(), step);
    const Rule rule(DoubleArithmetic(), scalars);
    const std::vector<double> scale = ndim() < 2
                                          ? ElementScales(rule, grad)
                                          : MatrixScales(rule, scalars, grad);
    std::vector<double> update(param_.size());
    for (size_t i = 0; i < param_.size(); ++i) {
      update[i] = rule.Update(static_cast<double>(grad[i]), scale[i]);
    }
    const double step_size =
        Adafactor::StepSize(scalars, Squares(param_), Squares(update),
                            static_cast<int64_t>(param_.size()));
    for (size_t i = 0; i < param_.size(); ++i) {
      param_[i] = rule.Apply(param_[i], update[i], step_size);
    }
  }

 private:
  using Rule = formula::AdafactorRule<DoubleArithmetic>;

  std::vector<double> ElementScales(const Rule& rule,
                                    const std::vector<float>& grad) {
    std::vector<double> scale;
    for (size_t i = 0; i < param_.size(); ++i) {
      const auto g = static_cast<double>(grad[i]);
      double& variance = states_[Adafactor::kVariance][i];
      variance = rule.Average(variance, g * g);
      scale.push_back(rule.Scale(variance));
    }
    return scale;
  }

  std::vector<double> MatrixScales(const Rule& rule,
                                   const Adafactor::Scalars& scalars,
                                   const std::vector<float>& grad) {
    const auto all = Adafactor::MatricesOf(shape_.data(), ndim());
    const auto rows = static_cast<size_t>(all.rows);
    const auto cols = static_cast<size_t>(all.cols);
    std::vector<double> scale;
    for (size_t b = 0; b < static_cast<size_t>(all.batches); ++b) {
      double* const row_var = &states_[Adafactor::kRowVar][b * rows];
      double* const col_var = &states_[Adafactor::kColVar][b * cols];
      std::vector<double> row_sums(rows);
      std::vector<double> col_sums(cols);
      for (size_t i = 0; i < rows * cols; ++i) {
        const auto g = static_cast<double>(grad[b * rows * cols + i]);
        row_sums[i / cols] += g * g;
        col_sums[i % cols] += g * g;
      }
      double sum = 0;
      for (size_t i = 0; i < rows; ++i) {
        row_var[i] =
            rule.Average(row_var[i], row_sums[i] / static_cast<double>(cols));
        sum += row_var[i];
      }
      for (size_t j = 0; j < cols; ++j) {
        col_var[j] =
            rule.Average(col_var[j], col_sums[j] / static_cast<double>(rows));
      }
      const double inverse = Adafactor::InverseRowMean(scalars, sum, all.rows);
      for (size_t i = 0; i < rows * cols; ++i) {
        scale.push_back(rule.RowScale(row_var[i / cols], inverse) *
                        rule.Scale(col_var[i % cols]));
      }
    }
    return scale;
  }
};

template <>
class TensorReference<Muon> : public TensorReferenceBase<Muon> {
 public:
  using TensorReferenceBase::TensorReferenceBase;

  void Step(const std::vector<float>& grad, int64_t) {
    const DoubleArithmetic arithmetic;
    const formula::MuonMomentumRule<DoubleArithmetic> momentum(
        arithmetic, Muon::Prepare(hypers_.data(), 1).momentum);
    DoubleMatrix direction = {static_cast<size_t>(shape_[0]),
                              static_cast<size_t>(shape_[1]), param_};
    for (size_t i = 0; i < param_.size(); ++i) {
      direction.values[i] =
          momentum.Direction(static_cast<double>(grad[i]), states_[0][i]);
    }
    direction = NewtonSchulzReference(std::move(direction),
                                      static_cast<int>(hypers_[Muon::kNsSteps]),
                                      hypers_[Muon::kEps]);
    const formula::MuonApplyRule<DoubleArithmetic> apply(
        arithmetic,
        Muon::ApplyTo(Muon::Prepare(hypers_.data(), 1), shape_[0], shape_[1]));
    for (size_t i = 0; i < param_.size(); ++i) {
      apply.Update(direction.values[i], param_[i]);
    }
  }
};

}  // namespace shard

#endif  // SHARD_TESTS_KERNELS_FORMULA_TENSOR_REFERENCE_H_
