// SPDX-License-Identifier: Apache-2.0
//
// The kernels around Muon's products, compiled for the host, beside what a CPU
// does: the same bits for momentum, direction and parameter, for every
// combination of dtypes. Only the norm has its squares added in another order.

#include "kernels/cuda/muon.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/rounding.h"
#include "core/base/strings.h"
#include "core/device/cuda/element_range.h"
#include "core/device/cuda/tile_groups.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/muon_step.h"
#include "kernels/cpu/norm.h"
#include "kernels/formula/all.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/device/kernel_inputs.h"
#include "tests/kernels/cuda/run_kernel.h"
#include "tests/kernels/cuda/test_range.h"

namespace shard::muon_test {
namespace {

using testing::Block;
using testing::CaseOf;
using testing::FormulaCase;
using testing::kGrids;
using testing::kNoClip;
using testing::Layout;
using testing::Range;
using testing::SameFloat;
using testing::Storage;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// What memory has before a kernel writes it; no NaN.
constexpr unsigned char kUnwritten = 0x5A;

FormulaCase MuonCase() { return CaseOf<Muon>(Formula::kMuon, "Muon"); }

std::vector<Storage> Storages() {
  std::vector<Storage> all;
  for (const DType grad : {DType::kF32, DType::kBF16, DType::kF16}) {
    all.push_back({grad, DType::kF32, false, false});
    all.push_back({grad, DType::kBF16, true, false});
    all.push_back({grad, DType::kBF16, false, true});
    all.push_back({grad, DType::kF16, true, false});
    all.push_back({grad, DType::kF16, false, false});
  }
  return all;
}

// A batch: matrices of one shape.
struct Matrices {
  int64_t rows;
  int64_t cols;
  size_t count;

  size_t numel() const { return static_cast<size_t>(rows * cols); }
};

// Less than a tile, tiles that are partial, and whole ones; a row and a column.
constexpr Matrices kBatches[] = {
    {3, 5, 9}, {40, 257, 2}, {16, 32, 3}, {1, 700, 2}, {255, 1, 3}};

// Returns the matrices one after the other, each from the next multiple of
// `alignment` on.
Layout LayoutOf(const Matrices& matrices, size_t alignment, size_t offset) {
  Layout layout = {0, {}, offset};
  for (uint32_t i = 0; i < matrices.count; ++i) {
    const size_t begin = RoundUp(layout.count, alignment);
    layout.slices.push_back({begin, matrices.numel(), 0, i});
    layout.count = begin + matrices.numel();
    layout.shapes.push_back({matrices.rows, matrices.cols});
  }
  return layout;
}
Layout Aligned(const Matrices& matrices) { return LayoutOf(matrices, 256, 0); }
// Matrices begin in the middle of a vector.
Layout Unaligned(const Matrices& matrices) { return LayoutOf(matrices, 1, 1); }

// The memory of a batch of matrices, which begins where an allocation would.
class BatchMemory {
 public:
  BatchMemory(const Matrices& matrices, DType dtype)
      : dtype_(dtype),
        numel_(matrices.numel()),
        stride_(RoundUp(numel_ * sizeof(float), kAlignment)),
        bytes_(matrices.count * stride_ + kAlignment, kUnwritten) {}

  void* data() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (RoundUp(at, kAlignment) - at);
  }
  size_t stride() const { return stride_; }

  std::vector<float> Matrix(size_t i) {
    std::vector<float> wide(numel_);
    Widen(dtype_, At(i), wide.data(), numel_);
    return wide;
  }
  void SetMatrix(size_t i, const std::vector<float>& values) {
    Narrow(dtype_, values.data(), At(i), numel_, nullptr);
  }
  // Returns whether nothing was written from `begin` on, in elements of matrix
  // i, up to the next matrix.
  bool IsUnwritten(size_t i, size_t begin) {
    const unsigned char* const at = At(i);
    return std::all_of(at + begin * DTypeSize(dtype_), at + stride_,
                       [](unsigned char byte) { return byte == kUnwritten; });
  }
  bool IsUnwrittenBehind(size_t i) { return IsUnwritten(i, numel_); }

