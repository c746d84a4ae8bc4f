// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a range, to update on the CPU and with the kernels of a GPU.

#ifndef SHARD_TESTS_KERNELS_CUDA_TEST_RANGE_H_
#define SHARD_TESTS_KERNELS_CUDA_TEST_RANGE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/device/device.h"
#include "core/device/step_block.h"
#include "core/device/update_list.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/q8.h"
#include "kernels/cpu/tensor_step.h"
#include "kernels/formula/all.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/kernel_inputs.h"

namespace shard::testing {

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

// Where slices begin, and what they are of their parameter.
struct Layout {
  size_t count;
  std::vector<UpdateSlice> slices;
  size_t offset;  // Elements before the range, so that it is not aligned.
  // Those of the slices, where the formula steps whole parameters.
  std::vector<std::vector<int64_t>> shapes = {};
};

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
    list_.slices = layout.slices;
    UpdateRange& range = list_.ranges.emplace_back();
    range.formula = formula.formula;
    range.is_tensor = !layout.shapes.empty();
    state_numels_.fill(layout.count);
    if (range.is_tensor) AddTensors(layout);
    for (size_t s = 0; s < kMaxStates; ++s) {
      // Zeros are a valid state of each dtype.
      const size_t numel = state_numels_[s] + layout.offset;
      states_[s].resize(numel * DTypeSize(storage.state));
      scales_[s].resize(numel / kQ8Block + 1);
    }
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
        state_numels_(other.state_numels_),
        workspace_(other.workspace_),
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
        for (size_t s = 0; s < range.num_states && !range.is_tensor; ++s) {
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
    if (range.is_tensor) ExpectEqualStates(other);
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

  // Adds the tensors of the slices. Those with states of other shapes have them
  // one after the other, with an element between two of them.
  void AddTensors(const Layout& layout) {
    const UpdateRange& range = list_.ranges[0];
    if (range.formula == Formula::kAdafactor) state_numels_.fill(0);
    size_t most = 0;
    for (size_t i = 0; i < layout.shapes.size(); ++i) {
      const std::vector<int64_t>& shape = layout.shapes[i];
      const auto ndim = static_cast<int>(shape.size());
      TensorSlice& added = list_.tensors.emplace_back();
      added.shape = list_.sizes.size();
      added.ndim = ndim;
      added.batch = 1;
      list_.sizes.insert(list_.sizes.end(), shape.begin(), shape.end());
      added.stride = layout.slices[i].count;
      added.copy = added.stride +
                   TensorScratchElements(range.formula, shape.data(), ndim);
      most = std::max(most, added.copy + layout.slices[i].count);
      added.state_begins.fill(layout.slices[i].begin);
      if (range.formula != Formula::kAdafactor) continue;
      for (int s = 0; s < Adafactor::kNumStates; ++s) {
        size_t& numel = state_numels_[static_cast<size_t>(s)];
        added.state_begins[static_cast<size_t>(s)] = numel;
        numel += 1 + static_cast<size_t>(
                         Adafactor::StateNumel(s, shape.data(), ndim));
      }
    }
    workspace_.resize(most);
  }

  // Compares all of the states, what lies between them too.
  void ExpectEqualStates(const Range& other) const {
    for (size_t s = 0; s < list_.ranges[0].num_states; ++s) {
      for (size_t i = 0; i < state_numels_[s]; ++i) {
        Expect(StrCat("state ", s), i, Float(DType::kF32, states_[s], i),
               Float(DType::kF32, other.states_[s], i));
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }

  void Place() {
    list_.workspace = workspace_.data();
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
  std::array<size_t, kMaxStates> state_numels_;
  std::vector<float> workspace_;  // Of the CPU.
  bool keeps_sum_ = false;
  UpdateList list_;
};

inline void UpdateAsCpu(const StepBlock& block, const Range& range,
                        const GradientSources* gradients = nullptr) {
  const auto device = OpenDevice("cpu");
  ASSERT_OK(device);
  const auto stream = (*device)->CreateStream(StreamKind::kCompute);
  ASSERT_OK(stream);
  (*stream)->Update(range.list(), 0, StepBlocks::Shared(&block), gradients);
  ASSERT_OK((*stream)->Synchronize(Deadline::After(60)));
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

}  // namespace shard::testing

#endif  // SHARD_TESTS_KERNELS_CUDA_TEST_RANGE_H_
