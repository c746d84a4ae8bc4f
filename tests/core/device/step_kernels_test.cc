// SPDX-License-Identifier: Apache-2.0
//
// The operations of a step on a stream have the bits of the kernels that are
// called directly, on every device.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/fused_step.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/muon_step.h"
#include "kernels/cpu/newton_schulz.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/tensor_step.h"
#include "kernels/formula/all.h"
#include "kernels/formula/narrow_states.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/devices_test.h"
#include "tests/core/device/kernel_inputs.h"
#include "tests/kernels/cpu/fake_cblas.h"

namespace shard::step_kernels_test {
namespace {

using testing::ArgsOf;
using testing::CaseOf;
using testing::FormulaCase;
using testing::FusedTensors;
using testing::kCount;
using testing::kNoClip;
using testing::Latched;
using testing::ListOf;
using testing::Lists;
using testing::Magnitudes;
using testing::Tensors;
using testing::Values;

std::vector<FormulaCase> ElementCases() {
  return {
#define SHARD_CASE(Name) CaseOf<Name>(Formula::k##Name, #Name),
      SHARD_ELEMENT_FORMULAS(SHARD_CASE)};
}

std::vector<FormulaCase> TensorCases() {
  return {SHARD_CASE(Adafactor) SHARD_CASE(Lamb)};
}
#undef SHARD_CASE

class StepKernelsTest : public testing::DevicesTest {};

INSTANTIATE_TEST_SUITE_P(
    Devices, StepKernelsTest,
    ::testing::ValuesIn(testing::DeviceSpecs({"cpu", "cpu-async"})));

TEST_P(StepKernelsTest, UpdatesElements) {
  for (const FormulaCase& formula : ElementCases()) {
    SCOPED_TRACE(formula.name);
    for (const DType param : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const DType state : {DType::kF32, DType::kQ8}) {
        if (state == DType::kQ8 &&
            NarrowStateKinds(formula.formula) == nullptr) {
          continue;
        }
        const Latched latched(formula, 4);
        const Tensors before = FusedTensors(param, state);
        Tensors expected = before;
        FusedStep(
            formula.formula, latched.row.scalars.data(),
            ArgsOf(ListOf(formula, param, state, &expected), latched.block));
        ASSERT_FALSE(expected == before);
        for (const auto& stream : streams_) {
          Tensors actual = before;
          UpdateList list = ListOf(formula, param, state, &actual);
          ASSERT_OK(device_->Prepare(&list));
          Run(stream.get(), {}, [&](Lists*) {
            stream->Update(list, 0, StepBlocks::Shared(&latched.block),
                           nullptr);
          });
          EXPECT_TRUE(actual == expected);

          // Gradients that lie elsewhere; their list is the caller's.
          actual = before;
          Run(stream.get(), {.sources = std::exchange(list.sources, {})},
              [&](Lists* on_stack) {
                const GradientSources gradients = on_stack->gradients();
                stream->Update(list, 0, StepBlocks::Shared(&latched.block),
                               &gradients);
              });
          EXPECT_TRUE(actual == expected);
        }
      }
    }
  }
}

TEST_P(StepKernelsTest, ASkippedStepWritesNothing) {
  for (const FormulaCase& formula : ElementCases()) {
    Latched latched(formula, 4);
    latched.block.skipped = true;
    const Tensors before = FusedTensors(DType::kBF16, DType::kF32);
    for (const auto& stream : streams_) {
      Tensors actual = before;
      UpdateList list = ListOf(formula, DType::kBF16, DType::kF32, &actual);
      ASSERT_OK(device_->Prepare(&list));
      stream->Update(list, 0, StepBlocks::Shared(&latched.block), nullptr);
      ASSERT_OK(stream->Synchronize(Deadline::After(60)));
      EXPECT_TRUE(actual == before);
    }
  }
}

// Slices of one row are one run; those of another row, or of none, end it.
TEST_P(StepKernelsTest, SlicesDoTheStepOfTheirRow) {
  const FormulaCase adamw = CaseOf<AdamW>(Formula::kAdamW, "AdamW");
  constexpr size_t kSlice = 500;
  const std::vector<uint32_t> rows_of = {0, 0, 1,           kNotStepped, 1,
                                         1, 0, kNotStepped, kNotStepped, 1};
  StepRow rows[2];
  for (int64_t r = 0; r < 2; ++r) {
    rows[r] = {r + 1, {adamw.formula, adamw.hypers.data(), r + 1}};
  }
  Latched latched(adamw, 1);
  latched.block.SetRows(rows, rows_of.data());
  for (const DType param : {DType::kF32, DType::kBF16}) {
    const Tensors before = FusedTensors(param, DType::kF32);
    const auto list_of = [&](Tensors* tensors) {
      UpdateList list = ListOf(adamw, param, DType::kF32, tensors);
      list.slices.clear();
      for (uint32_t i = 0; i < rows_of.size(); ++i) {
        list.slices.push_back({i * kSlice, kSlice, 0, i});
      }
      list.ranges[0].num_slices = list.slices.size();
      return list;
    };
    Tensors expected = before;
    const UpdateList whole = list_of(&expected);
    for (uint32_t i = 0; i < rows_of.size(); ++i) {
      if (rows_of[i] == kNotStepped) continue;
      FusedStepArgs args = ArgsOf(whole, latched.block);
      const size_t begin = i * kSlice;
      args.gradients_begin = begin;
      args.param =
          static_cast<unsigned char*>(args.param) + begin * DTypeSize(param);
      std::array<void*, kMaxStates> states = {};
      for (size_t s = 0; s < adamw.num_states; ++s) {
        states[s] = static_cast<float*>(args.states[s]) + begin;
      }
      args.states = states.data();
      args.random.param = i;
      args.random.first_element = 0;
      args.count = kSlice;
      FusedStep(adamw.formula, rows[rows_of[i]].scalars.data(), args);
    }
    for (const auto& stream : streams_) {
      Tensors actual = before;
      UpdateList list = list_of(&actual);
      ASSERT_OK(device_->Prepare(&list));
      stream->Update(list, 0, StepBlocks::Shared(&latched.block), nullptr);
      ASSERT_OK(stream->Synchronize(Deadline::After(60)));
      EXPECT_TRUE(actual == expected);
    }
  }
}

// A whole parameter of kShape, and its states.
constexpr std::array<int64_t, 2> kShape = {50, 100};

struct Parts {
  std::vector<float> param = Values(kCount, 1);
  std::array<std::vector<float>, kMaxStates> states = {
      Magnitudes(kCount, 2), Magnitudes(kCount, 2), Magnitudes(kCount, 2)};
  bool operator==(const Parts&) const = default;
};

UpdateList TensorList(const FormulaCase& formula, const float* grad,
                      size_t scratch_begin, float* workspace, Parts* parts) {
  UpdateList list;
  UpdateRange& range = list.ranges.emplace_back();
  range.formula = formula.formula;
  range.is_tensor = true;
  range.count = kCount;
  list.sources = {grad};
  range.num_sources = 1;
  range.source_dtype = DType::kF32;
  range.param_dtype = DType::kF32;
  range.param = parts->param.data();
  range.state_dtype = DType::kF32;
  range.num_states = formula.num_states;
  for (size_t s = 0; s < formula.num_states; ++s) {
    range.states[s] = parts->states[s].data();
  }
  range.num_slices = 1;
  list.slices.push_back({0, kCount, 0, 0});
  list.sizes.assign(kShape.begin(), kShape.end());
  list.tensors.push_back({0, 2, 1, scratch_begin, 0, {}});
  list.workspace = workspace;
  return list;
}

TEST_P(StepKernelsTest, UpdatesTensors) {
  for (const FormulaCase& formula : TensorCases()) {
    SCOPED_TRACE(formula.name);
    const std::vector<float> grad = Values(kCount, 3);
    std::vector<float> workspace(
        kCount + TensorScratchElements(formula.formula, kShape.data(), 2));
    const Latched latched(formula, 2);
    Parts expected;
    std::vector<float> scaled(kCount);
    const void* const source = grad.data();
    SumGradients({&source, 1, DType::kF32}, 0, kCount, latched.block.scale,
                 latched.block.clip_value, scaled.data());
    std::array<float*, kMaxStates> states = {};
    for (size_t s = 0; s < kMaxStates; ++s) {
      states[s] = expected.states[s].data();
    }
    TensorStepArgs args;
    args.grad = scaled.data();
    args.param = expected.param.data();
    args.states = states.data();
    args.shape = kShape.data();
    args.ndim = 2;
    args.scratch = workspace.data() + kCount;
    TensorStep(formula.formula, latched.row.scalars.data(), args);
    ASSERT_FALSE(expected == Parts());
    for (const auto& stream : streams_) {
      Parts actual;
      UpdateList list =
          TensorList(formula, grad.data(), kCount, workspace.data(), &actual);
      ASSERT_OK(device_->Prepare(&list));
      stream->Update(list, 0, StepBlocks::Shared(&latched.block), nullptr);
      ASSERT_OK(stream->Synchronize(Deadline::After(60)));
      EXPECT_TRUE(actual == expected);
    }
  }
}

// An update of several kernels is made as a whole, or not at all, where its
// stream is failed while it is enqueued, now or behind a call.
TEST_P(StepKernelsTest, AFailureCutsNoUpdate) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRuns = 60;
  for (const FormulaCase& formula : TensorCases()) {
    SCOPED_TRACE(formula.name);
    const std::vector<float> grad = Values(kCount, 3);
    std::vector<float> workspace(
        kCount + TensorScratchElements(formula.formula, kShape.data(), 2));
    const Latched latched(formula, 2);
    const Parts before;
    Parts actual;
    UpdateList list =
        TensorList(formula, grad.data(), kCount, workspace.data(), &actual);
    ASSERT_OK(device_->Prepare(&list));
    // Returns the parts after an update whose stream is failed after `delay`,
    // if any, from the time at which the update can be enqueued.
    Clock::duration took = {};
    const auto update = [&](bool later, std::optional<Clock::duration> delay) {
      actual = before;  // At the same addresses.
      auto stream = device_->CreateStream(StreamKind::kCommunication);
      EXPECT_OK(stream);
      std::atomic<bool> begun = false;
      if (later) {
        (*stream)->Call("a call", [&]() -> Status {
          while (!begun) std::this_thread::yield();
          return Status();
        });
      }
      std::thread failing([&] {
        while (!begun) std::this_thread::yield();
        if (!delay.has_value()) return;
        const auto end = Clock::now() + *delay;
        while (Clock::now() < end) continue;
        (*stream)->Fail(Cancelled("a failure"));
      });
      const auto enqueue = [&] {
        (*stream)->Update(list, 0, StepBlocks::Shared(&latched.block), nullptr);
      };
      if (later) enqueue();
      begun = true;
      const auto start = Clock::now();
      if (!later) enqueue();
      const Status done = (*stream)->Synchronize(Deadline::After(60));
      took = Clock::now() - start;
      EXPECT_TRUE(done.ok() || delay.has_value());
      failing.join();
      stream->reset();
      return actual;
    };
    for (const bool later : {false, true}) {
      const Parts expected = update(later, std::nullopt);
      ASSERT_FALSE(expected == before);
      const Clock::duration whole = took;
      for (int run = 0; run < kRuns; ++run) {
        const Parts after = update(later, whole * run / kRuns);
        EXPECT_TRUE(after == before || after == expected);
      }
    }
  }
}