 private:
  static constexpr size_t kAlignment = 256;
  unsigned char* At(size_t i) {
    return static_cast<unsigned char*>(data()) + i * stride_;
  }

  const DType dtype_;
  const size_t numel_;
  const size_t stride_;
  std::vector<unsigned char> bytes_;
};

// The launches of an update of a batch, each on another grid. With `in_place`
// x, which is f32, takes the place of its direction.
class Gpu {
 public:
  Gpu(const Matrices& matrices, DType x_dtype, const StepBlock& block,
      const Range& range, bool in_place = false)
      : directions_(matrices, DType::kF32), x_(matrices, x_dtype) {
    const UpdateList& list = range.list();
    slices_ = cuda::ElementSlices(list, list.ranges[0]);
    groups_ = cuda::GroupTiles(slices_);
    // Nothing reads what scratch memory had before.
    sums_.assign(groups_.num_sums(), {kNan, kNan});
    args_.tensors = {
        cuda::ElementRangeOf(list, list.ranges[0], slices_, slices_.data(),
                             list.sources.data()),
        cuda::SquareTableOf(groups_, groups_.first.data(), sums_.data()),
        &block};
    args_.directions =
        static_cast<float*>(in_place ? x_.data() : directions_.data());
    args_.x = x_.data();
    args_.x_dtype = x_dtype;
    args_.stride = x_.stride();
    for (int i = 0; i < Muon::kNumAdjustments; ++i) {
      args_.adjustments[i] =
          Muon::AdjustmentOf(i, matrices.rows, matrices.cols);
    }
  }

  void Direct() { testing::RunKernel("shard_muon_momentum", args_, kGrids[0]); }
  void Normalize() {
    testing::RunKernel("shard_sum_squares", args_.tensors, kGrids[1]);
    testing::RunKernel("shard_muon_normalize", args_, kGrids[2]);
  }
  void Apply() { testing::RunKernel("shard_muon_apply", args_, kGrids[3]); }

  BatchMemory& directions() { return directions_; }
  BatchMemory& x() { return x_; }

 private:
  BatchMemory directions_;
  BatchMemory x_;
  std::vector<cuda::ElementSlice> slices_;
  cuda::TileGroups groups_;
  std::vector<cuda::SquareSums> sums_;
  cuda::MuonArgs args_ = {};
};

// The same for one matrix on a CPU.
class Cpu {
 public:
  Cpu(const StepBlock& block, const Range& range, size_t i)
      : block_(block),
        list_(range.list()),
        range_(list_.ranges[0]),
        slice_(list_.slices[i]),
        row_(block.RowOf(range_.group, slice_.position)) {}

  bool is_stepped() const { return row_ != kNotStepped; }

  std::vector<float> Direct() const {
    std::vector<float> direction(slice_.count);
    SumGradients(list_.GradientsOf(range_, block_.has_norm), slice_.begin,
                 slice_.count, block_.scale, block_.clip_value,
                 direction.data());
    MuonMomentum(&scalars(), direction.data(),
                 static_cast<float*>(range_.states[0]) + slice_.begin,
                 slice_.count);
    return direction;
  }

  std::vector<float> Normalize(std::vector<float> direction) const {
    NormSum squares = {};
    AddToNorm(NormType::kTwo, 0, 0, direction.data(), direction.size(),
              &squares);
    const float factor = Muon::FactorOf(
        FinishNorm(NormType::kTwo, 0, 0, squares), scalars().eps);
    for (float& d : direction) d *= factor;
    return direction;
  }

  void Apply(const std::vector<float>& x) const {
    auto* const param = static_cast<unsigned char*>(range_.param) +
                        slice_.begin * DTypeSize(range_.param_dtype);
    std::vector<float> wide(slice_.count);
    float* const master =
        range_.master == nullptr ? nullptr : range_.master + slice_.begin;
    if (master == nullptr) {
      Widen(range_.param_dtype, param, wide.data(), wide.size());
    } else {
      wide.assign(master, master + slice_.count);
    }
    const std::span<const int64_t> shape = list_.ShapeOf(list_.tensors[0]);
    MuonApply(&scalars(), shape[0], shape[1], x.data(), wide.data(),
              wide.size());
    if (master != nullptr) std::copy(wide.begin(), wide.end(), master);
    const RandomStream random = {block_.seed, block_.random_step,
                                 slice_.position, slice_.param_begin};
    Narrow(range_.param_dtype, wide.data(), param, wide.size(),
           range_.stochastic_rounding ? &random : nullptr);
  }

