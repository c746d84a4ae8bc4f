// SPDX-License-Identifier: Apache-2.0
//
// The update of a range on a GPU has the bits of the update on the CPU: the
// kernels, compiled for the host, beside a stream of device "cpu", for every
// optimizer of elements and every combination of dtypes.

#include "kernels/cuda/update_elements.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/device/cuda/element_range.h"
#include "core/device/device.h"
#include "kernels/cpu/convert.h"
#include "kernels/formula/all.h"
#include "kernels/formula/narrow_states.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/kernel_inputs.h"
#include "tests/kernels/cuda/run_kernel.h"

namespace shard::update_elements_test {
namespace {

using testing::CaseOf;
using testing::FormulaCase;
using testing::kNoClip;

// How the tensors of a range are stored.
struct Storage {
  DType grad = DType::kF32;
  DType param = DType::kF32;
  bool master = false;
  bool stochastic = false;
  DType state = DType::kF32;

  std::string name() const {
    return StrCat("grad ", DTypeName(grad), ", param ", DTypeName(param),
                  master ? " with a master" : "",
                  stochastic ? " rounded stochastically" : "", ", state ",
                  DTypeName(state));
  }
};

std::vector<Storage> Storages(Formula formula) {
  std::vector<Storage> all;
  for (const DType grad : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType state : {DType::kF32, DType::kBF16, DType::kQ8}) {
      if (state != DType::kF32 && NarrowStateKinds(formula) == nullptr) {
        continue;
      }
      all.push_back({grad, DType::kF32, false, false, state});
      all.push_back({grad, DType::kBF16, true, false, state});
      all.push_back({grad, DType::kBF16, false, true, state});
      all.push_back({grad, DType::kF16, true, false, state});
      all.push_back({grad, DType::kF16, false, false, state});
    }
  }
  return all;
}

// Where slices begin, and what they are of their parameter.
struct Layout {
  size_t count;
  std::vector<UpdateSlice> slices;
  size_t offset;  // Elements before the range, so that it is not aligned.
};

// Two whole parameters and a part of one, with padding between them; the last
// tile is partial.
Layout Aligned() {
  return {2048, {{0, 700, 0, 4}, {768, 256, 0, 0}, {1024, 1000, 512, 2}}, 0};
}

// Slices that begin in the middle of a block and of a vector.
Layout Unaligned() {
  return {1600, {{0, 100, 300, 1}, {101, 3, 0, 3}, {115, 1400, 77, 0}}, 1};
}

// The tensors of a range, and the list that has them.
class Range {
 public:
  Range(const FormulaCase& formula, const Storage& storage,
        const Layout& layout, size_t num_sources, uint32_t seed)
      : storage_(storage), offset_(layout.offset) {
    const size_t size = layout.count + layout.offset;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto values = [&] {
      std::vector<float> made(size);
      for (float& value : made) value = normal(random);
      return made;
    };
    for (size_t w = 0; w < num_sources; ++w) {
      grads_.push_back(Narrowed(storage.grad, values()));
    }
    master_ = values();
    param_ = Narrowed(storage.param, master_);
    for (size_t s = 0; s < kMaxStates; ++s) {
      // Zeros are a valid state of each dtype.
      states_[s].resize(size * DTypeSize(storage.state));
      scales_[s].resize(size / kQ8Block + 1);
    }

    list_.slices = layout.slices;
    UpdateRange& range = list_.ranges.emplace_back();
    range.formula = formula.formula;
    range.count = layout.count;
    range.num_sources = num_sources;
    range.source_dtype = storage.grad;
    range.param_dtype = storage.param;
    range.stochastic_rounding = storage.stochastic;
    range.state_dtype = storage.state;
    range.num_states = formula.num_states;
    range.num_slices = layout.slices.size();
    Place();
  }
  Range(const Range& other)
      : storage_(other.storage_),
        offset_(other.offset_),
        grads_(other.grads_),
        param_(other.param_),
        master_(other.master_),
        states_(other.states_),
        scales_(other.scales_),
        keeps_sum_(other.keeps_sum_),
        list_(other.list_) {
    Place();
  }
  Range& operator=(const Range&) = delete;

  const UpdateList& list() const { return list_; }
  float* scales(size_t state) { return scales_[state].data(); }

  // Sets the gradients to what they were, plus something.
  void ChangeGrads(float value) {
    std::vector<float> wide(param_.size() / DTypeSize(storage_.param));
    for (auto& grad : grads_) {
      Widen(storage_.grad, grad.data(), wide.data(), wide.size());
      for (float& x : wide) x += value;
      grad = Narrowed(storage_.grad, wide);
    }
    Place();
  }
  void SetGrad(size_t i, float value) {
    Narrow(storage_.grad, &value,
           grads_[0].data() + (offset_ + i) * DTypeSize(storage_.grad), 1,
           nullptr);
  }

