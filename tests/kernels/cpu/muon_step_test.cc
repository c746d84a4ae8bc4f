// SPDX-License-Identifier: Apache-2.0
//
// Whole steps of Muon: momentum, Newton-Schulz, apply.

#include "kernels/cpu/muon_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/newton_schulz.h"
#include "kernels/formula/scalars.h"
#include "tests/core/base/expect_status.h"
#include "tests/kernels/cpu/muon_testing.h"
#include "tests/kernels/cpu/targets.h"
#include "tests/kernels/formula/tensor_reference.h"

namespace shard::muon_step_test {
namespace {

class MuonStepTest : public TargetsTest {};

void ExpectMatchesReference(const Blas& blas, int64_t rows, int64_t cols,
                            const std::vector<double>& hypers) {
  const auto numel = static_cast<size_t>(rows * cols);
  std::vector<float> param = RandomFloats(numel, 1);
  TensorReference<Muon> reference({rows, cols}, param, hypers);
  std::vector<float> momentum_buffer(numel);
  GuardedWorkspace workspace(OrthogonalizeWorkspace(1, rows, cols));
  for (uint32_t step = 1; step <= 3; ++step) {
    std::vector<float> gradient = RandomFloats(numel, 100 + step);
    reference.Step(gradient, step);
    MuonMomentum(FormulaScalars(Formula::kMuon, hypers.data(), 1).data(),
                 gradient.data(), momentum_buffer.data(), numel);
    Orthogonalize(blas, {gradient.data(), 1, rows, cols, rows * cols},
                  static_cast<int>(hypers[Muon::kNsSteps]), hypers[Muon::kEps],
                  workspace.data());
    MuonApply(FormulaScalars(Formula::kMuon, hypers.data(), 1).data(), rows,
              cols, gradient.data(), param.data(), numel);
  }
  for (size_t i = 0; i < numel; ++i) {
    ASSERT_NEAR(static_cast<double>(param[i]), reference.param()[i], 1e-4)
        << "element " << i << " of " << rows << " x " << cols << ", "
        << KernelTargetName();
    ASSERT_NEAR(static_cast<double>(momentum_buffer[i]), reference.state(0)[i],
                1e-6);
  }
}

TEST_P(MuonStepTest, MatchesDouble) {
  const auto blas = Blas::Load();
  ASSERT_OK(blas);
  const struct {
    int64_t rows;
    int64_t cols;
  } kShapes[] = {{24, 67}, {67, 24}, {33, 33}, {1, 50}, {50, 1}, {1, 1}};
  for (const auto& shape : kShapes) {
    for (const double nesterov : {0.0, 1.0}) {
      for (const double adjust : {0.0, 1.0}) {
        ExpectMatchesReference(*blas, shape.rows, shape.cols,
                               HypersOf<Muon>({{"lr", 0.1},
                                               {"momentum", 0.8},
                                               {"weight_decay", 0.3},
                                               {"nesterov", nesterov},
                                               {"adjust_lr_fn", adjust}}));
      }
    }
  }
}

TEST_P(MuonStepTest, ZerosStayZero) {
  const auto hypers = HypersOf<Muon>();
  std::vector<float> gradient(67);
  std::vector<float> momentum_buffer(67);
  std::vector<float> param(67);
  MuonMomentum(FormulaScalars(Formula::kMuon, hypers.data(), 1).data(),
               gradient.data(), momentum_buffer.data(), 67);
  MuonApply(FormulaScalars(Formula::kMuon, hypers.data(), 1).data(), 1, 67,
            gradient.data(), param.data(), 67);
  for (size_t i = 0; i < 67; ++i) {
    ASSERT_EQ(gradient[i], 0);
    ASSERT_EQ(momentum_buffer[i], 0);
    ASSERT_EQ(param[i], 0);
  }
}

SHARD_ON_ALL_TARGETS(MuonStepTest);

}  // namespace
}  // namespace shard::muon_step_test
