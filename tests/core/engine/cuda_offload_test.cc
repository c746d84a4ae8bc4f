// SPDX-License-Identifier: Apache-2.0
//
// Engines on the device cuda whose optimizer states are offloaded to the host's
// memory, over the fake of its driver. The engine's suites run on this device
// too (other_devices.bzl): they compare results. These tests are about what
// passes between the memories, and when.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/offload.h"
#include "core/base/strings.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/device.h"
#include "core/device/offload/offloading_device.h"
#include "core/engine/engine.h"
#include "core/observe/observer.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_offload_training.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"
#include "tests/kernels/cpu/fake_cblas.h"

namespace shard::cuda_offload_test {
namespace {

using cuda_offload::Case;
using cuda_offload::ExpectPlanned;
using cuda_offload::ExpectSame;
using cuda_offload::FillWith;
using cuda_offload::kBf16;
using cuda_offload::kElements;
using cuda_offload::kOffload;
using cuda_offload::kPlain;
using cuda_offload::kUnits;
using cuda_offload::MakePlan;
using cuda_offload::MakeUnscaled;
using cuda_offload::Train;
using cuda_offload::TrainUnits;
using cuda_offload::WriteGrads;
using cuda_training::Clipped;
using cuda_training::MakeEngine;
using cuda_training::OpenLocal;
using cuda_training::ParamsOf;
using testing::FakeCuda;
using testing::FakeCudaTest;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::FailCall;
using FakeCounters = testing::fake_cuda::Counters;

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
      Train(expected->get(), step, options, finite);
      const FakeCounters before = Count();
      StepReport report;
      Train(engine->get(), step, options, finite, &report);
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
        Case{.name = "bf16_stochastic_f32_grads",
             .optimizer = "adamw",
             .dtype = DType::kBF16,
             .masters = Masters::kNoneStochastic,
             .f32_grads = true,
             .down = 6,
             .up = 2},
        Case{.name = "bf16_f32_grads",
             .optimizer = "adamw",
             .dtype = DType::kBF16,
             .f32_grads = true,
             .down = 4,
             .up = 2},
        Case{.name = "f16",
             .optimizer = "adamw",
             .dtype = DType::kF16,
             .down = 2,
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

class CudaOffloadTest : public FakeCudaTest {};

TEST_F(CudaOffloadTest, AUnitIsUpdatedBeforeTheGradientsOfTheNextAreThere) {
  const auto plan = MakePlan(kPlain);
  const auto engine = MakeUnscaled(plan);
  ASSERT_OK(engine);
  FillWith(engine->get(), DType::kF32);
  const StepOptions options;
  ASSERT_OK((*engine)->BeginStep(options));
  for (int32_t unit = static_cast<int32_t>(kUnits); unit > 0; --unit) {
    WriteGrads(engine->get(), unit, 1);
    const FakeCounters before = Count();
    ASSERT_OK((*engine)->MarkUnitGradsReady(unit));
    // All of the unit's parameters, and none of the other's.
    EXPECT_TRUE(testing::ComesTrue(
        [&] { return CountSince(before).to_device.bytes >= 4 * kElements; }));
    EXPECT_LT(CountSince(before).to_device.bytes, 4u * kElements + 1000);
    // Its gradients, and its parameters, which are their own masters.
    EXPECT_EQ(CountSince(before).to_host.bytes, 8u * kElements);
  }
  ASSERT_OK((*engine)->Step(options, nullptr));
  const auto expected = Engine::Create(plan, OpenLocal(), EngineOptions());
  ASSERT_OK(expected);
  FillWith(expected->get(), DType::kF32);
  Train(expected->get(), 1, options);
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
      WriteGrads(it, unit, 1);
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

// Sums of ranks come down as wide as they are, those of a shard in stages 2 and
// 3. What the ranks exchange passes the host without offload, too.
TEST_F(CudaOffloadTest, SumsOfRanksComeDownAsWideAsTheyAre) {
  struct Bytes {
    uint64_t down;
    uint64_t up;
  };
  struct Ranks {
    int count;
    DType dtype;
    bool deterministic;
    bool begins;
    // Per element, of all ranks.
    Bytes moved;
  };
  for (const Ranks& ranks : {Ranks{2, DType::kBF16, false, false, {2, 2}},
                             Ranks{2, DType::kBF16, false, true, {2, 2}},
                             // Two would save no memory, since sums are of f32.
                             Ranks{4, DType::kBF16, true, false, {4, 2}},
                             Ranks{2, DType::kF32, false, false, {8, 4}},
                             Ranks{2, DType::kF32, true, true, {8, 4}}}) {
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE(StrCat("stage ", stage, ", ", DTypeName(ranks.dtype),
                          ranks.deterministic ? ", deterministic" : "",
                          ranks.begins ? ", begun" : ""));
      Case of = kBf16;
      of.dtype = ranks.dtype;
      of.deterministic = ranks.deterministic;
      of.stage = stage;
      of.units = 8;  // So many that sharding them saves memory.
      const auto plan = MakePlan(of, ranks.count);
      const StepOptions options = ranks.begins ? StepOptions() : Clipped();
      const auto step = [&](bool offloads) -> Bytes {
        FakeCounters moved;
        RunThreadRanks(ranks.count, [&](const auto& comm) {
          EngineOptions made;
          made.opened_device = *cuda::OpenDevice("0");
          if (offloads) {
            made.opened_device = OffloadStates(std::move(made.opened_device),
                                               *OpenDevice("cpu"), kOffload);
          }
          const auto engine = Engine::Create(plan, comm, made);
          ASSERT_OK(engine);
          FillWith(engine->get(), of.dtype);
          FakeCounters before;
          for (int number = 1; number <= 2; ++number) {
            TrainUnits(engine->get(), number, options, ranks.begins);
            ASSERT_OK((*engine)->Synchronize(0));
            ASSERT_OK(comm->Barrier("stepped", Deadline::After(30)));
            if (number == 1) before = Count();
            ASSERT_OK(comm->Barrier("counted", Deadline::After(30)));
          }
          if (comm->rank() == 0) moved = CountSince(before);
          ASSERT_OK(comm->Barrier("counted", Deadline::After(30)));
        });
        return {moved.to_host.bytes, moved.to_device.bytes};
      };
      const Bytes exchanged = step(false);
      const Bytes all = step(true);
      EXPECT_EQ(all.down - exchanged.down,
                ranks.moved.down * of.units * kElements);
      EXPECT_EQ(all.up - exchanged.up, ranks.moved.up * of.units * kElements);
    }
  }
}

// A parameter without gradients is not stepped; its windows go up with its old
// values, and no others need them.
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
  // Values of each step of the engine. The last one is skipped, and so moves
  // its own values alone, as each step does.
  constexpr int kSteps = 5;
  constexpr int kComplete = 1;  // Has all gradients, as kSteps does not.
  const auto misses = [](int step, ParamId param) {
    return step != kComplete && (param + step) % 3 == 0;
  };
  std::vector<FakeCounters> made;
  for (Engine* const it : {expected->get(), engine->get()}) {
    FillWith(it, DType::kBF16);
    for (int step = 1; step <= kSteps; ++step) {
      for (int32_t unit = static_cast<int32_t>(kUnits); unit > 0; --unit) {
        WriteGrads(it, unit, step, step < kSteps);
        for (const ParamId param : ParamsOf(it->plan(), unit)) {
          if (misses(step, param)) continue;
          ASSERT_OK(it->MarkParamGradReady(param));
        }
      }
      StepOptions step_options;
      step_options.skip_nonfinite = step == kSteps;
      const FakeCounters before = Count();
      ASSERT_OK(it->Step(step_options, nullptr));
      if (it == engine->get()) made.push_back(CountSince(before));
      ASSERT_OK(it->ZeroGrad());
    }
  }
  ExpectSame(engine->get(), expected->get());
  const FakeCounters& own = made.back();
  EXPECT_LT(own.to_host.bytes + own.to_device.bytes, 1000u);
  for (size_t step = 0; step + 1 < made.size(); ++step) {
    SCOPED_TRACE(step);
    // Gradients, and parameters that miss theirs: no window has two parameters.
    uint64_t elements = kUnits * kElements;
    for (size_t p = 0; p < plan->places().size(); ++p) {
      if (!misses(static_cast<int>(step) + 1, static_cast<ParamId>(p)))
        continue;
      elements += static_cast<uint64_t>(plan->model().params()[p].numel);
    }
    EXPECT_EQ(made[step].to_host.bytes - own.to_host.bytes, 2 * elements);
    EXPECT_EQ(made[step].to_device.bytes - own.to_device.bytes,
              2 * kUnits * kElements);
  }
}

// Without offload the buffers of a rank that is alone are updated by one
// launch, after the gradients of all units.
TEST_F(CudaOffloadTest, TheUpdatesOfAStepAreThoseOfItsUnits) {
  for (const bool offloads : {false, true}) {
    SCOPED_TRACE(offloads);
    const auto comm = OpenLocal();
    const auto engine =
        MakeEngine(MakePlan(kPlain), comm,
                   offloads ? std::optional(kOffload) : std::nullopt);
    ASSERT_OK(engine);
    FillWith(engine->get(), DType::kF32);
    const auto updates = [&] {
      return comm->observer()->counters().Get(EventId::kUpdate).calls;
    };
    const uint64_t before = updates();
    Train(engine->get(), 1, StepOptions());
    EXPECT_EQ(updates() - before, offloads ? kUnits : 1u);
  }
}

// Offloaded updates of Muon multiply on the host, whatever the GPU has.
TEST_F(CudaOffloadTest, MuonNeedsABlasOfTheHost) {
  Case of = kPlain;
  of.optimizer = "muon";
  const auto plan = MakePlan(of);
  ASSERT_EQ(::setenv("SHARD_BLAS_LIBRARY", "/nowhere/libnone.so", 1), 0);
  const auto none = MakeUnscaled(plan);
  // Without offload the products are cuBLAS's.
  EXPECT_OK(MakeEngine(plan, OpenLocal()));
  ASSERT_EQ(::unsetenv("SHARD_BLAS_LIBRARY"), 0);
  ExpectError(none, StatusCode::kBackendUnavailable,
              {"no usable CBLAS library: /nowhere/libnone.so: ", "install one",
               "SHARD_BLAS_LIBRARY"});
  EXPECT_EQ(testing::fake_cuda::CountAlive().device_bytes, 0u);
  EXPECT_EQ(testing::fake_cuda::CountAlive().pinned_allocations, 0u);
}

// A cuBLAS that does not start is what one that is missing is.
TEST_F(CudaOffloadTest, MuonNeedsNoCublas) {
  Case of = kPlain;
  of.optimizer = "muon";
  const auto plan = MakePlan(of);
  const BlasLibrary blas(FakeCblasPath("plain"));
  for (const uint64_t call : {1, 2}) {
    FailCall("cublasLtCreate", call, cuda::CuResult::kNotSupported);
  }
  const auto engine = MakeUnscaled(plan);
  const auto expected = Engine::Create(plan, OpenLocal(), EngineOptions());
  ASSERT_OK(engine);
  ASSERT_OK(expected);
  for (Engine* const it : {expected->get(), engine->get()}) {
    FillWith(it, DType::kF32);
    Train(it, 1, StepOptions());
  }
  ExpectSame(engine->get(), expected->get());
  EXPECT_EQ(Count().Calls("cublasLtCreate"), 0u);
  ExpectError(MakeEngine(plan, OpenLocal()), StatusCode::kBackendUnavailable,
              {"no usable cuBLAS: ", "muon with offload=states needs none"});
}

}  // namespace
}  // namespace shard::cuda_offload_test
