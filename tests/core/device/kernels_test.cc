// SPDX-License-Identifier: Apache-2.0
//
// Every kernel of a stream has the bits of the kernel called directly, on every
// device, though the caller reuses its own lists and numbers at once.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
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
#include "tests/kernels/cpu/fake_cblas.h"

namespace {

// The number of allocations of this thread so far.
thread_local int64_t allocations = 0;

}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace shard {
namespace {

constexpr double kNoClip = std::numeric_limits<double>::infinity();

// The number of elements of most tensors: no multiple of 16, and the last block
// of 256 is partial.
constexpr size_t kCount = 5000;

struct FormulaCase {
  Formula formula;
  std::string name;
  std::vector<double> hypers;
  size_t num_states;
};

template <class F>
FormulaCase CaseOf(Formula formula, const char* name) {
  FormulaCase made = {formula, name, {}, static_cast<size_t>(F::kNumStates)};
  // Flags are set. Most are off by default, and a flag that was not copied
  // would be off as well.
  for (const Hyper& hyper : F::kHypers) {
    made.hypers.push_back(hyper.flag ? 1 : hyper.fallback);
  }
  return made;
}

std::vector<FormulaCase> ElementCases() {
  return {
#define SHARD_CASE(Name) CaseOf<Name>(Formula::k##Name, #Name),
      SHARD_ELEMENT_FORMULAS(SHARD_CASE)};
}

std::vector<FormulaCase> TensorCases() {
  return {SHARD_CASE(Adafactor) SHARD_CASE(Lamb)};
}
#undef SHARD_CASE

// Returns values in [-1, 1), without a pattern.
std::vector<float> Values(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525 + 1013904223;
    value = static_cast<float>(seed >> 8) / (1 << 23) - 1;
  }
  return values;
}

std::vector<float> Magnitudes(size_t count, uint32_t seed) {
  std::vector<float> values = Values(count, seed);
  for (float& value : values) value = value < 0 ? -value : value;
  return values;
}

// The lists that a caller has on its stack, and loses when it returns.
struct Lists {
  std::array<double, 16> hypers = {};
  std::vector<const void*> sources;
  std::array<void*, kMaxStates> states = {};
  std::array<float*, kMaxStates> float_states = {};
  std::array<float*, kMaxStates> scales = {};
  std::vector<int64_t> shape;
  RandomStream random;

  void SetHypers(const std::vector<double>& values) {
    ASSERT_LE(values.size(), hypers.size());
    std::copy(values.begin(), values.end(), hypers.begin());
  }

  void Spoil() {
    hypers.fill(-1e30);
    std::fill(sources.begin(), sources.end(), nullptr);
    states.fill(nullptr);
    float_states.fill(nullptr);
    scales.fill(nullptr);
    std::fill(shape.begin(), shape.end(), -1);
    random = {~uint64_t{0}, ~uint32_t{0}, ~uint32_t{0}, 1024};
  }
};

class KernelsTest : public testing::TestWithParam<const char*> {
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
                         testing::Values("cpu", "cpu-async"));

// The tensors of a fused step.
struct Tensors {
  std::vector<std::vector<float>> grads;
  std::vector<float> param;
  std::vector<uint16_t> half_param;
  std::array<std::vector<unsigned char>, kMaxStates> states;
  std::array<std::vector<float>, kMaxStates> scales;

  bool operator==(const Tensors&) const = default;
};

Tensors FusedTensors(DType param, DType state) {
  Tensors made;
  for (uint32_t w = 0; w < 3; ++w) made.grads.push_back(Values(kCount, w));
  made.param = Values(kCount, 10);
  if (param != DType::kF32) {
    made.half_param.resize(kCount);
    Narrow(param, made.param.data(), made.half_param.data(), kCount, nullptr);
  }
  for (size_t s = 0; s < kMaxStates; ++s) {
    // Zeros are a valid state of each dtype.
    made.states[s].resize(kCount * DTypeSize(state));
    made.scales[s].resize(kCount / kQ8Block + 1);
  }
  return made;
}

void FusedLists(const FormulaCase& formula, Tensors* tensors, Lists* lists) {
  lists->SetHypers(formula.hypers);
  for (const auto& grad : tensors->grads) {
    lists->sources.push_back(grad.data());
  }
  for (size_t s = 0; s < kMaxStates; ++s) {
    lists->states[s] = tensors->states[s].data();
    lists->scales[s] = tensors->scales[s].data();
  }
}

FusedStepArgs FusedArgs(DType param, DType state, Tensors* tensors,
                        Lists* lists) {
  FusedStepArgs args;
  args.gradients = {lists->sources.data(), lists->sources.size(), DType::kF32};
  args.gradient_scale = 0.25;
  args.clip_value = 0.3;
  args.param_dtype = param;
  args.param = param == DType::kF32
                   ? static_cast<void*>(tensors->param.data())
                   : static_cast<void*>(tensors->half_param.data());
  if (param == DType::kF16) args.master = tensors->param.data();
  args.stochastic_rounding = param == DType::kBF16;
  args.states = lists->states.data();
  args.state_dtype = state;
  // A caller without q8 states has no list of scales.
  args.scales = state == DType::kQ8 ? lists->scales.data() : nullptr;
  args.random = {17, 5, 3, 512};
  args.count = kCount;
  return args;
}

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

// On a host the engine uses such a stream, as if it called the kernels itself.
TEST(InlineTest, AllocatesNothing) {
  auto device = OpenDevice("cpu");
  ASSERT_OK(device);
  auto made = (*device)->CreateStream(StreamKind::kCompute);
  ASSERT_OK(made);
  Stream* const stream = made->get();
  const FormulaCase adamw = CaseOf<AdamW>(Formula::kAdamW, "AdamW");
  Tensors tensors = FusedTensors(DType::kF32, DType::kF32);
  Lists lists;
  FusedLists(adamw, &tensors, &lists);
  const FusedStepArgs args =
      FusedArgs(DType::kF32, DType::kF32, &tensors, &lists);
  NormSum sum = {};

  const int64_t before = allocations;
  stream->FusedStep(Formula::kAdamW, lists.hypers.data(), 1, args);
  stream->AddGradientsToNorm(NormType::kTwo, 0, 0, args.gradients, 0, kCount,
                             nullptr, &sum);
  stream->SumGradients(args.gradients, 0, kCount, 1, kNoClip,
                       tensors.param.data());
  stream->Copy(tensors.param.data(), tensors.grads[0].data(), kCount);
  const Event event = stream->Record();
  stream->Wait(event, Deadline::After(1));
  EXPECT_TRUE(stream->Synchronize(Deadline::After(1)).ok());
  EXPECT_EQ(allocations, before);

  // Shows that the counter counts.
  ::operator delete(::operator new(1));
  EXPECT_GT(allocations, before);
}

}  // namespace
}  // namespace shard
