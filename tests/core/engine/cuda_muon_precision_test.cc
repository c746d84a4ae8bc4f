// SPDX-License-Identifier: Apache-2.0
//
// How precise Muon's products are on the device cuda, over the fakes of the
// driver and of cuBLASLt: each matmul_precision beside Newton-Schulz in double,
// and bf16 beside torch.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "kernels/formula/muon.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/training.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"
#include "tests/kernels/formula/newton_schulz_reference.h"

namespace shard::cuda_muon_precision_test {
namespace {

using cuda_training::Form;
using cuda_training::MakeEngine;
using cuda_training::MakePlan;
using cuda_training::OpenLocal;
using cuda_training::ReadParam;

using CudaMuonPrecisionTest = testing::FakeCudaTest;

// A step makes the parameter the orthogonal matrix of the gradient: the
// parameter was 0, and there are no momentum, no decay and no other factor.
constexpr char kPlain[] = "muon?lr=1&weight_decay=0&momentum=0&nesterov=0";

// Returns what an engine makes of a gradient.
DoubleMatrix Orthogonalized(const DoubleMatrix& gradient, int precision) {
  const Form form = {
      .optimizer =
          StrCat(kPlain, "&matmul_precision=", Muon::kPrecisions[precision]),
      .shapes = {{static_cast<int64_t>(gradient.rows),
                  static_cast<int64_t>(gradient.cols)}}};
  const auto engine = MakeEngine(MakePlan(form), OpenLocal());
  EXPECT_OK(engine);
  std::vector<float> values(gradient.values.size());
  EXPECT_OK(
      (*engine)->SetParam(0, values.data(), values.size() * sizeof(values[0])));
  EXPECT_OK((*engine)->BroadcastParams(0));
  EXPECT_OK((*engine)->UnitAcquire(0, Pass::kBackward, 0));
  EXPECT_OK((*engine)->UnitAcquire(1, Pass::kBackward, 0));
  const auto grad = (*engine)->Grad(0);
  EXPECT_OK(grad);
  EXPECT_OK((*engine)->Synchronize(0));
  for (size_t i = 0; i < values.size(); ++i) {
    static_cast<float*>(grad->data)[i] = static_cast<float>(gradient.values[i]);
  }
  for (const int32_t unit : {1, 0}) {
    EXPECT_OK((*engine)->MarkUnitGradsReady(unit));
    EXPECT_OK((*engine)->UnitRelease(unit));
  }
  EXPECT_OK((*engine)->Step(StepOptions(), nullptr));
  const auto param = ReadParam(engine->get());
  EXPECT_OK(param);
  DoubleMatrix made = MatrixOf(param->data(), gradient.rows, gradient.cols);
  const double adjustment =
      Muon::AdjustmentOf(Muon::kOriginal, form.shapes[0][0], form.shapes[0][1]);
  for (double& value : made.values) value /= -adjustment;
  return made;
}

DoubleMatrix GradientOf(size_t rows, size_t cols, int seed = 1) {
  DoubleMatrix gradient{rows, cols, std::vector<double>(rows * cols)};
  for (size_t i = 0; i < gradient.values.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    gradient.values[i] = GradientValue(seed, static_cast<int>(cols), index) *
                         std::sin(static_cast<double>(index * index % 1009));
    gradient.values[i] = static_cast<float>(gradient.values[i]);
  }
  return gradient;
}

constexpr std::array<std::pair<size_t, size_t>, 6> kShapes = {
    {{1, 40}, {32, 32}, {48, 80}, {80, 48}, {64, 64}, {20, 300}}};

TEST_F(CudaMuonPrecisionTest, EachPrecisionIsAsPreciseAsItsProducts) {
  for (const auto& [rows, cols] : kShapes) {
    SCOPED_TRACE(StrCat(rows, " x ", cols));
    const DoubleMatrix gradient = GradientOf(rows, cols);
    const DoubleMatrix expected = NewtonSchulzReference(gradient, 5, 1e-7);
    const double size = std::sqrt(static_cast<double>(std::min(rows, cols)));
    double errors[Muon::kNumPrecisions];
    for (int p = 0; p < Muon::kNumPrecisions; ++p) {
      errors[p] = Distance(Orthogonalized(gradient, p), expected) / size;
    }
    // Numbers of fp32, TF32 and bf16 have 24, 11 and 8 bits.
    EXPECT_LT(errors[Muon::kHighest], 1e-5);
    EXPECT_LT(100 * errors[Muon::kHighest], errors[Muon::kHigh]);
    EXPECT_LT(2 * errors[Muon::kHigh], errors[Muon::kMedium]);
    EXPECT_LT(errors[Muon::kMedium], 0.1);
  }
}

// Roundings are chance: by the gradient, our errors in bf16 are 0.6 to 1.5
// times torch's, so those of the gradients of sixteen seeds are added, as
// squares.
constexpr int kSeeds = 16;

// Returns how far what `make` makes of these gradients is from Newton-Schulz in
// double.
template <typename Make>
double ErrorOf(size_t rows, size_t cols, const Make& make) {
  double squares = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    const DoubleMatrix gradient = GradientOf(rows, cols, seed);
    squares += std::pow(
        Distance(make(gradient), NewtonSchulzReference(gradient, 5, 1e-7)), 2);
  }
  return std::sqrt(squares);
}

double ErrorOfTorchsForm(size_t rows, size_t cols) {
  return ErrorOf(rows, cols, [](const DoubleMatrix& gradient) {
    return NewtonSchulzOfTorch(gradient, 5, 1e-7);
  });
}

// The form of torch, with which tests and tools/gpu_check compare, has torch's
// errors. `python3 tests/core/engine/muon_errors_of_torch.py` prints
// this table of torch.optim.Muon itself: of the gradients of GradientOf for the
// same sixteen seeds, so that nothing in it is random. Other versions and
// processors add a product's terms in another order.
struct TorchErrors {
  size_t rows;
  size_t cols;
  double error;
};
constexpr TorchErrors kErrorsOfTorch[] = {
    // torch 2.15.0+cu132, CPU
    {32, 32, 0.29040}, {48, 80, 0.38457},  {80, 48, 0.36390},
    {64, 64, 0.39379}, {20, 300, 0.21956},
};

// The norm and the gradient, which torch rounds to bf16, too, make the
// difference.
TEST_F(CudaMuonPrecisionTest, BF16IsNoWorseThanTorch) {
  for (const auto& [rows, cols, of_torch] : kErrorsOfTorch) {
    SCOPED_TRACE(StrCat(rows, " x ", cols));
    const double error = ErrorOf(rows, cols, [](const DoubleMatrix& gradient) {
      return Orthogonalized(gradient, Muon::kMedium);
    });
    EXPECT_LE(error, ErrorOfTorchsForm(rows, cols));
    EXPECT_LE(error, of_torch);
  }
}

TEST(NewtonSchulzReferenceTest, TheFormOfTorchHasTheErrorsOfTorch) {
  for (const auto& [rows, cols, of_torch] : kErrorsOfTorch) {
    SCOPED_TRACE(StrCat(rows, " x ", cols));
    EXPECT_NEAR(ErrorOfTorchsForm(rows, cols) / of_torch, 1, 0.02);
  }
}

}  // namespace
}  // namespace shard::cuda_muon_precision_test