  // Makes the second source the sum that a norm pass keeps.
  void KeepSum() {
    keeps_sum_ = true;
    Place();
  }

  // Fails where an element of a slice differs. NaN is equal to NaN.
  void ExpectEqual(const Range& other) const {
    const UpdateRange& range = list_.ranges[0];
    for (const UpdateSlice& slice : list_.slices) {
      for (size_t i = slice.begin; i < slice.begin + slice.count; ++i) {
        Expect("param", i, Float(storage_.param, param_, i),
               Float(storage_.param, other.param_, i));
        if (storage_.master) {
          Expect("master", i, master_[offset_ + i], other.master_[offset_ + i]);
        }
        for (size_t s = 0; s < range.num_states; ++s) {
          const std::string what = StrCat("state ", s);
          if (storage_.state == DType::kQ8) {
            ASSERT_EQ(states_[s][offset_ + i], other.states_[s][offset_ + i])
                << what << " of element " << i;
            const size_t b = i / kQ8Block;
            Expect("scale", i, scales_[s][b], other.scales_[s][b]);
          } else {
            Expect(what, i, Float(storage_.state, states_[s], i),
                   Float(storage_.state, other.states_[s], i));
          }
        }
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }

 private:
  using Bytes = std::vector<unsigned char>;

  static Bytes Narrowed(DType dtype, const std::vector<float>& from) {
    Bytes made(from.size() * DTypeSize(dtype));
    Narrow(dtype, from.data(), made.data(), from.size(), nullptr);
    return made;
  }

  float Float(DType dtype, const Bytes& tensor, size_t i) const {
    float value = 0;
    Widen(dtype, tensor.data() + (offset_ + i) * DTypeSize(dtype), &value, 1);
    return value;
  }

  static void Expect(std::string_view what, size_t i, float a, float b) {
    if (std::isnan(a) && std::isnan(b)) return;
    ASSERT_EQ(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b))
        << what << " of element " << i << ": " << a << " and " << b;
  }

  void Place() {
    UpdateRange& range = list_.ranges[0];
    list_.sources.clear();
    for (const Bytes& grad : grads_) {
      list_.sources.push_back(grad.data() + offset_ * DTypeSize(storage_.grad));
    }
    range.param = param_.data() + offset_ * DTypeSize(storage_.param);
    range.keeps_sum = keeps_sum_;
    if (keeps_sum_) {
      range.own_grads = grads_[1].data() + offset_ * DTypeSize(storage_.grad);
    }
    if (storage_.master) range.master = master_.data() + offset_;
    for (size_t s = 0; s < range.num_states; ++s) {
      range.states[s] = states_[s].data() + offset_ * DTypeSize(storage_.state);
      range.scales[s] = scales_[s].data();
    }
  }

  Storage storage_;
  size_t offset_;
  std::vector<Bytes> grads_;
  Bytes param_;
  std::vector<float> master_;
  std::array<Bytes, kMaxStates> states_;
  std::array<std::vector<float>, kMaxStates> scales_;
  bool keeps_sum_ = false;
  UpdateList list_;
};

// Runs the kernel on a grid that is no divisor of the tiles.
void UpdateAsGpu(const FormulaCase& formula, const StepBlock& block,
                 const Range& range,
                 const GradientSources* gradients = nullptr) {
  const UpdateList& list = range.list();
  const auto slices = cuda::ElementSlices(list, list.ranges[0]);
  cuda::UpdateElementsArgs args = {
      cuda::ElementRangeOf(list, list.ranges[0], slices, slices.data(),
                           list.sources.data()),
      &block};
  if (gradients != nullptr) {
    cuda::ReadGradients(*gradients, gradients->data, &args.range);
  }
  testing::RunKernel(StrCat("shard_update_", formula.name), args, {1, 96});
}

void UpdateAsCpu(const StepBlock& block, const Range& range,
                 const GradientSources* gradients = nullptr) {
  const auto device = OpenDevice("cpu");
  ASSERT_OK(device);
  const auto stream = (*device)->CreateStream(StreamKind::kCompute);
  ASSERT_OK(stream);
  (*stream)->Update(range.list(), 0, &block, gradients);
  ASSERT_OK((*stream)->Synchronize(Deadline::After(60)));
}

std::vector<FormulaCase> ElementCases() {
  return {
#define SHARD_CASE(Name) CaseOf<Name>(Formula::k##Name, #Name),
      SHARD_ELEMENT_FORMULAS(SHARD_CASE)
#undef SHARD_CASE
  };
}

// A block with one row for each of three steps.
struct Block {
  Block(const FormulaCase& formula, int64_t step) {
    for (int64_t r = 0; r < 3; ++r) {
      rows[r] = {step + r, {formula.formula, formula.hypers.data(), step + r}};
    }
    block.gradient_scale = block.scale = 0.25;
    block.clip_value = kNoClip;
    block.seed = 0x123456789ABCDEF;
    block.random_step = static_cast<uint32_t>(step);
    block.SetRows(rows, nullptr);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  StepRow rows[3];
  StepBlock block = {};
};

class UpdateElementsTest : public ::testing::TestWithParam<FormulaCase> {
 protected:
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

TEST_P(UpdateElementsTest, HasTheBitsOfTheCpu) {
  for (const Storage& storage : Storages(GetParam().formula)) {
    Train(storage, Aligned(), 1, kNoClip);
    Train(storage, Aligned(), 3, 0.3);
  }
}

TEST_P(UpdateElementsTest, ReadsSlicesThatAreNotAligned) {
  for (const Storage& storage : Storages(GetParam().formula)) {
    // Blocks of 8 bits are aligned.
    if (storage.state == DType::kQ8) continue;
    Train(storage, Unaligned(), 2, kNoClip);
  }
}

TEST_P(UpdateElementsTest, SlicesDoTheStepOfTheirRow) {
  const std::array<uint32_t, 5> rows = {1, 0, kNotStepped, 2, 0};
  for (const Storage& storage : Storages(GetParam().formula)) {
    Train(storage, Aligned(), 1, kNoClip, rows.data());
  }
}

TEST_P(UpdateElementsTest, KeepsInfinityAndNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Storage& storage : Storages(GetParam().formula)) {
    SCOPED_TRACE(storage.name());
    Range before(GetParam(), storage, Aligned(), 1, 9);
    before.SetGrad(3, kInfinity);
    before.SetGrad(800, std::numeric_limits<float>::quiet_NaN());
    before.SetGrad(1030, -kInfinity);
    const Block latched(GetParam(), 2);
    Range expected(before);
    Range actual(before);
    UpdateAsCpu(latched.block, expected);
    UpdateAsGpu(GetParam(), latched.block, actual);
    actual.ExpectEqual(expected);
    if (HasFailure()) return;
  }
}

// A norm pass has left the sum of all sources in one of them.
TEST_P(UpdateElementsTest, ReadsTheSumThatANormPassLeft) {
  Range before(GetParam(), {}, Aligned(), 3, 5);
  before.KeepSum();
  Block latched(GetParam(), 1);
  latched.block.has_norm = true;
  Range expected(before);
  Range actual(before);
  UpdateAsCpu(latched.block, expected);
  UpdateAsGpu(GetParam(), latched.block, actual);
  actual.ExpectEqual(expected);
}

// The sources are read where no norm pass has run; and what the host gives is
// read in any case.
TEST_P(UpdateElementsTest, ReadsTheGradientsThatItIsGiven) {
  Range before(GetParam(), {}, Aligned(), 3, 5);
  before.KeepSum();
  const Range others(GetParam(), {}, Aligned(), 2, 6);
  const GradientSources gradients =
      others.list().GradientsOf(others.list().ranges[0], false);
  for (const bool has_norm : {false, true}) {
    for (const GradientSources* const given :
         {static_cast<const GradientSources*>(nullptr), &gradients}) {
      Block latched(GetParam(), 1);
      latched.block.has_norm = has_norm;
      Range expected(before);
      Range actual(before);
      UpdateAsCpu(latched.block, expected, given);
      UpdateAsGpu(GetParam(), latched.block, actual, given);
      actual.ExpectEqual(expected);
    }
  }
}

TEST_P(UpdateElementsTest, ReadsMoreSourcesThanAnArgumentHas) {
  const Range before(GetParam(), {}, Aligned(), 40, 5);
  const Block latched(GetParam(), 1);
  Range expected(before);
  Range actual(before);
  UpdateAsCpu(latched.block, expected);
  UpdateAsGpu(GetParam(), latched.block, actual);
  actual.ExpectEqual(expected);
}

TEST_P(UpdateElementsTest, ASkippedStepWritesNothing) {
  Block latched(GetParam(), 1);
  latched.block.skipped = true;
  const Range before(GetParam(), {}, Aligned(), 1, 3);
  const Range actual(before);
  UpdateAsGpu(GetParam(), latched.block, actual);
  actual.ExpectEqual(before);
}

INSTANTIATE_TEST_SUITE_P(Formulas, UpdateElementsTest,
                         ::testing::ValuesIn(ElementCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shard::update_elements_test
