// SPDX-License-Identifier: Apache-2.0
//
// The norm passes of a GPU have the bits of those on the CPU: the kernels,
// compiled for the host, beside core/device/cpu. Any grid gives the same sum.

#include "kernels/cuda/norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/device/device.h"
#include "core/device/step_block.h"
#include "core/device/update_list.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/norm.h"
#include "tests/core/base/expect_status.h"
#include "tests/kernels/cuda/run_kernel.h"

namespace shard::cuda_norm_test {
namespace {

using testing::Grid;
using testing::kGrids;
using testing::RunKernel;
using testing::SameFloat;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

StepBlock BlockOf(NormType type, double p = 0) {
  StepBlock block = {};
  block.gradient_scale = 0.25;
  block.has_norm = true;
  block.norm_type = type;
  block.norm_p = p;
  return block;
}

// Gradients of some ranks, and the list that has them as one range.
class Gradients {
 public:
  Gradients(DType dtype, const std::vector<std::vector<float>>& ranks,
            size_t offset = 0, bool keeps_sum = false)
      : dtype_(dtype), offset_(offset), keeps_sum_(keeps_sum) {
    for (const std::vector<float>& values : ranks) {
      std::vector<float> placed(offset);
      placed.insert(placed.end(), values.begin(), values.end());
      auto& made = ranks_.emplace_back(placed.size() * DTypeSize(dtype));
      Narrow(dtype, placed.data(), made.data(), placed.size(), nullptr);
    }
    UpdateRange& range = list_.ranges.emplace_back();
    range.count = ranks[0].size();
    range.num_sources = ranks.size();
    range.source_dtype = dtype;
    range.keeps_sum = keeps_sum;
    Place();
  }
  Gradients(const Gradients& other)
      : dtype_(other.dtype_),
        offset_(other.offset_),
        keeps_sum_(other.keeps_sum_),
        ranks_(other.ranks_),
        list_(other.list_) {
    Place();
  }
  Gradients& operator=(const Gradients&) = delete;

  const UpdateList& list() const { return list_; }

  cuda::AddToNormArgs Args(const StepBlock& block, NormPass pass, NormSum* sum,
                           cuda::NormScratch* scratch) const {
    const UpdateRange& range = list_.ranges[0];
    const GradientSources sources = list_.GradientsOf(range, false);
    cuda::AddToNormArgs args = {};
    args.sources = cuda::SourcesOf(sources.data, sources.count, sources.dtype,
                                   sources.data);
    args.kept =
        range.keeps_sum ? static_cast<float*>(range.own_grads) : nullptr;
    args.count = range.count;
    args.pass = pass;
    args.block = &block;
    args.sum = sum;
    args.scratch = scratch;
    return args;
  }

  void ExpectEqual(const Gradients& other) const {
    if (dtype_ != DType::kF32) {
      EXPECT_EQ(ranks_, other.ranks_);
      return;
    }
    for (size_t w = 0; w < ranks_.size(); ++w) {
      for (size_t i = 0; i < ranks_[w].size(); i += sizeof(float)) {
        float a = 0;
        float b = 0;
        std::memcpy(&a, ranks_[w].data() + i, sizeof(a));
        std::memcpy(&b, other.ranks_[w].data() + i, sizeof(b));
        ASSERT_TRUE(SameFloat(a, b)) << i << ": " << a << " and " << b;
      }
    }
  }

 private:
  void Place() {
    list_.sources.clear();
    for (auto& rank : ranks_) {
      list_.sources.push_back(rank.data() + offset_ * DTypeSize(dtype_));
    }
    if (keeps_sum_) {
      list_.ranges[0].own_grads =
          ranks_.back().data() + offset_ * DTypeSize(dtype_);
    }
  }