 private:
  const Muon::Scalars& scalars() const {
    return block_.rows()[row_].scalars.as<Muon>();
  }

  const StepBlock& block_;
  const UpdateList& list_;
  const UpdateRange& range_;
  const UpdateSlice& slice_;
  const uint32_t row_;
};

void ExpectSame(const std::vector<float>& actual,
                const std::vector<float>& expected, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(SameFloat(actual[i], expected[i]))
        << what << " of element " << i << ": " << actual[i] << " and "
        << expected[i];
  }
}

// Floats of one sign are as far apart as their bits.
void ExpectNear(const std::vector<float>& actual,
                const std::vector<float>& expected) {
  constexpr uint32_t kUlps = 2;
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (SameFloat(actual[i], expected[i])) continue;
    const auto a = std::bit_cast<uint32_t>(actual[i]);
    const auto b = std::bit_cast<uint32_t>(expected[i]);
    ASSERT_LE(std::max(a, b) - std::min(a, b), kUlps)
        << "x of element " << i << ": " << actual[i] << " and " << expected[i];
  }
}

std::vector<float> Rounded(DType dtype, std::vector<float> values) {
  std::vector<unsigned char> narrow(values.size() * DTypeSize(dtype));
  Narrow(dtype, values.data(), narrow.data(), values.size(), nullptr);
  Widen(dtype, narrow.data(), values.data(), values.size());
  return values;
}

// Does one step both ways, and compares all that the kernels make. `expected`
// and `actual` are equal before and after. The products are left out: the
// parameter moves along some matrix, the same on both.
void Step(const Matrices& matrices, DType x_dtype, const StepBlock& block,
          const Range& expected, const Range& actual) {
  Gpu gpu(matrices, x_dtype, block, actual);
  // With an x in f32 for the bits before it is rounded.
  const Range other(actual);
  Gpu wide(matrices, DType::kF32, block, other);
  for (Gpu* const each : {&gpu, &wide}) {
    each->Direct();
    each->Normalize();
  }
  for (size_t i = 0; i < matrices.count; ++i) {
    SCOPED_TRACE(StrCat("matrix ", i));
    const Cpu cpu(block, expected, i);
    if (!cpu.is_stepped() || block.skipped) {
      EXPECT_TRUE(gpu.directions().IsUnwritten(i, 0));
      EXPECT_TRUE(gpu.x().IsUnwritten(i, 0));
      continue;
    }
    const std::vector<float> direction = cpu.Direct();
    ExpectSame(gpu.directions().Matrix(i), direction, "direction");
    EXPECT_TRUE(gpu.directions().IsUnwrittenBehind(i));
    ExpectNear(wide.x().Matrix(i), cpu.Normalize(direction));
    ExpectSame(gpu.x().Matrix(i), Rounded(x_dtype, wide.x().Matrix(i)), "x");
    EXPECT_TRUE(gpu.x().IsUnwrittenBehind(i));
    if (::testing::Test::HasFailure()) return;
    std::vector<float> x = gpu.x().Matrix(i);
    std::reverse(x.begin(), x.end());
    for (float& value : x) value *= 3;
    gpu.x().SetMatrix(i, x);
    cpu.Apply(gpu.x().Matrix(i));
  }
  gpu.Apply();
  actual.ExpectEqual(expected);
}

