// SPDX-License-Identifier: Apache-2.0
//
// Engines on the device cuda whose optimizer states are offloaded to the host's
// memory, over the fake of its driver. The engine's suites run on this device
// too (other_devices.bzl). These tests are about where the memory of an engine
// lies, what does not fit, and errors. cuda_offload_test is about what passes
// between the memories.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "core/base/offload.h"
#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/device.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/cuda_offload_training.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_offload_memory_test {
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
using cuda_offload::Train;
using cuda_offload::WriteGrads;
using cuda_training::Clipped;
using cuda_training::MakeEngine;
using cuda_training::OpenLocal;
using testing::FakeCuda;
using testing::FakeCudaTest;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountAlive;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::FailCall;
using FakeCounters = testing::fake_cuda::Counters;

class CudaOffloadMemoryTest : public FakeCudaTest {};

// The values of a step, which no plan counts, take less.
constexpr size_t kValuesBytes = 1000;

// ---- Memory -----------------------------------------------------------------

TEST_F(CudaOffloadMemoryTest, ThePlanSaysWhatLiesWhere) {
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
      const size_t pinned = planned.PinnedTotal() + StagingBytes(1);
      EXPECT_GE(CountAlive().pinned_bytes, pinned);
      EXPECT_LT(CountAlive().pinned_bytes, pinned + kValuesBytes);
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

TEST_F(CudaOffloadMemoryTest, StatesThatTheHostHasNoRoomForAreAnError) {
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

// The error says how much of either is missing: of gradients and parameters on
// the device, and of states on the host. Nothing is allocated.
TEST_F(CudaOffloadMemoryTest, APlanThatFitsNeitherMemoryIsAnError) {
  constexpr uint64_t kMany = uint64_t{1} << 40;
  const auto plan =
      cuda_training::MakePlan({.elements_per_unit = int64_t{kMany}});
  const FakeCounters before = Count();
  ExpectError(MakeEngine(plan, OpenLocal(), kOffload),
              StatusCode::kResourceExhausted,
              {StrCat("the plan needs ", FormatBytes(8 * kMany), " (",
                      8 * kMany, " bytes) on cuda:0, which has "),
               StrCat(" are missing; and ", FormatBytes(8 * kMany)),
               " of memory are needed on this host, and ", " are available: "});
  EXPECT_EQ(CountSince(before).Calls("cuMemAlloc"), 0u);
  EXPECT_EQ(CountAlive().device_bytes, 0u);
  EXPECT_EQ(CountAlive().pinned_bytes, 0u);
}

TEST_F(CudaOffloadMemoryTest, CheckpointsReadStatesWhereTheyLie) {
  const testing::TempFolder folder;
  const auto plan = MakePlan(kBf16);
  const auto engine = MakeEngine(plan, OpenLocal(), kOffload);
  ASSERT_OK(engine);
  FillWith(engine->get(), DType::kBF16);
  Train(engine->get(), 1, Clipped());
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
    Train(other, 2, Clipped());
  }
  Train(engine->get(), 2, Clipped());
  ExpectSame(on_host->get(), engine->get());
  ExpectSame(loaded->get(), engine->get());
}

// ---- Errors -----------------------------------------------------------------

TEST_F(CudaOffloadMemoryTest, AStepIsNoPartOfAGraph) {
  const cuda_training::HostsStream stream;
  const auto engine = MakeEngine(MakePlan(kPlain), OpenLocal(), kOffload);
  ASSERT_OK(engine);
  ASSERT_OK((*engine)->SetStream(stream.get()));
  FillWith(engine->get(), DType::kF32);
  testing::fake_cuda::SetCaptured(stream.get());
  ExpectError((*engine)->CaptureBegin(), StatusCode::kUnimplemented,
              {"capture_begin", "offload"});
  testing::fake_cuda::SetCaptured(nullptr);
  Train(engine->get(), 1, Clipped());
}

// Ranks would wait for each other in other places.
TEST_F(CudaOffloadMemoryTest, RanksOffloadAllOrNone) {
  const auto plan = MakePlan(kPlain, 2);
  RunThreadRanks(2, [&](const auto& comm) {
    const auto offload =
        comm->rank() == 0 ? std::optional<Offload>(kOffload) : std::nullopt;
    ExpectError(MakeEngine(plan, comm, offload), StatusCode::kDesync,
                {"the engine's options", "offload of optimizer states"});
  });
}

TEST_F(CudaOffloadMemoryTest, RanksMayHaveOtherNumbersOfThreads) {
  const auto plan = MakePlan(kPlain, 2);
  RunThreadRanks(2, [&](const auto& comm) {
    const Offload own = {.threads = 1 + comm->rank(), .window = 256};
    const auto engine = MakeEngine(plan, comm, own);
    ASSERT_OK(engine);
    FillWith(engine->get(), DType::kF32);
    Train(engine->get(), 1, Clipped());
    ASSERT_OK((*engine)->Synchronize(0));
  });
}

TEST_F(CudaOffloadMemoryTest, ACopyThatFailsEndsTheEngine) {
  const auto engine = MakeEngine(MakePlan(kPlain), OpenLocal(), kOffload);
  ASSERT_OK(engine);
  FillWith(engine->get(), DType::kF32);
  WriteGrads(engine->get(), 1, 1);
  // One of a thread's: those before it are the step's own values.
  FailCall("cuMemcpyAsync", 20, cuda::CuResult::kUnknown);
  ExpectError((*engine)->Step(StepOptions(), nullptr), StatusCode::kUnavailable,
              {"cuMemcpyAsync", "CUDA_ERROR_UNKNOWN"});
  ExpectError((*engine)->Step(StepOptions(), nullptr), StatusCode::kUnavailable,
              {"CUDA_ERROR_UNKNOWN"});
}

}  // namespace
}  // namespace shard::cuda_offload_memory_test