TEST_P(StepKernelsTest, UpdatesMatricesOnTheBlasOfTheDevice) {
  const BlasLibrary library(FakeCblasPath("plain"));
  auto blas = Blas::Load();
  ASSERT_OK(blas);
  for (int i = 0; i < 2; ++i) {
    const auto name = device_->LoadBlas();
    ASSERT_OK(name);
    EXPECT_EQ(*name, FakeCblasPath("plain"));
  }
  const FormulaCase muon = CaseOf<Muon>(Formula::kMuon, "Muon");
  const Latched latched(muon, 1);
  const std::vector<float> grad = Values(kCount, 3);
  constexpr size_t kAligned = 5008;
  auto memory = device_->Allocate(
      (kAligned + OrthogonalizeWorkspace(1, kShape[0], kShape[1])) *
          sizeof(float),
      "workspace");
  ASSERT_OK(memory);
  auto* const workspace = reinterpret_cast<float*>(memory->data());

  Parts expected;
  const void* const source = grad.data();
  SumGradients({&source, 1, DType::kF32}, 0, kCount, latched.block.scale,
               latched.block.clip_value, workspace);
  const void* const scalars = latched.row.scalars.data();
  MuonMomentum(scalars, workspace, expected.states[0].data(), kCount);
  Orthogonalize(*blas, {workspace, 1, kShape[0], kShape[1], kAligned}, 5, 1e-7,
                workspace + kAligned);
  MuonApply(scalars, kShape[0], kShape[1], workspace, expected.param.data(),
            kCount);
  ASSERT_FALSE(expected == Parts());
  for (const auto& stream : streams_) {
    Parts actual;
    const UpdateList list =
        TensorList(muon, grad.data(), kAligned, workspace, &actual);
    stream->Update(list, 0, StepBlocks::Shared(&latched.block), nullptr);
    ASSERT_OK(stream->Synchronize(Deadline::After(60)));
    EXPECT_TRUE(actual == expected);
  }
}

