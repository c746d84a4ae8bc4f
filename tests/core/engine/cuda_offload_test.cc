// SPDX-License-Identifier: Apache-2.0
//
// Engines on the device cuda whose optimizer states are offloaded to the host's
// memory, over the fake of its driver. The engine's suites run on this device
// too (other_devices.bzl): they compare results. These tests are about what
// passes between the memories, when, and what does not fit.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/offload.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/device.h"
#include "core/device/offload/offloading_device.h"
#include "core/engine/engine.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/states.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_offload_test {
namespace {

using cuda_training::Clipped;
using cuda_training::MakeEngine;
using cuda_training::OpenLocal;
using cuda_training::ParamsOf;
using testing::FakeCuda;
using testing::FakeCudaTest;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountAlive;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::FailCall;
using FakeCounters = testing::fake_cuda::Counters;

constexpr int64_t kElements = 5120;  // In a unit.
constexpr size_t kUnits = 2;
const Offload kOffload = {.threads = 3, .window = 256};

struct Case {
  const char* name;
  const char* optimizer;
  DType dtype = DType::kF32;
  Masters masters = Masters::kF32;
  bool has_padding = false;
  // Per element, in a step: to the host, and back.
  uint64_t down;
  uint64_t up;
};

std::shared_ptr<const Plan> MakePlan(const Case& of, int world_size = 1) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  for (size_t u = 0; u < kUnits; ++u) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("block", u), "Block");
    // Multiples of a block of 8-bit states leave no padding.
    const int64_t rows = of.has_padding ? 47 : 48;
    EXPECT_OK(training.model->AddParam(block, "weight", of.dtype, {rows, 64}));
    EXPECT_OK(training.model->AddParam(block, "other", of.dtype, {32, 64}));
  }
  training.optimizer = of.optimizer;
  training.wrap = "class?names=Block";
  training.plan.masters = of.masters;
  training.plan.world_size = world_size;
  training.plan.prefetch = 0;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  return *plan;
}

// Sets the parameters to values of this dtype.
void FillWith(Engine* engine, DType dtype) {
  const auto& params = engine->plan().model().params();
  for (size_t p = 0; p < params.size(); ++p) {
    std::vector<float> values;
    for (int64_t i = 0; i < params[p].numel; ++i) {
      values.push_back(InitialValue(static_cast<int>(p), i));
    }
    std::vector<unsigned char> bytes(DTypeBytes(dtype, params[p].numel));
    Store(dtype, values, bytes.data());
    ASSERT_OK(
        engine->SetParam(static_cast<ParamId>(p), bytes.data(), bytes.size()));
  }
  ASSERT_OK(engine->BroadcastParams(0));
}

// Writes the gradients of a unit where they lie, which the fake lets the host
// do, while nobody uses them.
void WriteGrads(Engine* engine, int32_t unit, int step, DType dtype,
                bool finite = true) {
  ASSERT_OK(engine->Synchronize(0));
  for (const ParamId param : ParamsOf(engine->plan(), unit)) {
    const auto grad = engine->Grad(param);
    ASSERT_OK(grad);
    std::vector<float> values;
    for (int64_t i = 0; i < grad->numel; ++i) {
      values.push_back(GradientValue(step, param, i));
    }
    if (!finite) values[7] = std::numeric_limits<float>::infinity();
    Store(dtype, values, grad->data);
  }
}

void Train(Engine* engine, int step, DType dtype, const StepOptions& options,
           bool finite = true, StepReport* report = nullptr) {
  for (int32_t unit = static_cast<int32_t>(engine->plan().units().size());
       unit-- > 0;) {
    WriteGrads(engine, unit, step, dtype, finite);
  }
  ASSERT_OK(engine->Step(options, report));
}

// The parameters and states of an engine, as bytes, with padding.
std::vector<std::vector<unsigned char>> BytesOf(Engine* engine) {
  EXPECT_OK(engine->Synchronize(0));
  auto all = StateBytes(*engine);
  for (const EngineBuffer& buffer : engine->memory().buffers()) {
    const size_t bytes =
        DTypeBytes(buffer.plan->dtype, buffer.plan->layout.padded_numel());
    all.emplace_back(buffer.params, buffer.params + bytes);
  }
  return all;
}

