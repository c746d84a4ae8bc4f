// SPDX-License-Identifier: Apache-2.0
//
// The update of whole parameters on a GPU has the bits of the update on the
// CPU: the kernels, compiled for the host, beside a stream of device "cpu", for
// every combination of dtypes.

#include "kernels/cuda/update_tensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/device/cuda/element_range.h"
#include "core/device/cuda/matrix_slices.h"
#include "core/device/cuda/tile_groups.h"
#include "kernels/formula/all.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/device/kernel_inputs.h"
#include "tests/kernels/cuda/run_kernel.h"
#include "tests/kernels/cuda/test_range.h"

namespace shard::update_tensors_test {
namespace {

using testing::Block;
using testing::CaseOf;
using testing::FormulaCase;
using testing::Grid;
using testing::kGrids;
using testing::kNoClip;
using testing::Layout;
using testing::Range;
using testing::Storage;
using testing::UpdateAsCpu;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<Storage> Storages() {
  std::vector<Storage> all;
  std::vector<DType> grads = {DType::kF32, DType::kBF16, DType::kF16};
  if (kSanitized) grads = {DType::kBF16};
  for (const DType grad : grads) {
    all.push_back({grad, DType::kF32, false, false});
    all.push_back({grad, DType::kBF16, true, false});
    all.push_back({grad, DType::kBF16, false, true});
    all.push_back({grad, DType::kF16, true, false});
    all.push_back({grad, DType::kF16, false, false});
  }
  return all;
}

// Returns parameters of these shapes, one after the other, each from the next
// multiple of `alignment` on.
Layout LayoutOf(std::vector<std::vector<int64_t>> shapes, size_t alignment,
                size_t offset) {
  Layout layout = {0, {}, offset};
  uint32_t position = 0;
  for (const std::vector<int64_t>& shape : shapes) {
    const auto numel = static_cast<size_t>(
        ShapeNumel(shape.data(), static_cast<int>(shape.size())));
    const size_t begin = (layout.count + alignment - 1) / alignment * alignment;
    layout.slices.push_back({begin, numel, 0, position++});
    layout.count = begin + numel;
  }
  layout.shapes = std::move(shapes);
  return layout;
}

std::vector<std::vector<int64_t>> Shapes() {
  return {{},        {1},         {3, 5},       {256}, {255, 1},  {1, 700},
          {40, 257}, {2, 3, 100}, {3, 3, 2, 2}, {129}, {37, 512}, {5, 1, 1, 9}};
}

Layout Aligned() { return LayoutOf(Shapes(), 256, 0); }

// Parameters begin in the middle of a vector.
Layout Unaligned() { return LayoutOf(Shapes(), 1, 1); }

// Runs the launches of an update, each on another grid.
void UpdateAsGpu(const FormulaCase& formula, const StepBlock& block,
                 const Range& range,
                 const GradientSources* gradients = nullptr) {
  const UpdateList& list = range.list();
  const auto slices = cuda::ElementSlices(list, list.ranges[0]);
  const auto groups = cuda::GroupTiles(slices);
  // Nothing reads what scratch memory had before.
  std::vector<cuda::SquareSums> sums(groups.num_sums(), {kNan, kNan});
  cuda::UpdateTensorsArgs args = {
      cuda::ElementRangeOf(list, list.ranges[0], slices, slices.data(),
                           list.sources.data()),
      cuda::SquareTableOf(groups, groups.first.data(), sums.data()), &block};
  if (gradients != nullptr) {
    cuda::ReadGradients(*gradients, gradients->data, &args.range);
  }
  if (formula.formula == Formula::kLamb) {
    testing::RunKernel("shard_lamb_moments", args, kGrids[0]);
    testing::RunKernel("shard_sum_squares", args, kGrids[1]);
    testing::RunKernel("shard_lamb_apply", args, kGrids[2]);
    return;
  }
  const auto made = cuda::MatrixSlicesOf(list, list.ranges[0]);
  ASSERT_OK(made);
  std::vector<double> matrix_sums(made->num_sums, kNan);
  std::vector<float> scales(made->num_scales, kNan);
  const cuda::AdafactorArgs matrices = {
      args, cuda::MatrixTableOf(list.ranges[0], *made, made->slices.data(),
                                matrix_sums.data(), scales.data())};
  testing::RunKernel("shard_adafactor_sums", matrices, kGrids[0]);
  testing::RunKernel("shard_adafactor_states", matrices, kGrids[1]);
  testing::RunKernel("shard_adafactor_scales", matrices, kGrids[2]);
  testing::RunKernel("shard_adafactor_squares", matrices, kGrids[3]);
  testing::RunKernel("shard_sum_squares", args, kGrids[1]);
  testing::RunKernel("shard_adafactor_apply", matrices, kGrids[2]);
}

class UpdateTensorsTest : public ::testing::TestWithParam<FormulaCase> {
 protected:
  // Does one step both ways.
  void Step(const StepBlock& block, const Range& before,
            const GradientSources* gradients = nullptr) {
    const Range expected(before);
    const Range actual(before);
    UpdateAsCpu(block, expected, gradients);
    UpdateAsGpu(GetParam(), block, actual, gradients);
    actual.ExpectEqual(expected);
  }