  DType dtype_;
  size_t offset_;
  bool keeps_sum_;
  std::vector<std::vector<unsigned char>> ranks_;
  UpdateList list_;
};

void AddAsCpu(const Gradients& gradients, const StepBlock& block, NormPass pass,
              NormSum* sum) {
  const auto device = OpenDevice("cpu");
  ASSERT_OK(device);
  const auto stream = (*device)->CreateStream(StreamKind::kCompute);
  ASSERT_OK(stream);
  (*stream)->AddToNorm(gradients.list(), 0, pass, &block, sum);
  ASSERT_OK((*stream)->Synchronize(Deadline::After(60)));
}

void AddAsGpu(const Gradients& gradients, const StepBlock& block, NormPass pass,
              const Grid& grid, NormSum* sum) {
  cuda::NormScratch scratch = {};
  RunKernel("shard_add_to_norm", gradients.Args(block, pass, sum, &scratch),
            grid);
  const cuda::NormScratch zeros = {};
  EXPECT_EQ(std::memcmp(&scratch, &zeros, sizeof(zeros)), 0)
      << "the launch left something";
}

void ExpectEqual(const NormSum& actual, const NormSum& expected) {
  constexpr uint64_t kInfinityBits = 0x7F800000;
  if (expected.largest_bits > kInfinityBits) {
    EXPECT_GT(actual.largest_bits, kInfinityBits);
    return;
  }
  EXPECT_EQ(actual.largest_bits, expected.largest_bits);
  if (expected.largest_bits == kInfinityBits) return;
  for (size_t i = 0; i < ExactSum::kNumWords; ++i) {
    EXPECT_EQ(actual.terms.words[i], expected.terms.words[i]) << "word " << i;
  }
}

// Compares norms 1, 2 and infinity, and what is kept, on all grids.
void Compare(const Gradients& before) {
  for (const NormType type : {NormType::kOne, NormType::kTwo, NormType::kInf}) {
    const StepBlock block = BlockOf(type);
    Gradients expected_grads(before);
    NormSum expected = {};
    AddAsCpu(expected_grads, block, NormPass::kFirst, &expected);
    for (const Grid& grid : kGrids) {
      SCOPED_TRACE(StrCat("norm type ", static_cast<int>(type), ", ",
                          grid.blocks, " blocks"));
      const Gradients grads(before);
      NormSum sum = {};
      AddAsGpu(grads, block, NormPass::kFirst, grid, &sum);
      ExpectEqual(sum, expected);
      grads.ExpectEqual(expected_grads);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

std::vector<float> Normal(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Returns values of all exponents in [low, high], denormals included.
std::vector<float> Wide(size_t count, int low, int high, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> exponent(low, high);
  std::uniform_real_distribution<float> mantissa(1, 2);
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::ldexp(mantissa(random), exponent(random));
    if (random() % 2 == 0) value = -value;
    if (random() % 16 == 0) value = 0;
  }
  return values;
}

TEST(AddToNorm, HasTheBytesOfTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const size_t count : {0, 1, 255, 1024, 1025, 9000}) {
      for (size_t ranks = 1; ranks <= 3; ++ranks) {
        for (const size_t offset : {0, 1, 4}) {
          SCOPED_TRACE(StrCat(DTypeName(dtype), ", ", count, " of ", ranks,
                              " ranks from ", offset));
          std::vector<std::vector<float>> values;
          for (uint32_t w = 0; w < ranks; ++w) {
            values.push_back(Normal(count, w));
          }
          Compare(Gradients(dtype, values, offset));
          if (dtype == DType::kF32) {
            Compare(Gradients(dtype, values, offset, true));
          }
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(AddToNorm, LosesNothingOfMixedExponents) {
  // Around the span that one pass adds, and up to all exponents.
  for (int span = 0; span <= 30; ++span) {
    for (const int low : {-149, -126, -10, 127 - span}) {
      SCOPED_TRACE(StrCat("exponents from ", low, ", ", span, " more"));
      Compare(Gradients(DType::kF32, {Wide(1500, low, low + span, 3)}));
      if (HasFailure()) return;
    }
  }
  Compare(Gradients(DType::kF32, {Wide(20000, -149, 127, 5)}));
}

TEST(AddToNorm, LosesNothingOfExtremeValues) {
  for (const std::vector<float>& values : std::vector<std::vector<float>>{
           std::vector<float>(3000, kLargest),
           std::vector<float>(3000, kDenormal),
           std::vector<float>(3000, 0.0f),
           std::vector<float>(3000, -0.0f),
           // The greatest remainders: halves of units, all of one sign.
           std::vector<float>(3000, 0x1.fffffep-1f),
           std::vector<float>(3000, 0x1.000002p0f),
           {kLargest, kDenormal, -kLargest, 1.0f, -kDenormal}}) {
    SCOPED_TRACE(values[0]);
    Compare(Gradients(DType::kF32, {values}));
  }
}

TEST(AddToNorm, RecordsInfinityAndNan) {
  for (const float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
    for (const size_t at : {0, 1100, 2999}) {
      std::vector<float> values = Normal(3000, 7);
      values[at] = bad;
      SCOPED_TRACE(StrCat(bad, " at ", at));
      Compare(Gradients(DType::kF32, {values}));
      Compare(Gradients(DType::kF32, {values, Normal(3000, 8)}, 0, true));
    }
  }
  std::vector<float> values = Normal(3000, 7);
  values[5] = kInfinity;
  values[2000] = kNan;
  Compare(Gradients(DType::kF32, {values}));
}

TEST(AddToNorm, AddsSeveralRangesToOneSum) {
  const StepBlock block = BlockOf(NormType::kTwo);
  NormSum expected = {};
  NormSum sum = {};
  cuda::NormScratch scratch = {};
  for (uint32_t range = 0; range < 20; ++range) {
    // Carries go far: the sum has bits of all words.
    const Gradients grads(DType::kF32,
                          {Wide(1000 + 37 * range, -149, 127, range)});
    AddAsCpu(grads, block, NormPass::kFirst, &expected);
    RunKernel("shard_add_to_norm",
              grads.Args(block, NormPass::kFirst, &sum, &scratch),
              kGrids[range % 4]);
  }
  ExpectEqual(sum, expected);
}

TEST(AddToNorm, ReadsMoreSourcesThanAnArgumentHas) {
  std::vector<std::vector<float>> ranks;
  for (uint32_t w = 0; w < 40; ++w) ranks.push_back(Normal(1500, w));
  Compare(Gradients(DType::kBF16, ranks));
}

// As on a device whose streams run at once.
TEST(AddToNorm, StreamsRunAtOnce) {
  const StepBlock block = BlockOf(NormType::kTwo);
  const Gradients grads(DType::kF32, {Normal(50000, 1)});
  NormSum expected = {};
  AddAsCpu(grads, block, NormPass::kFirst, &expected);
  std::vector<NormSum> sums(4);
  std::vector<std::thread> threads;
  for (NormSum& sum : sums) {
    threads.emplace_back(
        [&] { AddAsGpu(grads, block, NormPass::kFirst, kGrids[2], &sum); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const NormSum& sum : sums) ExpectEqual(sum, expected);
}

// Returns the block after both passes of all norms.
StepBlock Finish(StepBlock block, const Gradients& before, bool gpu,
                 const Grid& grid = kGrids[1]) {
  const Gradients ranks[] = {before, before};
  for (const NormPass pass : {NormPass::kFirst, NormPass::kSecond}) {
    std::vector<NormSum> sums(2);
    for (size_t r = 0; r < sums.size(); ++r) {
      if (gpu) {
        AddAsGpu(ranks[r], block, pass, grid, &sums[r]);
      } else {
        AddAsCpu(ranks[r], block, pass, &sums[r]);
      }
    }
    if (!gpu) {
      NormSum all = sums[0];
      MergeNorm(sums[1], &all);
      FinishNorm(pass, all, &block);
      continue;
    }
    cuda::FinishNormArgs args = {pass, 2, sums.data(), &block};
    RunKernel("shard_finish_norm", args, grid);
  }
  return block;
}

void ExpectBlock(const StepBlock& actual, const StepBlock& expected) {
  EXPECT_EQ(actual.skipped, expected.skipped);
  if (expected.skipped) {
    EXPECT_EQ(std::isnan(actual.grad_norm), std::isnan(expected.grad_norm));
    return;
  }
  EXPECT_EQ(actual.grad_norm, expected.grad_norm);
  // Where the factor of gradients is negative, too.
  EXPECT_GE(actual.grad_norm, 0);
  EXPECT_EQ(actual.scale, expected.scale);
  EXPECT_EQ(actual.largest, expected.largest);
}

TEST(FinishNorm, HasTheBitsOfTheCpu) {
  const std::vector<float> small = Wide(2000, -140, -120, 1);
  for (const NormType type : {NormType::kOne, NormType::kTwo, NormType::kInf}) {
    for (const double max_norm : {0.0, 1e-3, 1e30}) {
      for (const double scale : {0.25, -0.5, 3e38}) {
        StepBlock block = BlockOf(type);
        block.max_grad_norm = max_norm;
        block.gradient_scale = scale;
        for (const std::vector<float>& values :
             {Normal(3000, 1), small, std::vector<float>(10, 0.0f),
              std::vector<float>(3000, kLargest),
              std::vector<float>{1, kInfinity}, std::vector<float>{1, kNan}}) {
          const Gradients grads(DType::kF32, {values});
          ExpectBlock(Finish(block, grads, true), Finish(block, grads, false));
        }
      }
    }
  }
}

TEST(PowerNorm, IsCloseToTheCpus) {
  for (const double p : {0.5, 1.0, 1.5, 2.0, 3.0, 8.0, 100.0}) {
    for (const std::vector<float>& values :
         {Normal(3000, 1), Wide(3000, -149, 127, 2), Wide(3000, -30, 0, 3),
          std::vector<float>(3000, kLargest), std::vector<float>{0, 1e-30f},
          std::vector<float>(3000, kDenormal)}) {
      SCOPED_TRACE(StrCat("p ", p, ", ", values[0], " and more"));
      StepBlock block = BlockOf(NormType::kP, p);
      block.gradient_scale = 1;
      block.max_grad_norm = 0.5;
      std::vector<float> halves = values;
      for (float& half : halves) half *= -0.5f;
      for (const bool keeps : {false, true}) {
        const Gradients grads(DType::kF32, {values, halves}, 0, keeps);
        const StepBlock expected = Finish(block, grads, false);
        const StepBlock actual = Finish(block, grads, true);
        EXPECT_EQ(actual.largest, expected.largest);
        EXPECT_EQ(actual.skipped, expected.skipped);
        EXPECT_NEAR(actual.grad_norm / expected.grad_norm, 1, 1e-13);
        EXPECT_NEAR(actual.scale / expected.scale, 1, 1e-13);
        for (const Grid& grid : kGrids) {
          const StepBlock other = Finish(block, grads, true, grid);
          EXPECT_EQ(other.grad_norm, actual.grad_norm);
        }
      }
    }
  }
}

// A term is rounded by itself, to a multiple of 2^-78.
TEST(PowerNorm, IsTheSameInAnyOrderAndInParts) {
  std::vector<float> values = Wide(3000, -40, 0, 4);
  StepBlock block = BlockOf(NormType::kP, 3);
  block.largest = 1;
  NormSum expected = {};
  AddAsGpu(Gradients(DType::kF32, {values}), block, NormPass::kSecond,
           kGrids[1], &expected);
  constexpr int kBitsBelow = -78 - ExactSum::kLowestExponent;
  for (int bit = 0; bit < kBitsBelow; ++bit) {
    ASSERT_EQ(expected.terms.words[bit / 64] >> bit % 64 & 1, 0u) << bit;
  }
  for (const size_t split : {0, 1, 1024, 1717}) {
    std::shuffle(values.begin(), values.end(), std::mt19937(split));
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(split);
    NormSum sum = {};
    for (const std::vector<float>& part :
         {std::vector<float>(values.begin(), middle),
          std::vector<float>(middle, values.end())}) {
      AddAsGpu(Gradients(DType::kF32, {part}), block, NormPass::kSecond,
               kGrids[1], &sum);
    }
    SCOPED_TRACE(split);
    ExpectEqual(sum, expected);
  }
}

TEST(PowerNorm, NeedsNoSecondPassWithoutFiniteGradients) {
  for (const std::vector<float>& values :
       {std::vector<float>(3000, 0.0f), std::vector<float>{1, kInfinity},
        std::vector<float>{1, kNan}}) {
    const StepBlock block = BlockOf(NormType::kP, 3);
    const Gradients grads(DType::kF32, {values});
    const StepBlock finished = Finish(block, grads, true);
    ExpectBlock(finished, Finish(block, grads, false));
    NormSum sum = {};
    AddAsGpu(grads, finished, NormPass::kSecond, kGrids[1], &sum);
    ExpectEqual(sum, {});
  }
}

// A p so small that the norm is not finite: the step is skipped.
TEST(PowerNorm, OverflowsAsOnTheCpu) {
  const StepBlock block = BlockOf(NormType::kP, 0.005);
  const Gradients grads(DType::kF32, {Normal(3000, 1)});
  const StepBlock expected = Finish(block, grads, false);
  EXPECT_TRUE(expected.skipped);
  ExpectBlock(Finish(block, grads, true), expected);
}

}  // namespace
}  // namespace shard::cuda_norm_test