// Compares without a text of all bytes.
void ExpectSame(Engine* engine, Engine* expected) {
  EXPECT_TRUE(BytesOf(engine) == BytesOf(expected));
}

// Compares the memory of an engine with what its plan predicts, and returns it.
MemoryReport ExpectPlanned(const Engine& engine, const Offload* offload) {
  const MemoryReport planned = engine.plan().Memory(true, offload);
  EXPECT_EQ(planned.DeviceTotal(), engine.Memory().DeviceTotal());
  EXPECT_EQ(planned.PinnedTotal(), engine.Memory().PinnedTotal());
  return planned;
}

// Makes an engine without a loss scale, which would need a norm.
StatusOr<std::unique_ptr<Engine>> MakeUnscaled(
    const std::shared_ptr<const Plan>& plan) {
  EngineOptions options;
  options.opened_device =
      OffloadStates(*cuda::OpenDevice("0"), *OpenDevice("cpu"), kOffload);
  return Engine::Create(plan, OpenLocal(), options);
}

class OffloadTest : public ::testing::TestWithParam<Case> {};

// ---- What passes between the memories ---------------------------------------

TEST_P(OffloadTest, HasTheBitsOfTheHostAndMovesGradientsDownAndParametersUp) {
  const Case& of = GetParam();
  const auto plan = MakePlan(of);
  // The bytes that a step moved.
  struct Moved {
    bool is_skipped;
    uint64_t down;
    uint64_t up;
  };
  std::vector<Moved> all;
  for (const bool clips : {false, true}) {
    SCOPED_TRACE(clips);
    const StepOptions options = clips ? Clipped() : StepOptions();
    EngineOptions cpu;
    if (clips) cpu.loss_scaler = *LossScaler::Parse("dynamic?init_scale=8");
    const auto expected = Engine::Create(plan, OpenLocal(), cpu);
    ASSERT_OK(expected);
    FillWith(expected->get(), of.dtype);
    const FakeCuda fake;
    const auto engine =
        clips ? MakeEngine(plan, OpenLocal(), kOffload) : MakeUnscaled(plan);
    ASSERT_OK(engine);
    ExpectPlanned(**engine, &kOffload);
    FillWith(engine->get(), of.dtype);
    for (int step = 1; step <= 4; ++step) {
      const bool finite = !clips || step != 3;
      Train(expected->get(), step, of.dtype, options, finite);
      const FakeCounters before = Count();
      StepReport report;
      Train(engine->get(), step, of.dtype, options, finite, &report);
      const FakeCounters made = CountSince(before);
      EXPECT_EQ(report.skipped, !finite);
      ExpectSame(engine->get(), expected->get());
      all.push_back({!finite, made.to_host.bytes, made.to_device.bytes});
      EXPECT_EQ(made.pageable_copies, 0u);
      EXPECT_EQ(made.Calls("cuMemAlloc"), 0u);
      EXPECT_EQ(made.Calls("cuMemHostAlloc"), 0u);
      EXPECT_EQ(made.waits_of_host, 0u);
      std::map<std::string, uint64_t> norms;
      if (clips)
        norms = {{"shard_add_to_norm", kUnits}, {"shard_finish_norm", 1}};
      EXPECT_EQ(made.launches, norms);
    }
  }
  // A step that is skipped moves its own values alone, as each step does.
  const auto own = std::find_if(all.begin(), all.end(), [](const Moved& moved) {
    return moved.is_skipped;
  });
  ASSERT_NE(own, all.end());
  EXPECT_LT(own->down + own->up, 1000u);
  uint64_t down = of.down * kUnits * kElements;
  // A window of each unit has padding, and so its bf16 parameters, too.
  if (of.has_padding) down += kUnits * 2 * kOffload.window;
  for (const Moved& moved : all) {
    if (moved.is_skipped) continue;
    EXPECT_EQ(moved.down, own->down + down);
    EXPECT_EQ(moved.up, own->up + of.up * kUnits * kElements);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, OffloadTest,
    ::testing::Values(
        Case{.name = "f32", .optimizer = "adamw", .down = 8, .up = 4},
        Case{.name = "bf16",
             .optimizer = "adamw",
             .dtype = DType::kBF16,
             .down = 2,
             .up = 2},
        Case{.name = "bf16_stochastic",
             .optimizer = "adamw",
             .dtype = DType::kBF16,
             .masters = Masters::kNoneStochastic,
             .down = 4,
             .up = 2},
        Case{.name = "q8",
             .optimizer = "adamw?states=q8",
             .dtype = DType::kBF16,
             .down = 2,
             .up = 2},
        Case{.name = "q8_with_padding",
             .optimizer = "adamw?states=q8",
             .dtype = DType::kBF16,
             .has_padding = true,
             .down = 2,
             .up = 2},
        Case{.name = "lamb", .optimizer = "lamb", .down = 8, .up = 4},
        Case{.name = "adafactor",
             .optimizer = "adafactor",
             .dtype = DType::kBF16,
             .down = 2,
             .up = 2},
        Case{.name = "muon", .optimizer = "muon", .down = 8, .up = 4}),
    [](const auto& info) { return std::string(info.param.name); });

constexpr Case kPlain = {
    .name = "f32", .optimizer = "adamw", .down = 8, .up = 4};
constexpr Case kBf16 = {.name = "bf16",
                        .optimizer = "adamw",
                        .dtype = DType::kBF16,
                        .down = 2,
                        .up = 2};

class CudaOffloadTest : public FakeCudaTest {};

TEST_F(CudaOffloadTest, AUnitIsUpdatedBeforeTheGradientsOfTheNextAreThere) {
  const auto plan = MakePlan(kPlain);
  const auto engine = MakeUnscaled(plan);
  ASSERT_OK(engine);
  FillWith(engine->get(), DType::kF32);
  const StepOptions options;
  ASSERT_OK((*engine)->BeginStep(options));
  for (int32_t unit = static_cast<int32_t>(kUnits); unit > 0; --unit) {
    WriteGrads(engine->get(), unit, 1, DType::kF32);
    const FakeCounters before = Count();
    ASSERT_OK((*engine)->MarkUnitGradsReady(unit));
    // All of the unit's parameters, and none of the other's.
    EXPECT_TRUE(testing::ComesTrue(
        [&] { return CountSince(before).to_device.bytes >= 4 * kElements; }));
    EXPECT_LT(CountSince(before).to_device.bytes, 4u * kElements + 1000);
  }
  ASSERT_OK((*engine)->Step(options, nullptr));
  const auto expected = Engine::Create(plan, OpenLocal(), EngineOptions());
  ASSERT_OK(expected);
  FillWith(expected->get(), DType::kF32);
  Train(expected->get(), 1, DType::kF32, options);
  ExpectSame(engine->get(), expected->get());
}

// There is much to update when the host calls the step.
TEST_F(CudaOffloadTest, AStepEndsAfterTheUpdatesThatWereMadeBeforeIt) {
  const auto plan =
      cuda_training::MakePlan({.units = 2, .elements_per_unit = 200000});
  const auto engine = MakeUnscaled(plan);
  const auto expected = Engine::Create(plan, OpenLocal(), EngineOptions());
  ASSERT_OK(engine);
  ASSERT_OK(expected);
  for (Engine* const it : {expected->get(), engine->get()}) {
    FillWith(it, DType::kF32);
    for (int32_t unit = 2; unit > 0; --unit) {
      WriteGrads(it, unit, 1, DType::kF32);
    }
    ASSERT_OK(it->BeginStep(StepOptions()));
    for (int32_t unit = 2; unit > 0; --unit) {
      ASSERT_OK(it->MarkUnitGradsReady(unit));
    }
    StepReport report;
    ASSERT_OK(it->Step(StepOptions(), &report));
  }
  const auto& buffers = (*engine)->memory().buffers();
  for (size_t b = 0; b < buffers.size(); ++b) {
    const size_t bytes = DTypeBytes(buffers[b].plan->dtype,
                                    buffers[b].plan->layout.padded_numel());
    EXPECT_EQ(std::memcmp(buffers[b].params,
                          (*expected)->memory().buffers()[b].params, bytes),
              0);
  }
}

// A parameter without gradients is not stepped; a window that it shares with
// others goes up with its old values.
TEST_F(CudaOffloadTest, ParametersThatMissTheirGradientsStayAsTheyWere) {
  const auto plan = MakePlan(kBf16);
  EngineOptions options;
  options.missing_grads = MissingGrads::kSkip;
  const auto expected = Engine::Create(plan, OpenLocal(), options);
  ASSERT_OK(expected);
  options.opened_device =
      OffloadStates(*cuda::OpenDevice("0"), *OpenDevice("cpu"), kOffload);
  const auto engine = Engine::Create(plan, OpenLocal(), options);
  ASSERT_OK(engine);
  for (Engine* const it : {expected->get(), engine->get()}) {
    FillWith(it, DType::kBF16);
    for (int step = 1; step <= 3; ++step) {
      for (int32_t unit = static_cast<int32_t>(kUnits); unit > 0; --unit) {
        WriteGrads(it, unit, step, DType::kBF16);
        for (const ParamId param : ParamsOf(it->plan(), unit)) {
          if ((param + step) % 3 == 0) continue;
          ASSERT_OK(it->MarkParamGradReady(param));
        }
      }
      ASSERT_OK(it->Step(StepOptions(), nullptr));
      ASSERT_OK(it->ZeroGrad());
    }
  }
  ExpectSame(engine->get(), expected->get());
}

// ---- Memory -----------------------------------------------------------------

TEST_F(CudaOffloadTest, ThePlanSaysWhatLiesWhere) {
  for (const Case& of : {kPlain, kBf16}) {
    const auto plan = MakePlan(of);
    size_t device_bytes[2];
    size_t pinned_bytes[2];
    for (const bool offloads : {false, true}) {
      const auto engine = MakeEngine(
          plan, OpenLocal(),
          offloads ? std::optional<Offload>(kOffload) : std::nullopt);
      ASSERT_OK(engine);
      const MemoryReport planned =
          ExpectPlanned(**engine, offloads ? &kOffload : nullptr);
      device_bytes[offloads] = planned.DeviceTotal();
      pinned_bytes[offloads] = planned.PinnedTotal();
      for (const EngineBuffer& buffer : (*engine)->memory().buffers()) {
        for (const unsigned char* const state : buffer.states) {
          const auto device = cuda::OpenDevice("0");
          EXPECT_EQ((*device)->CheckPlace(state, MemoryPlace::kHost).ok(),
                    offloads);
        }
      }
    }
    // Two states, and a master of bf16.
    const size_t states = kUnits * RoundUpToPage(4 * kElements) *
                          (of.dtype == DType::kF32 ? 2 : 3);
    EXPECT_EQ(device_bytes[0] - device_bytes[1], states);
    // Windows of 256 elements take a page each.
    EXPECT_EQ(pinned_bytes[1] - pinned_bytes[0],
              states + 3 * kOffloadSlots * 2 * kPageBytes);
  }
}

TEST_F(CudaOffloadTest, StatesThatTheHostHasNoRoomForAreAnError) {
  testing::fake_cuda::Options options;
  // Enough for the collectives alone.
  options.pinned_bytes = (size_t{4} << 20) + 50000;
  const FakeCuda fake(options);
  const auto plan = MakePlan(kPlain);
  ExpectError(MakeEngine(plan, OpenLocal(), kOffload),
              StatusCode::kResourceExhausted,
              {"optimizer states", "of the host's memory that stays in place",
               FormatBytes(plan->Memory(true, &kOffload).PinnedTotal())});
  EXPECT_OK(MakeEngine(plan, OpenLocal()));
}

TEST_F(CudaOffloadTest, CheckpointsReadStatesWhereTheyLie) {
  const testing::TempFolder folder;
  const auto plan = MakePlan(kBf16);
  const auto engine = MakeEngine(plan, OpenLocal(), kOffload);
  ASSERT_OK(engine);
  FillWith(engine->get(), DType::kBF16);
  Train(engine->get(), 1, DType::kBF16, Clipped());
  const FakeCounters before = Count();
  ASSERT_OK((*engine)->Save(folder.path(), SaveOptions()));
  const FakeCounters made = CountSince(before);
  EXPECT_EQ(made.on_host.bytes, 0u);
  // Parameters alone, or nothing where their masters are saved.
  EXPECT_LE(made.to_host.bytes, 2 * kUnits * kElements + 500);
  // An engine on the host, and one that offloads, continue with the same bits.
  EngineOptions cpu;
  cpu.loss_scaler = *LossScaler::Parse("dynamic?init_scale=8");
  const auto on_host = Engine::Create(plan, OpenLocal(), cpu);
  ASSERT_OK(on_host);
  const auto loaded = MakeEngine(plan, OpenLocal(), kOffload);
  ASSERT_OK(loaded);
  for (Engine* const other : {on_host->get(), loaded->get()}) {
    LoadReport report;
    ASSERT_OK(other->Load(folder.path(), LoadOptions(), &report));
    ExpectSame(other, engine->get());
    Train(other, 2, DType::kBF16, Clipped());
  }
  Train(engine->get(), 2, DType::kBF16, Clipped());
  ExpectSame(on_host->get(), engine->get());
  ExpectSame(loaded->get(), engine->get());
}

// ---- Errors -----------------------------------------------------------------

TEST_F(CudaOffloadTest, AStepIsNoPartOfAGraph) {
  const cuda_training::HostsStream stream;
  const auto engine = MakeEngine(MakePlan(kPlain), OpenLocal(), kOffload);
  ASSERT_OK(engine);
  ASSERT_OK((*engine)->SetStream(stream.get()));
  FillWith(engine->get(), DType::kF32);
  testing::fake_cuda::SetCaptured(stream.get());
  ExpectError((*engine)->CaptureBegin(), StatusCode::kUnimplemented,
              {"capture_begin", "offload"});
  testing::fake_cuda::SetCaptured(nullptr);
  Train(engine->get(), 1, DType::kF32, Clipped());
}

// Ranks would wait for each other in other places.
TEST_F(CudaOffloadTest, RanksOffloadAllOrNone) {
  const auto plan = MakePlan(kPlain, 2);
  RunThreadRanks(2, [&](const auto& comm) {
    const auto offload =
        comm->rank() == 0 ? std::optional<Offload>(kOffload) : std::nullopt;
    ExpectError(MakeEngine(plan, comm, offload), StatusCode::kDesync,
                {"the engine's options", "offload of optimizer states"});
  });
}

TEST_F(CudaOffloadTest, RanksMayHaveOtherNumbersOfThreads) {
  const auto plan = MakePlan(kPlain, 2);
  RunThreadRanks(2, [&](const auto& comm) {
    const Offload own = {.threads = 1 + comm->rank(), .window = 256};
    const auto engine = MakeEngine(plan, comm, own);
    ASSERT_OK(engine);
    FillWith(engine->get(), DType::kF32);
    Train(engine->get(), 1, DType::kF32, Clipped());
    ASSERT_OK((*engine)->Synchronize(0));
  });
}

TEST_F(CudaOffloadTest, ACopyThatFailsEndsTheEngine) {
  const auto engine = MakeEngine(MakePlan(kPlain), OpenLocal(), kOffload);
  ASSERT_OK(engine);
  FillWith(engine->get(), DType::kF32);
  WriteGrads(engine->get(), 1, 1, DType::kF32);
  // One of a thread's: those before it are the step's own values.
  FailCall("cuMemcpyAsync", 20, cuda::CuResult::kUnknown);
  ExpectError((*engine)->Step(StepOptions(), nullptr), StatusCode::kUnavailable,
              {"cuMemcpyAsync", "CUDA_ERROR_UNKNOWN"});
  ExpectError((*engine)->Step(StepOptions(), nullptr), StatusCode::kUnavailable,
              {"CUDA_ERROR_UNKNOWN"});
}

}  // namespace
}  // namespace shard::cuda_offload_test
