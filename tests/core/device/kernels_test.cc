// SPDX-License-Identifier: Apache-2.0
//
// Every kernel of a stream has the bits of the kernel called directly, on every
// device, though the caller reuses its own lists and numbers at once.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/fused_step.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/muon_step.h"
#include "kernels/cpu/newton_schulz.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/q8.h"
#include "kernels/cpu/tensor_step.h"
#include "kernels/formula/all.h"
#include "kernels/formula/narrow_states.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/gate.h"
#include "tests/core/device/kernel_inputs.h"
#include "tests/kernels/cpu/fake_cblas.h"

namespace shard::kernels_test {
namespace {

using testing::CaseOf;
using testing::FormulaCase;
using testing::FusedArgs;
using testing::FusedLists;
using testing::FusedTensors;
using testing::kCount;
using testing::kNoClip;
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

class KernelsTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto device = OpenDevice(GetParam());
    ASSERT_OK(device);
    device_ = *std::move(device);
    for (const StreamKind kind :
         {StreamKind::kCompute, StreamKind::kCommunication}) {
      auto stream = device_->CreateStream(kind);
      ASSERT_OK(stream);
      streams_.push_back(*std::move(stream));
    }
  }

  bool RunsInline(const Stream& stream) const {
    return device_->name() == "cpu" && stream.name() == "shard-compute";
  }

  // Enqueues on `stream` with lists that are overwritten before anything runs.
  void Run(Stream* stream, Lists lists,
           const std::function<void(Lists*)>& enqueue) const {
    Gate gate;
    if (!RunsInline(*stream)) stream->Call("gate", gate.Passing());
    enqueue(&lists);
    lists.Spoil();
    gate.Open();
    ASSERT_OK(stream->Synchronize(Deadline::After(60)));
  }

  std::shared_ptr<Device> device_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

INSTANTIATE_TEST_SUITE_P(Devices, KernelsTest,
                         ::testing::Values("cpu", "cpu-async"));

TEST_P(KernelsTest, FusedStep) {
  for (const FormulaCase& formula : ElementCases()) {
    SCOPED_TRACE(formula.name);
    for (const DType param : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const DType state : {DType::kF32, DType::kQ8}) {
        if (state == DType::kQ8 &&
            NarrowStateKinds(formula.formula) == nullptr) {
          continue;
        }
        const Tensors before = FusedTensors(param, state);
        Tensors expected = before;
        Lists lists;
        FusedLists(formula, &expected, &lists);
        FusedStep(formula.formula, lists.hypers.data(), 4,
                  FusedArgs(param, state, &expected, &lists));
        ASSERT_FALSE(expected == before);
        for (const auto& stream : streams_) {
          Tensors actual = before;
          Lists mine;
          FusedLists(formula, &actual, &mine);
          Run(stream.get(), mine, [&](Lists* on_stack) {
            stream->FusedStep(formula.formula, on_stack->hypers.data(), 4,
                              FusedArgs(param, state, &actual, on_stack));
          });
          EXPECT_TRUE(actual == expected);
        }
      }
    }
  }
}

TEST_P(KernelsTest, TensorStep) {
  for (const FormulaCase& formula : TensorCases()) {
    SCOPED_TRACE(formula.name);
    const std::vector<int64_t> shape = {50, 100};
    struct Parts {
      std::vector<float> param;
      std::array<std::vector<float>, kMaxStates> states;
      bool operator==(const Parts&) const = default;
    };
    Parts before;
    before.param = Values(kCount, 1);
    for (auto& state : before.states) state = Magnitudes(kCount, 2);
    const std::vector<float> grad = Values(kCount, 3);
    std::vector<float> scratch(
        TensorScratchElements(formula.formula, shape.data(), 2));
    const auto lists_of = [&](Parts* parts) {
      Lists lists;
      lists.SetHypers(formula.hypers);
      lists.shape = shape;
      for (size_t s = 0; s < kMaxStates; ++s) {
        lists.float_states[s] = parts->states[s].data();
      }
      return lists;
    };
    const auto args_of = [&](Parts* parts, Lists* lists) {
      TensorStepArgs args;
      args.grad = grad.data();
      args.param = parts->param.data();
      args.states = lists->float_states.data();
      args.shape = lists->shape.data();
      args.ndim = 2;
      args.scratch = scratch.data();
      return args;
    };
    Parts expected = before;
    Lists lists = lists_of(&expected);
    TensorStep(formula.formula, lists.hypers.data(), 2,
               args_of(&expected, &lists));
    ASSERT_FALSE(expected == before);
    for (const auto& stream : streams_) {
      Parts actual = before;
      Run(stream.get(), lists_of(&actual), [&](Lists* on_stack) {
        stream->TensorStep(formula.formula, on_stack->hypers.data(), 2,
                           args_of(&actual, on_stack));
      });
      EXPECT_TRUE(actual == expected);
    }
  }
}