// Compares all sums and their norm, each from one call. The first pass leaves
// the sum in the rank's own gradients where these are fp32.
TEST_P(StepKernelsTest, AddsToNorm) {
  const FormulaCase sgd = CaseOf<Sgd>(Formula::kSgd, "Sgd");
  Tensors tensors = FusedTensors(DType::kF32, DType::kF32);
  const std::vector<float> own = tensors.grads[0];
  UpdateList list = ListOf(sgd, DType::kF32, DType::kF32, &tensors);
  UpdateRange& range = list.ranges[0];
  std::vector<float> sums(kCount);
  SumGradients(list.GradientsOf(range, false), 0, kCount, 1, kNoClip,
               sums.data());
  Latched latched(sgd, 1);
  latched.block.norm_p = 3;
  for (const NormType type :
       {NormType::kOne, NormType::kTwo, NormType::kInf, NormType::kP}) {
    latched.block.norm_type = type;
    const bool two_passes = type == NormType::kP;
    NormSum first = {};
    AddToNorm(two_passes ? NormType::kInf : type, 3, 0, sums.data(), kCount,
              &first);
    const double largest = FinishNorm(NormType::kInf, 0, 0, first);
    NormSum second = {};
    AddToNorm(type, 3, largest, sums.data(), kCount, &second);
    for (const auto& stream : streams_) {
      for (const bool keeps : {false, true}) {
        range.keeps_sum = keeps;
        ASSERT_OK(device_->Prepare(&list));
        tensors.grads[0] = own;
        latched.block.largest = 0;
        NormSum sum = {};
        stream->AddToNorm(list, 0, NormPass::kFirst, &latched.block, &sum);
        ASSERT_OK(stream->Synchronize(Deadline::After(60)));
        EXPECT_EQ(std::memcmp(&sum, &first, sizeof(sum)), 0);
        EXPECT_EQ(tensors.grads[0], keeps ? sums : own);
        if (!two_passes) continue;
        latched.block.largest = largest;
        sum = {};
        stream->AddToNorm(list, 0, NormPass::kSecond, &latched.block, &sum);
        ASSERT_OK(stream->Synchronize(Deadline::After(60)));
        // Powers have other last bits on a GPU.
        EXPECT_NEAR(FinishNorm(type, 3, largest, sum),
                    FinishNorm(type, 3, largest, second),
                    device_->IsHostMemory() ? 0 : 1e-12);
        EXPECT_EQ(tensors.grads[0], keeps ? sums : own);
      }
    }
  }
}

}  // namespace
}  // namespace shard::step_kernels_test