// Does three steps both ways.
void Train(const FormulaCase& formula, const Storage& storage,
           const Layout& layout, const Matrices& matrices, size_t num_sources,
           double clip_value, const uint32_t* rows = nullptr) {
  for (const DType x_dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(StrCat(storage.name(), ", x ", DTypeName(x_dtype), ", ",
                        matrices.rows, " x ", matrices.cols));
    Range expected(formula, storage, layout, num_sources, 7);
    Range actual(expected);
    for (int64_t step = 1; step <= 3; ++step) {
      Block latched(formula, step);
      latched.block.clip_value = clip_value;
      latched.block.SetRows(latched.rows, rows);
      for (Range* const range : {&expected, &actual}) {
        range->ChangeGrads(static_cast<float>(step));
      }
      Step(matrices, x_dtype, latched.block, expected, actual);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(MuonKernelsTest, HaveTheBitsOfTheCpu) {
  for (const Storage& storage : Storages()) {
    for (const Matrices& matrices : kBatches) {
      Train(MuonCase(), storage, Aligned(matrices), matrices, 1, kNoClip);
      Train(MuonCase(), storage, Aligned(matrices), matrices, 3, 0.3);
    }
  }
}

TEST(MuonKernelsTest, ReadMatricesThatAreNotAligned) {
  for (const Storage& storage : Storages()) {
    for (const Matrices& matrices : kBatches) {
      Train(MuonCase(), storage, Unaligned(matrices), matrices, 2, kNoClip);
    }
  }
}

TEST(MuonKernelsTest, AnXMayTakeThePlaceOfItsDirection) {
  for (const Matrices& matrices : kBatches) {
    SCOPED_TRACE(StrCat(matrices.rows, " x ", matrices.cols));
    const Range range(MuonCase(), {}, Aligned(matrices), 1, 7);
    const Range other(range);
    const Block latched(MuonCase(), 1);
    Gpu apart(matrices, DType::kF32, latched.block, range);
    Gpu together(matrices, DType::kF32, latched.block, other, true);
    for (Gpu* const each : {&apart, &together}) {
      each->Direct();
      each->Normalize();
    }
    for (size_t i = 0; i < matrices.count; ++i) {
      ExpectSame(together.x().Matrix(i), apart.x().Matrix(i), "x");
      EXPECT_TRUE(together.x().IsUnwrittenBehind(i));
      EXPECT_TRUE(together.directions().IsUnwritten(i, 0));
    }
  }
}

TEST(MuonKernelsTest, HaveEveryFormOfTheRule) {
  constexpr Matrices kTall = {70, 9, 3};
  for (const double nesterov : {0, 1}) {
    for (int adjustment = 0; adjustment < Muon::kNumAdjustments; ++adjustment) {
      SCOPED_TRACE(
          StrCat("nesterov ", nesterov, ", ", Muon::kAdjustments[adjustment]));
      FormulaCase formula = MuonCase();
      formula.hypers[Muon::kNesterov] = nesterov;
      formula.hypers[Muon::kAdjustLrFn] = adjustment;
      formula.hypers[Muon::kLr] = 0.5;
      Train(formula, {}, Aligned(kTall), kTall, 1, kNoClip);
    }
  }
}

// Several groups of tiles, and more groups than a warp has lanes.
TEST(MuonKernelsTest, SumTheSquaresOfLargeMatrices) {
  if (kSanitized) GTEST_SKIP() << "more of the same for a sanitizer, for 20 s";
  for (const Matrices& matrices :
       {Matrices{1111, 777, 2}, Matrices{2903, 3001, 1}}) {
    const Range expected(MuonCase(), {}, LayoutOf(matrices, 1, 0), 1, 3);
    const Range actual(expected);
    Step(matrices, DType::kF32, Block(MuonCase(), 1).block, expected, actual);
  }
}

TEST(MuonKernelsTest, MatricesDoTheStepOfTheirRow) {
  constexpr Matrices kMany = {12, 50, 8};
  std::vector<uint32_t> rows(kMany.count);
  for (uint32_t i = 0; i < rows.size(); ++i) {
    rows[i] = i % 4 == 3 ? kNotStepped : i % 4;
  }
  for (const Storage& storage : Storages()) {
    Train(MuonCase(), storage, Aligned(kMany), kMany, 1, kNoClip, rows.data());
  }
  std::fill(rows.begin(), rows.end(), kNotStepped);
  Train(MuonCase(), {}, Aligned(kMany), kMany, 1, kNoClip, rows.data());
}

TEST(MuonKernelsTest, ASkippedStepTouchesNothing) {
  constexpr Matrices kSome = {30, 20, 3};
  Block latched(MuonCase(), 1);
  latched.block.skipped = true;
  const Range before(MuonCase(), {}, Aligned(kSome), 1, 3);
  const Range actual(before);
  Step(kSome, DType::kF32, latched.block, before, actual);
}

// A norm pass has left the sum of all sources in one of them.
TEST(MuonKernelsTest, ReadTheSumThatANormPassLeft) {
  constexpr Matrices kSome = {30, 20, 3};
  Range expected(MuonCase(), {}, Aligned(kSome), 3, 5);
  expected.KeepSum();
  const Range actual(expected);
  Block latched(MuonCase(), 1);
  latched.block.has_norm = true;
  Step(kSome, DType::kF32, latched.block, expected, actual);
}

// Zeros stay zeros, with any eps, and the parameter decays.
TEST(MuonKernelsTest, ZerosStayZeros) {
  constexpr Matrices kSome = {40, 30, 3};
  for (const double eps : {0.0, 1e-300, 1e-7}) {
    SCOPED_TRACE(StrCat("eps ", eps));
    FormulaCase formula = MuonCase();
    formula.hypers[Muon::kEps] = eps;
    Range expected(formula, {}, Aligned(kSome), 1, 5);
    for (size_t i = 0; i < kSome.numel(); ++i) {
      expected.SetGrad(expected.list().slices[1].begin + i, 0);
    }
    const Range actual(expected);
    const Block latched(formula, 1);
    {
      const Range other(actual);
      Gpu gpu(kSome, DType::kF32, latched.block, other);
      gpu.Direct();
      gpu.Normalize();
      ExpectSame(gpu.x().Matrix(1), std::vector<float>(kSome.numel()), "x");
    }
    Step(kSome, DType::kF32, latched.block, expected, actual);
  }
}

// One element makes its whole matrix NaN, and no other: an infinity too, whose
// norm would divide all others to zeros.
TEST(MuonKernelsTest, AnElementThatIsNotFiniteMakesItsMatrixNan) {
  constexpr Matrices kSome = {40, 30, 3};
  for (const DType x_dtype : {DType::kF32, DType::kBF16}) {
    for (const float bad : {kInfinity, -kInfinity, kNan}) {
      for (const Storage& storage : Storages()) {
        SCOPED_TRACE(StrCat(storage.name(), " with ", bad));
        Range expected(MuonCase(), storage, Aligned(kSome), 1, 9);
        expected.SetGrad(
            expected.list().slices[1].begin + kSome.numel() / 2 + 7, bad);
        const Range actual(expected);
        const Block latched(MuonCase(), 2);
        const Range other(actual);
        Gpu gpu(kSome, x_dtype, latched.block, other);
        gpu.Direct();
        gpu.Normalize();
        for (size_t i = 0; i < kSome.count; ++i) {
          for (const float x : gpu.x().Matrix(i)) {
            ASSERT_EQ(std::isnan(x), i == 1) << "matrix " << i;
          }
        }
        Step(kSome, x_dtype, latched.block, expected, actual);
        if (HasFailure()) return;
      }
    }
  }
}

// The squares of finite elements are added in double, where they have room.
TEST(MuonKernelsTest, GreatAndTinyElementsAreNormalized) {
  constexpr Matrices kSome = {40, 30, 2};
  for (const float size : {1e37f, 1e-37f}) {
    SCOPED_TRACE(StrCat("elements of ", size));
    FormulaCase formula = MuonCase();
    formula.hypers[Muon::kEps] = 0;
    Range expected(formula, {}, Aligned(kSome), 1, 5);
    for (size_t i = 0; i < kSome.numel(); ++i) {
      expected.SetGrad(i, i % 3 == 0 ? size : -size / 2);
    }
    const Range actual(expected);
    Step(kSome, DType::kF32, Block(formula, 1).block, expected, actual);
  }
}

}  // namespace
}  // namespace shard::muon_test
