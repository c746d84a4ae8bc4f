// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/newton_schulz.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/core/base/sanitizers.h"
#include "tests/kernels/cpu/fake_cblas.h"
#include "tests/kernels/cpu/muon_testing.h"

namespace shard::newton_schulz_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kEps = 1e-7;

struct Shape {
  int64_t rows;
  int64_t cols;
  size_t numel() const { return static_cast<size_t>(rows * cols); }
};

// Shapes on both sides of kBatchedSide.
constexpr Shape kShapes[] = {{24, 96}, {96, 24}, {32, 32}, {33, 33},
                             {40, 90}, {90, 40}, {1, 50},  {50, 1},
                             {1, 1},   {7, 9},   {65, 64}};

void InPlace(const Blas& blas, const MatrixBatch& batch, int steps,
             double eps = kEps) {
  GuardedWorkspace workspace(
      OrthogonalizeWorkspace(batch.count, batch.rows, batch.cols));
  Orthogonalize(blas, batch, steps, eps, workspace.data());
}

std::vector<float> Alone(const Blas& blas, std::vector<float> x, Shape shape,
                         int steps = 5, double eps = kEps) {
  InPlace(blas, {x.data(), 1, shape.rows, shape.cols, shape.rows * shape.cols},
          steps, eps);
  return x;
}

void ExpectMatchesReference(const std::vector<float>& result,
                            const std::vector<float>& input, Shape shape,
                            int steps, double eps = kEps) {
  const DoubleMatrix expected = NewtonSchulzReference(
      MatrixOf(input.data(), static_cast<size_t>(shape.rows),
               static_cast<size_t>(shape.cols)),
      steps, eps);
  for (size_t i = 0; i < result.size(); ++i) {
    // A step magnifies values near 0, their rounding errors included, 3.4
    // times.
    ASSERT_NEAR(static_cast<double>(result[i]), expected.values[i], 1e-4)
        << "element " << i << " of " << shape.rows << " x " << shape.cols
        << ", " << steps << " steps";
  }
}

class NewtonSchulzTest : public CblasTest {};

TEST_P(NewtonSchulzTest, MatchesDouble) {
  for (const Shape& shape : kShapes) {
    const std::vector<float> input = RandomFloats(shape.numel(), 1);
    for (const int steps : {1, 2, 5}) {
      ExpectMatchesReference(Alone(blas(), input, shape, steps), input, shape,
                             steps);
    }
  }
}

TEST_P(NewtonSchulzTest, SingularValuesComeNearOne) {
  for (const Shape& shape : {Shape{24, 96}, {96, 24}, {40, 160}, {160, 40}}) {
    const std::vector<float> result =
        Alone(blas(), RandomFloats(shape.numel(), 2), shape);
    for (const double value :
         SingularValues(MatrixOf(result.data(), static_cast<size_t>(shape.rows),
                                 static_cast<size_t>(shape.cols)))) {
      EXPECT_GT(value, 0.68);
      EXPECT_LT(value, 1.2);
    }
  }
}

// There are more matrices than are multiplied at a time, with gaps between
// them. Each has the bits that it has alone, and the gaps stay as they are.
TEST_P(NewtonSchulzTest, TheBatchDoesNotMatter) {
  for (const Shape& shape : kShapes) {
    constexpr size_t kCount = 19;
    constexpr int kSteps = kSanitized ? 1 : 5;
    const size_t stride = shape.numel() + 3;
    std::vector<float> all(kCount * stride, 5);
    std::vector<std::vector<float>> expected;
    for (size_t i = 0; i < kCount; ++i) {
      const std::vector<float> one =
          RandomFloats(shape.numel(), static_cast<uint32_t>(10 + i));
      std::copy(one.begin(), one.end(), all.data() + i * stride);
      expected.push_back(Alone(blas(), one, shape, kSteps));
      expected.back().resize(stride, 5);
    }
    InPlace(blas(),
            {all.data(), kCount, shape.rows, shape.cols,
             static_cast<int64_t>(stride)},
            kSteps);
    for (size_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(std::memcmp(all.data() + i * stride, expected[i].data(),
                            stride * sizeof(float)),
                0)
          << "matrix " << i << " of " << shape.rows << " x " << shape.cols;
    }
  }
}

TEST_P(NewtonSchulzTest, ZerosStayZero) {
  for (const Shape& shape : kShapes) {
    for (const float value :
         Alone(blas(), std::vector<float>(shape.numel()), shape)) {
      ASSERT_EQ(value, 0);
    }
  }
}