TEST_P(KernelsTest, SumGradients) {
  const std::vector<float> one = Values(kCount, 1);
  const std::vector<float> two = Values(kCount, 2);
  Lists lists;
  lists.sources = {one.data(), two.data()};
  const size_t begin = 7;
  const size_t count = kCount - begin;
  std::vector<float> expected(count);
  SumGradients({lists.sources.data(), 2, DType::kF32}, begin, count, 0.5, 0.4,
               expected.data());
  for (const auto& stream : streams_) {
    std::vector<float> actual(count);
    Run(stream.get(), lists, [&](Lists* on_stack) {
      stream->SumGradients({on_stack->sources.data(), 2, DType::kF32}, begin,
                           count, 0.5, 0.4, actual.data());
    });
    EXPECT_EQ(actual, expected);
  }
}

// Compares all sums and their norm, each from one call.
TEST_P(KernelsTest, AddGradientsToNorm) {
  const size_t begin = 3;
  const size_t count = kCount - begin;
  const std::vector<float> one = Values(kCount, 1);
  const std::vector<float> two = Values(kCount, 2);
  Lists lists;
  lists.sources = {one.data(), two.data()};
  std::vector<float> sums(count);
  SumGradients({lists.sources.data(), 2, DType::kF32}, begin, count, 1, kNoClip,
               sums.data());
  for (const NormType type : {NormType::kOne, NormType::kTwo, NormType::kP}) {
    NormSum expected = {};
    AddToNorm(type, 3, 2, sums.data(), count, &expected);
    for (const auto& stream : streams_) {
      for (const bool keeps : {false, true}) {
        std::vector<float> out(count);
        auto memory = device_->AllocateHost(sizeof(NormSum), "norm");
        ASSERT_OK(memory);
        auto* const sum = reinterpret_cast<NormSum*>(memory->data());
        Run(stream.get(), lists, [&](Lists* on_stack) {
          stream->AddGradientsToNorm(
              type, 3, 2, {on_stack->sources.data(), 2, DType::kF32}, begin,
              count, keeps ? out.data() : nullptr, sum);
        });
        EXPECT_EQ(std::memcmp(sum, &expected, sizeof(expected)), 0);
        EXPECT_EQ(out, keeps ? sums : std::vector<float>(count));
      }
      NormSum sum = {};
      Run(stream.get(), lists, [&](Lists*) {
        stream->AddToNorm(type, 3, 2, sums.data(), count, &sum);
      });
      EXPECT_EQ(std::memcmp(&sum, &expected, sizeof(expected)), 0);
    }
  }
}

// The sum may replace the caller's own gradients.
TEST_P(KernelsTest, AddGradientsToNormInPlace) {
  const std::vector<float> one = Values(kCount, 1);
  const std::vector<float> two = Values(kCount, 2);
  for (const auto& stream : streams_) {
    std::vector<float> own = one;
    Lists lists;
    lists.sources = {own.data(), two.data()};
    NormSum sum = {};
    Run(stream.get(), lists, [&](Lists* on_stack) {
      stream->AddGradientsToNorm(NormType::kTwo, 0, 0,
                                 {on_stack->sources.data(), 2, DType::kF32}, 0,
                                 kCount, own.data(), &sum);
    });
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(own[i], one[i] + two[i]);
  }
}