  // Does three steps both ways.
  void Train(const Storage& storage, const Layout& layout, size_t num_sources,
             double clip_value, const uint32_t* rows = nullptr) {
    SCOPED_TRACE(storage.name());
    const Range before(GetParam(), storage, layout, num_sources, 7);
    Range expected(before);
    Range actual(before);
    for (int64_t step = 1; step <= 3; ++step) {
      Block latched(GetParam(), step);
      latched.block.clip_value = clip_value;
      latched.block.SetRows(latched.rows, rows);
      for (Range* const range : {&expected, &actual}) {
        range->ChangeGrads(static_cast<float>(step));
      }
      UpdateAsCpu(latched.block, expected);
      UpdateAsGpu(GetParam(), latched.block, actual);
      actual.ExpectEqual(expected);
      if (HasFailure()) return;
    }
  }
};

TEST_P(UpdateTensorsTest, HasTheBitsOfTheCpu) {
  for (const Storage& storage : Storages()) {
    Train(storage, Aligned(), 1, kNoClip);
    Train(storage, Aligned(), 3, 0.3);
  }
}

TEST_P(UpdateTensorsTest, ReadsParametersThatAreNotAligned) {
  for (const Storage& storage : Storages()) {
    Train(storage, Unaligned(), 2, kNoClip);
  }
}

// Several groups of tiles, and more groups than a warp has lanes.
TEST_P(UpdateTensorsTest, SumsLargeParametersInTheOrderOfTheCpu) {
  if (kSanitized) GTEST_SKIP() << "more of the same for a sanitizer, for 40 s";
  Train({DType::kBF16, DType::kBF16, true, false},
        LayoutOf({{1111, 777}, {300}, {1 << 19}}, 64, 0), 1, kNoClip);
  const Range before(GetParam(), {}, LayoutOf({{2903, 3001}}, 1, 0), 1, 3);
  Step(Block(GetParam(), 1).block, before);
}

// More groups of rows than a warp has lanes; several matrices of several
// blocks.
TEST_P(UpdateTensorsTest, HasAnyNumberOfRowsColumnsAndMatrices) {
  const Layout layout = LayoutOf(
      {{9000, 3}, {7}, {3, 300, 600}, {2, 70, 1100}, {2, 1, 3, 2000}}, 1, 0);
  Step(Block(GetParam(), 2).block, Range(GetParam(), {}, layout, 1, 3));
}

TEST_P(UpdateTensorsTest, HasParametersWithoutRows) {
  Step(Block(GetParam(), 2).block,
       Range(GetParam(), {}, LayoutOf({{7}, {}, {1000}}, 1, 0), 1, 3));
}

TEST_P(UpdateTensorsTest, ParametersDoTheStepOfTheirRow) {
  std::vector<uint32_t> rows(Shapes().size());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = i % 4 == 3 ? kNotStepped : static_cast<uint32_t>(i % 4);
  }
  for (const Storage& storage : Storages()) {
    Train(storage, Aligned(), 1, kNoClip, rows.data());
  }
}

// Zeros make 0 / 0 where eps is 0, of parameters alone.
TEST_P(UpdateTensorsTest, PaddingIsNotInTheSums) {
  FormulaCase formula = GetParam();
  if (formula.formula == Formula::kLamb) {
    formula.hypers[Lamb::kEps] = 0;
  } else {
    ASSERT_EQ(formula.formula, Formula::kAdafactor);
    formula.hypers[Adafactor::kEps1] = formula.hypers[Adafactor::kEps2] = 0;
  }
  const Block latched(formula, 1);
  Step(latched.block, Range(formula, {}, Aligned(), 1, 5));
}

TEST_P(UpdateTensorsTest, KeepsInfinityAndNan) {
  for (const float bad : {kInfinity, -kInfinity, kNan}) {
    for (const Storage& storage : Storages()) {
      SCOPED_TRACE(StrCat(storage.name(), " with ", bad));
      Range before(GetParam(), storage, Aligned(), 1, 9);
      for (const UpdateSlice& slice : before.list().slices) {
        if (slice.position % 2 == 0) {
          before.SetGrad(slice.begin + slice.count / 2, bad);
        }
      }
      Step(Block(GetParam(), 2).block, before);
      if (HasFailure()) return;
    }
  }
}

// A norm pass has left the sum of all sources in one of them.
TEST_P(UpdateTensorsTest, ReadsTheSumThatANormPassLeft) {
  Range before(GetParam(), {}, Aligned(), 3, 5);
  before.KeepSum();
  Block latched(GetParam(), 1);
  latched.block.has_norm = true;
  Step(latched.block, before);
}

TEST_P(UpdateTensorsTest, ReadsTheGradientsThatItIsGiven) {
  Range before(GetParam(), {}, Aligned(), 3, 5);
  before.KeepSum();
  const Range others(GetParam(), {}, Aligned(), 2, 6);
  const GradientSources gradients =
      others.list().GradientsOf(others.list().ranges[0], false);
  for (const bool has_norm : {false, true}) {
    Block latched(GetParam(), 1);
    latched.block.has_norm = has_norm;
    Step(latched.block, before, nullptr);
    Step(latched.block, before, &gradients);
  }
}

TEST_P(UpdateTensorsTest, ReadsMoreSourcesThanAnArgumentHas) {
  Step(Block(GetParam(), 1).block, Range(GetParam(), {}, Aligned(), 40, 5));
}

TEST_P(UpdateTensorsTest, AStepThatIsSkippedOrPoisonedWritesNothing) {
  Block latched(GetParam(), 1);
  latched.block.skipped = true;
  const Range before(GetParam(), {}, Aligned(), 1, 3);
  const Range actual(before);
  UpdateAsGpu(GetParam(), latched.block, actual);
  actual.ExpectEqual(before);
  latched.block.skipped = false;
  latched.block.poisoned = 1;
  UpdateAsGpu(GetParam(), latched.block, actual);
  actual.ExpectEqual(before);
}

INSTANTIATE_TEST_SUITE_P(
    Formulas, UpdateTensorsTest,
    ::testing::Values(CaseOf<Lamb>(Formula::kLamb, "Lamb"),
                      CaseOf<Adafactor>(Formula::kAdafactor, "Adafactor")),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shard::update_tensors_test