// A matrix that is shorter than eps is not scaled up to length 1.
TEST_P(NewtonSchulzTest, EpsBoundsTheScale) {
  constexpr Shape kShape = {40, 50};
  std::vector<float> input = RandomFloats(kShape.numel(), 3);
  for (float& value : input) value *= 1e-10f;
  for (const double eps : {1e-7, 1e-6}) {
    const std::vector<float> result = Alone(blas(), input, kShape, 1, eps);
    ExpectMatchesReference(result, input, kShape, 1, eps);
    EXPECT_LT(std::abs(result[0]), 0.01);
    EXPECT_NE(result[0], 0);
  }
}

TEST_P(NewtonSchulzTest, NonFiniteValuesSpreadInTheirMatrixOnly) {
  for (const float bad : {kNan, std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const Shape& shape : kShapes) {
      // The value must spread even with one step, which has few products that
      // would spread it.
      for (const int steps : {1, 5}) {
        const std::vector<float> good = RandomFloats(shape.numel(), 4);
        std::vector<float> all;
        for (int i = 0; i < 3; ++i) {
          all.insert(all.end(), good.begin(), good.end());
        }
        all[shape.numel() + shape.numel() / 2] = bad;
        InPlace(
            blas(),
            {all.data(), 3, shape.rows, shape.cols, shape.rows * shape.cols},
            steps);
        const std::vector<float> expected = Alone(blas(), good, shape, steps);
        for (size_t i = 0; i < all.size(); ++i) {
          if (i / shape.numel() == 1) {
            ASSERT_TRUE(std::isnan(all[i])) << i;
          } else {
            ASSERT_EQ(all[i], expected[i % shape.numel()]) << i;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Libraries, NewtonSchulzTest,
                         ::testing::ValuesIn(kCblasKinds), CblasKindOf);

struct Calls {
  int sgemm;
  int ssyrk;
  int batches;
  int batch_matrices;
};

void ExpectCalls(const char* kind, int64_t count, Shape shape, int steps,
                 Calls expected) {
  FakeCblas fake(kind);
  std::vector<float> x =
      RandomFloats(static_cast<size_t>(count) * shape.numel(), 5);
  InPlace(fake.blas(),
          {x.data(), count, shape.rows, shape.cols, shape.rows * shape.cols},
          steps);
  EXPECT_EQ(fake.Counter("sgemm_calls"), expected.sgemm);
  EXPECT_EQ(fake.Counter("ssyrk_calls"), expected.ssyrk);
  EXPECT_EQ(fake.Counter("batch_calls"), expected.batches);
  EXPECT_EQ(fake.Counter("batch_matrices"), expected.batch_matrices);
  EXPECT_EQ(fake.Counter("unaligned"), 0);
}

// A step of a matrix calls two symmetric products and a whole one.
TEST(NewtonSchulzCallsTest, OneByOne) {
  ExpectCalls("plain", 1, {40, 50}, 1, {1, 2, 0, 0});
  ExpectCalls("plain", 3, {50, 40}, 5, {15, 30, 0, 0});
  ExpectCalls("plain", 20, {7, 9}, 5, {100, 200, 0, 0});
}

TEST(NewtonSchulzCallsTest, SmallOnesInBatchesWhereTheLibraryCan) {
  ExpectCalls("batch", 3, {33, 50}, 5, {15, 30, 0, 0});
  ExpectCalls("batch", 1, {32, 50}, 5, {0, 0, 15, 15});
  ExpectCalls("batch", 16, {50, 32}, 5, {0, 0, 15, 240});
  ExpectCalls("batch", 20, {7, 9}, 5, {0, 0, 30, 300});
}

TEST(NewtonSchulzCallsTest, NoneWhereThereIsNothing) {
  for (const char* kind : {"plain", "batch"}) {
    for (const Shape& shape : {Shape{0, 5}, {5, 0}, {0, 0}}) {
      ExpectCalls(kind, 3, shape, 5, {0, 0, 0, 0});
    }
    ExpectCalls(kind, 0, {8, 8}, 5, {0, 0, 0, 0});
  }
}

TEST(NewtonSchulzWorkspaceTest, IsThatOfOneOrOfSixteen) {
  EXPECT_EQ(OrthogonalizeWorkspace(24, 768, 3072),
            2u * 768 * 3072 + 2 * 768 * 768);
  EXPECT_EQ(OrthogonalizeWorkspace(24, 3072, 768),
            OrthogonalizeWorkspace(1, 768, 3072));
  EXPECT_EQ(OrthogonalizeWorkspace(3, 32, 100), 3u * (2 * 3200 + 2 * 1024));
  EXPECT_EQ(OrthogonalizeWorkspace(99, 100, 32), 16u * (2 * 3200 + 2 * 1024));
  EXPECT_EQ(OrthogonalizeWorkspace(1, 3, 7), 2u * 32 + 2 * 16);
  EXPECT_EQ(OrthogonalizeWorkspace(0, 8, 8), 0u);
  EXPECT_EQ(OrthogonalizeWorkspace(5, 0, 8), 0u);
}

}  // namespace
}  // namespace shard::newton_schulz_test
