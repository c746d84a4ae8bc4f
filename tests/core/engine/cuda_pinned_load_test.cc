// SPDX-License-Identifier: Apache-2.0
//
// Loads on the device cuda where no pinned memory is left, over the fake of its
// driver: a rank needs some where elements go to the device, and none where
// nothing does.

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "core/state/memory_store.h"
#include "core/state/state_entries.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/cuda_offload_training.h"
#include "tests/core/engine/cuda_pinned_memory.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_pinned_load_test {
namespace {

using cuda_offload::ExpectSame;
using cuda_offload::FillWith;
using cuda_pinned_memory::Engines;
using cuda_pinned_memory::FailAllocations;
using cuda_pinned_memory::FreeKept;
using cuda_pinned_memory::OnRankZero;
using cuda_pinned_memory::Save;
using testing::FakeCuda;
using testing::fake_cuda::ClearFailures;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountSince;
using FakeCounters = testing::fake_cuda::Counters;

LoadOptions OptimizerAlone() {
  LoadOptions options;
  options.state.content = StateContent::kOptimizer;
  return options;
}

// Offloaded states are read where they lie, from a checkpoint and from the
// state dict of an engine.
TEST(PinnedLoadTest, OffloadedStatesNeedNone) {
  const testing::TempFolder folder;
  for (const int ranks : {1, 2}) {
    const std::string path = StrCat(folder.path(), "/", ranks);
    const FakeCuda fake;
    RunThreadRanks(ranks, [&](const auto& comm) {
      SCOPED_TRACE(StrCat(ranks, " ranks"));
      Engines engines({"offload", true, ranks}, comm);
      ASSERT_OK(engines.Make(comm));
      Engine* const engine = engines.engine.get();
      Engine* const expected = engines.expected.get();
      for (Engine* const it : {expected, engine}) FillWith(it, DType::kBF16);
      engines.TrainBoth(1);
      ASSERT_OK(Save(engine, path, false));
      engines.TrainBoth(2);
      const auto load = [&](Engine* it) {
        LoadReport report;
        ASSERT_OK(it->Load(path, OptimizerAlone(), &report));
        EXPECT_EQ(report.step, 1);
        MemoryStore store;
        ASSERT_OK(it->AddLocalState(StateOptions(), &store));
        ASSERT_OK(it->LoadState(&store, OptimizerAlone(), &report));
      };
      OnRankZero(comm.get(), [] {
        FreeKept();
        FailAllocations(1);
      });
      load(engine);
      OnRankZero(comm.get(), ClearFailures);
      load(expected);
      ExpectSame(engine, expected);
      engines.TrainBoth(3);
    });
  }
}

TEST(PinnedLoadTest, ARankThatOwnsNothingNeedsNone) {
  const testing::TempFolder folder;
  const std::string path = folder.path() + "/checkpoint";
  const FakeCuda fake;
  FakeCounters before;
  RunThreadRanks(2, [&](const auto& comm) {
    const auto plan =
        cuda_training::MakePlan({.world_size = 2, .elements_per_unit = 1});
    const auto& layout = plan->buffer(0).layout;
    ASSERT_EQ(2 * layout.shard_numel(), layout.padded_numel());
    const auto engine = cuda_training::MakeEngine(plan, comm);
    ASSERT_OK(engine);
    ASSERT_OK(cuda_training::Fill(engine->get()));
    ASSERT_OK(Save(engine->get(), path, false));
    LoadOptions options;
    options.threads = 1;  // Each has staging memory of its own.
    LoadReport report;
    OnRankZero(comm.get(), [&] {
      FreeKept();
      before = Count();
    });
    ASSERT_OK((*engine)->Load(path, options, &report));
    // The staging memory of rank 0.
    OnRankZero(comm.get(), [&] {
      EXPECT_EQ(CountSince(before).Calls("cuMemHostAlloc"), 1u);
    });
  });
}

}  // namespace
}  // namespace shard::cuda_pinned_load_test