TEST_P(KernelsTest, NarrowAndWiden) {
  const std::vector<float> from = Values(kCount, 1);
  for (const bool stochastic : {false, true}) {
    Lists lists;
    lists.random = {9, 2, 1, 256};
    std::vector<uint16_t> expected(kCount);
    Narrow(DType::kBF16, from.data(), expected.data(), kCount,
           stochastic ? &lists.random : nullptr);
    std::vector<float> expected_wide(kCount);
    Widen(DType::kBF16, expected.data(), expected_wide.data(), kCount);
    for (const auto& stream : streams_) {
      std::vector<uint16_t> narrow(kCount);
      std::vector<float> wide(kCount);
      Run(stream.get(), lists, [&](Lists* on_stack) {
        stream->Narrow(DType::kBF16, from.data(), narrow.data(), kCount,
                       stochastic ? &on_stack->random : nullptr);
        stream->Widen(DType::kBF16, narrow.data(), wide.data(), kCount);
      });
      EXPECT_EQ(narrow, expected);
      EXPECT_EQ(wide, expected_wide);
    }
  }
}

TEST_P(KernelsTest, EncodeQ8) {
  const std::vector<float> from = Magnitudes(kCount, 1);
  for (const bool stochastic : {false, true}) {
    Lists lists;
    lists.random = {9, 2, 1, 256};
    std::vector<uint8_t> expected(kCount);
    std::vector<float> expected_scales(kCount / kQ8Block + 1);
    EncodeQ8(StateKind::kSquareAverage, from.data(), kCount,
             stochastic ? &lists.random : nullptr, 2, expected.data(),
             expected_scales.data());
    for (const auto& stream : streams_) {
      std::vector<uint8_t> codes(kCount);
      std::vector<float> scales(expected_scales.size());
      Run(stream.get(), lists, [&](Lists* on_stack) {
        stream->EncodeQ8(StateKind::kSquareAverage, from.data(), kCount,
                         stochastic ? &on_stack->random : nullptr, 2,
                         codes.data(), scales.data());
      });
      EXPECT_EQ(codes, expected);
      EXPECT_EQ(scales, expected_scales);
    }
  }
}

TEST_P(KernelsTest, MuonOnTheBlasOfTheDevice) {
  const BlasLibrary library(FakeCblasPath("plain"));
  auto blas = Blas::Load();
  ASSERT_OK(blas);
  for (int i = 0; i < 2; ++i) {
    const auto name = device_->LoadBlas();
    ASSERT_OK(name);
    EXPECT_EQ(*name, FakeCblasPath("plain"));
  }
  constexpr int64_t kRows = 12;
  constexpr int64_t kCols = 20;
  constexpr size_t kNumel = kRows * kCols;
  const FormulaCase muon = CaseOf<Muon>(Formula::kMuon, "Muon");
  struct Parts {
    std::vector<float> gradient;
    std::vector<float> momentum;
    std::vector<float> param;
    bool operator==(const Parts&) const = default;
  };
  const Parts before = {Values(kNumel, 1), Values(kNumel, 2),
                        Values(kNumel, 3)};
  auto memory = device_->Allocate(
      OrthogonalizeWorkspace(1, kRows, kCols) * sizeof(float), "workspace");
  ASSERT_OK(memory);
  auto* const workspace = reinterpret_cast<float*>(memory->data());
  Lists lists;
  lists.SetHypers(muon.hypers);

  Parts expected = before;
  const auto batch_of = [&](Parts* parts) {
    return MatrixBatch{parts->gradient.data(), 1, kRows, kCols, kNumel};
  };
  MuonMomentum(lists.hypers.data(), expected.gradient.data(),
               expected.momentum.data(), kNumel);
  Orthogonalize(*blas, batch_of(&expected), 5, 1e-7, workspace);
  MuonApply(lists.hypers.data(), kRows, kCols, expected.gradient.data(),
            expected.param.data(), kNumel);
  for (const auto& stream : streams_) {
    Parts actual = before;
    Run(stream.get(), lists, [&](Lists* on_stack) {
      stream->MuonMomentum(on_stack->hypers.data(), actual.gradient.data(),
                           actual.momentum.data(), kNumel);
      stream->Orthogonalize(batch_of(&actual), 5, 1e-7, workspace);
      stream->MuonApply(on_stack->hypers.data(), kRows, kCols,
                        actual.gradient.data(), actual.param.data(), kNumel);
    });
    EXPECT_TRUE(actual == expected);
  }
}

TEST_P(KernelsTest, SaysWhichBlasThereIsNot) {
  const BlasLibrary library("/nowhere/libnone.so");
  ExpectError(device_->LoadBlas(), StatusCode::kBackendUnavailable,
              {"/nowhere/libnone.so"});
}

}  // namespace
}  // namespace shard::kernels_test
