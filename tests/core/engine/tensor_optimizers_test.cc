// SPDX-License-Identifier: Apache-2.0
//
// Optimizers of whole parameters as the engine runs them, compared with the
// same in double: parameters or their masters, and all states.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/optim/optimizer.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/device/test_device.h"
#include "tests/core/engine/states.h"
#include "tests/core/engine/training.h"
#include "tests/kernels/formula/tensor_reference.h"

namespace shard::tensor_optimizers_test {
namespace {

// Returns the mean of the ranks' gradients as they are stored, clipped, by
// ParamId.
std::vector<std::vector<float>> MeanGradients(const Training& training,
                                              DType dtype, int step) {
  const int world_size = training.plan.world_size;
  std::vector<std::vector<double>> mean;
  double squares = 0;
  for (size_t p = 0; p < training.model->params().size(); ++p) {
    mean.emplace_back(static_cast<size_t>(training.model->params()[p].numel));
    for (int rank = 0; rank < world_size; ++rank) {
      const auto values =
          Rounded(dtype, GradientValues(training, rank, step, p));
      for (size_t i = 0; i < values.size(); ++i) {
        mean[p][i] += static_cast<double>(values[i]) / world_size;
      }
    }
    for (const double g : mean[p]) squares += g * g;
  }
  const double most = training.step.max_grad_norm;
  const double scale =
      most > 0 ? std::min(1.0, most / (std::sqrt(squares) + 1e-6)) : 1;
  std::vector<std::vector<float>> scaled;
  for (const auto& gradient : mean) {
    scaled.emplace_back();
    for (const double g : gradient) {
      scaled.back().push_back(static_cast<float>(g * scale));
    }
  }
  return scaled;
}

void ExpectNear(const std::vector<float>& got,
                const std::vector<double>& expected, double tolerance,
                const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), expected[i],
                tolerance * (1 + std::abs(expected[i])))
        << what << ", element " << i;
  }
}

// Compares a state. The tolerance is relative to the largest element of the
// state alone, however small that is, because elements that cancel in a sum
// over ranks or steps have errors of that size.
void ExpectStateNear(const std::vector<float>& got,
                     const std::vector<double>& expected, double tolerance,
                     const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double largest = 0;
  for (const double value : expected) {
    largest = std::max(largest, std::abs(value));
  }
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), expected[i], tolerance * largest)
        << what << ", element " << i;
  }
}

template <class F>
void ExpectMatchesReference(const std::string& optimizer,
                            const std::vector<std::vector<int64_t>>& shapes,
                            double tolerance) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int world_size : {1, 2, 3}) {
      // Ranks on GPUs, or on several hosts, round their sums of 16 bits.
      const bool rounds =
          testing::TestsAreOnGpu() || testing::TestsAreOn("tcp");
      if (rounds && dtype == DType::kBF16 && world_size > 1) continue;
      for (const double max_grad_norm : {0.0, 0.5}) {
        // Under a sanitizer, several ranks clip in one of the dtypes.
        if (kSanitized && (world_size == 1 ||
                           (dtype == DType::kF32) != (max_grad_norm == 0))) {
          continue;
        }
        SCOPED_TRACE(StrCat(DTypeName(dtype), ", ", world_size, " ranks, norm ",
                            max_grad_norm));
        Training training;
        training.model = ModelOf(shapes, dtype);
        training.optimizer = optimizer;
        training.plan.world_size = world_size;
        training.step.max_grad_norm = max_grad_norm;
        training.values = dtype;
        training.all_ranks = true;
        StateValues masters(shapes.size());
        std::vector<StateValues> states(F::kNumStates, masters);
        // Allocates on one rank, before the other ranks copy their states.
        const auto fit = [&](const Engine& engine) {
          masters = MakeStateValues(engine.plan(), kMasterState);
          for (size_t s = 0; s < states.size(); ++s) {
            states[s] = MakeStateValues(engine.plan(), F::kStates[s]);
          }
        };
        training.after_step = [&](Engine* engine, int step) {
          if (step != training.steps) return;
          if (engine->comm()->rank() == 0) fit(*engine);
          ASSERT_TRUE(engine->comm()->Barrier("fit", Deadline::After(30)).ok());
          CopyState(*engine, kMasterState, &masters);
          for (size_t s = 0; s < states.size(); ++s) {
            CopyState(*engine, F::kStates[s], &states[s]);
          }
        };
        const auto params = Train(training);

        const auto hypers = Optimizer::Parse(optimizer)->hypers();
        std::vector<TensorReference<F>> references;
        for (size_t p = 0; p < shapes.size(); ++p) {
          references.emplace_back(shapes[p], InitialValues(training, p),
                                  hypers);
        }
        for (int step = 1; step <= training.steps; ++step) {
          const auto gradients = MeanGradients(training, dtype, step);
          for (size_t p = 0; p < shapes.size(); ++p) {
            if (!gradients[p].empty()) references[p].Step(gradients[p], step);
          }
        }
        for (size_t p = 0; p < shapes.size(); ++p) {
          const std::string what = StrCat("p", p);
          if (dtype == DType::kF32) {
            ExpectNear(params[p], references[p].param(), tolerance, what);
          } else {
            ExpectNear(masters[p], references[p].param(), tolerance, what);
            EXPECT_EQ(params[p], Rounded(dtype, masters[p]));
          }
          for (size_t s = 0; s < states.size(); ++s) {
            ExpectStateNear(states[s][p], references[p].state(s), tolerance,
                            StrCat(what, " ", F::kStates[s]));
          }
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

const std::vector<std::vector<int64_t>> kAnyShapes = {
    {33, 20}, {5}, {}, {0, 4}, {2, 3, 4}, {40}, {3, 50}};

TEST(TensorOptimizersTest, LambMatchesDouble) {
  ExpectMatchesReference<Lamb>("lamb?lr=0.05&weight_decay=0.1", kAnyShapes,
                               1e-5);
}

TEST(TensorOptimizersTest, AdafactorMatchesDouble) {
  ExpectMatchesReference<Adafactor>("adafactor?lr=0.05&weight_decay=0.1",
                                    kAnyShapes, 1e-5);
}

TEST(TensorOptimizersTest, MuonMatchesDouble) {
  ExpectMatchesReference<Muon>(
      "muon?lr=0.05&momentum=0.8&weight_decay=0.3",
      {{33, 70}, {9, 4}, {4, 9}, {33, 70}, {0, 4}, {1, 12}, {40, 36}}, 1e-5);
}

TEST(TensorOptimizersTest, MuonWithAdamWsRateMatchesDouble) {
  ExpectMatchesReference<Muon>(
      "muon?lr=0.05&nesterov=0&ns_steps=4&adjust_lr_fn=match_rms_adamw",
      {{33, 70}, {9, 4}, {9, 4}}, 1e-5);
}

}  // namespace
}  // namespace shard::tensor_optimizers_test
