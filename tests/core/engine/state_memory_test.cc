// SPDX-License-Identifier: Apache-2.0
//
// Bounds on the growth of a rank's memory while states are saved, loaded,
// gathered and sent. Memory is measured in processes, with tensors that are
// large beside the bounds.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "core/optim/groups.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/memory_growth.h"
#include "tests/ranks/ranks.h"

namespace shard {
namespace {

using testing::ExpectAllPassed;
using testing::Rank;
using testing::RunRanks;
using testing::TempFolder;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int kWorldSize = 2;
constexpr int kTensors = 4;
constexpr int64_t kNumel = 8 * kMiB;
constexpr int64_t kTensorBytes = 4 * kNumel;
// AdamW has two states.
constexpr int64_t kStateBytes = 3 * kTensors * kTensorBytes;
constexpr int64_t kOwnedBytes = kStateBytes / kWorldSize;
// Lists, stacks, pages of code, and parts of the link that were not used
// before.
constexpr int64_t kSlack = 16 * kMiB;

StatusOr<std::unique_ptr<Engine>> MakeEngine(
    const std::shared_ptr<Communicator>& comm) {
  auto model = std::make_shared<Model>("Test");
  for (int t = 0; t < kTensors; ++t) {
    SHARD_RETURN_IF_ERROR(
        model->AddParam(kRootModule, StrCat("weight", t), DType::kF32, {kNumel})
            .status());
  }
  PlanOptions options;
  options.world_size = comm->world_size();
  SHARD_ASSIGN_OR_RETURN(options.groups, PlanGroups(*model, "adamw"));
  SHARD_ASSIGN_OR_RETURN(const auto plan,
                         Plan::Create(std::move(model), options));
  return Engine::Create(plan, comm);
}

// Writes to all of an engine's memory, so that it counts as resident.
void Touch(const Engine& engine) {
  for (const EngineBuffer& buffer : engine.memory().buffers()) {
    std::memset(buffer.params, 1, DTypeBytes(DType::kF32, buffer.held_numel));
    for (unsigned char* const state : buffer.states) {
      std::memset(state, 2,
                  DTypeBytes(DType::kF32, buffer.plan->layout.shard_numel()));
    }
  }
}

// Runs `act` on each rank, with an engine that has a state.
void WithEngines(const std::function<void(const Rank&, Engine*)>& act) {
  const std::string url = StrCat("shm:", testing::UniqueName());
  ExpectAllPassed(RunRanks(kWorldSize, [&](const Rank& rank) {
    const CommOptions options = {.rank = rank.rank(), .world_size = kWorldSize};
    const auto comm = OpenCommunicator(url, options);
    ASSERT_OK(comm);
    const auto engine = MakeEngine(*comm);
    ASSERT_OK(engine);
    Touch(**engine);
    ASSERT_OK((*engine)->BroadcastParams(0));
    // The first use of the communicator allocates memory once.
    ASSERT_OK((*comm)->Barrier("test", Deadline::After(30)));
    act(rank, engine->get());
    ASSERT_OK((*comm)->Shutdown(Deadline::After(30)));
  }));
}

TEST(StateMemoryTest, SavesAndLoadsStayWithinTheirBounds) {
  const TempFolder folder;
  const std::string root = folder / "ckpt";
  WithEngines([&](const Rank&, Engine* engine) {
    SaveOptions save;
    save.threads = 2;
    // A thread has a chunk of 4 MiB and a page, for files that take no
    // unaligned memory.
    EXPECT_LT(GrowthOf([&] { ASSERT_OK(engine->Save(root, save)); }),
              save.threads * 8 * kMiB + kSlack);
    save.async = true;
    save.overwrite = true;
    const int64_t async = GrowthOf([&] {
      const auto saving = engine->Save(root, save);
      ASSERT_OK(saving);
      ASSERT_OK((*saving)->Wait(Deadline::After(60)));
    });
    EXPECT_GE(async, kOwnedBytes);  // The snapshot shows in the measurement.
    EXPECT_LT(async, kOwnedBytes + save.threads * 8 * kMiB + kSlack);
    const LoadOptions load = {.threads = 2};
    EXPECT_LT(GrowthOf([&] {
                LoadReport report;
                ASSERT_OK(engine->Load(root, load, &report));
                EXPECT_EQ(report.match.loaded, 3 * kTensors);
              }),
              load.threads * 8 * kMiB + kSlack);
  });
}

TEST(StateMemoryTest, GatheredStatesStayWithinTheirBound) {
  WithEngines([&](const Rank& rank, Engine* engine) {
    for (const int to : {0, kAllRanks}) {
      const bool here = to < 0 || to == rank.rank();
      int64_t bytes = 0;
      const int64_t growth = GrowthOf([&] {
        ASSERT_OK(
            engine->GatherState(StateOptions(), to, 60,
                                [&](const StateEntry& entry, const std::byte*) {
                                  bytes += 4 * entry.numel;
                                  return Status();
                                }));
      });
      EXPECT_EQ(bytes, here ? kStateBytes : 0);
      EXPECT_GE(growth, here ? kTensorBytes : 0);
      EXPECT_LT(growth, (here ? kTensorBytes : 0) + 16 * kMiB + kSlack);
    }
  });
}

TEST(StateMemoryTest, LoadsFromRank0StayWithinTheirBound) {
  WithEngines([&](const Rank& rank, Engine* engine) {
    MemoryStore store;
    std::vector<std::vector<float>> tensors;
    ASSERT_OK(engine->GatherState(
        StateOptions(), 0, 60,
        [&](const StateEntry& entry, const std::byte* data) {
          tensors.emplace_back(static_cast<size_t>(entry.numel));
          std::vector<float>& tensor = tensors.back();
          std::memcpy(tensor.data(), data, 4 * tensor.size());
          MemoryStore::Tensor named = {.key = entry.key,
                                       .role = entry.is_param()
                                                   ? TensorRole::kParam
                                                   : TensorRole::kState,
                                       .shape = entry.shape};
          return store.Add(std::move(named), tensor.data(), 4 * tensor.size());
        }));
    const LoadOptions options = {.from_rank0 = true, .threads = 2};
    EXPECT_LT(GrowthOf([&] {
                LoadReport report;
                ASSERT_OK(engine->LoadState(rank.rank() == 0 ? &store : nullptr,
                                            options, &report));
                EXPECT_EQ(report.match.loaded, 3 * kTensors);
              }),
              kTensorBytes + 16 * kMiB + kSlack);
  });
}

}  // namespace
}  // namespace shard
