// SPDX-License-Identifier: Apache-2.0
//
// Ranks are killed while they save or load, one of them or all. The others get
// kRankLost in time, the root resolves to a checkpoint that is whole and of one
// step, and the next save removes all that the dead left. SHARD_TEST_LONG kills
// 1,000 times.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "core/optim/groups.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/forwarding_env.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/create_engine.h"
#include "tests/fault/whole_checkpoint.h"
#include "tests/ranks/ranks.h"

namespace shard {
namespace {

using testing::CountTemporary;
using testing::NoSyncEnv;
using testing::OpenWhole;
using testing::Rank;
using testing::RankResult;
using testing::RunRanks;
using testing::TempFolder;

constexpr int kWorldSize = 3;
constexpr double kDeadline = 5;
constexpr int64_t kNumel = 30011;

StatusOr<std::shared_ptr<const Plan>> MakePlan(int world_size) {
  auto model = std::make_shared<Model>("Test");
  SHARD_RETURN_IF_ERROR(
      model->AddParam(kRootModule, "weight", DType::kF32, {kNumel}).status());
  PlanOptions options;
  options.world_size = world_size;
  SHARD_ASSIGN_OR_RETURN(options.groups,
                         PlanGroups(*model, "sgd?momentum=0.9"));
  return Plan::Create(std::move(model), options);
}

// Returns how often a test kills ranks. Those with GPUs take longer.
int Rounds(int usual, int with_gpus, int all) {
  const bool gpus = testing::TestsAreOnGpu();
  if (std::getenv("SHARD_TEST_LONG") != nullptr) return gpus ? usual : all;
  return gpus ? with_gpus : usual;
}

// Seconds until the survivors have an error. NCCL may take 10 to abort.
double ErrorSeconds() {
  return kDeadline + (testing::TestsAreOnGpu() ? 10 : 1);
}

// A rank that is alone is this process, which goes on to fork: it uses no GPU.
StatusOr<std::unique_ptr<Engine>> MakeEngine(
    const std::shared_ptr<Communicator>& comm) {
  SHARD_ASSIGN_OR_RETURN(auto plan, MakePlan(comm->world_size()));
  if (comm->world_size() == 1) return Engine::Create(std::move(plan), comm);
  return CreateEngine(std::move(plan), comm);
}

// Saves from step `step` to `last`. The stored values are a function of the
// step.
Status SaveForever(const std::shared_ptr<Communicator>& comm,
                   const std::string& root, int64_t step, int64_t last,
                   const Rank* rank) {
  SHARD_ASSIGN_OR_RETURN(const auto engine, MakeEngine(comm));
  SHARD_RETURN_IF_ERROR(engine->BroadcastParams(0));
  for (; step <= last; ++step) {
    const std::vector<float> values(kNumel, static_cast<float>(step));
    SHARD_RETURN_IF_ERROR(
        engine->SetState(0, "momentum_buffer", values.data(), values.size()));
    // Three saves in a row have the same step number, so each is saved over the
    // one before.
    SHARD_RETURN_IF_ERROR(engine->SetStep(step / 3));
    SaveOptions options;
    options.env = NoSyncEnv::Get();
    options.overwrite = true;
    options.async = step % 2 == 1;
    options.keep_last = 2;
    options.timeout = kDeadline;
    SHARD_ASSIGN_OR_RETURN(const auto save, engine->Save(root, options));
    if (save != nullptr) {
      SHARD_RETURN_IF_ERROR(save->Wait(Deadline::After(kDeadline)));
    }
    if (rank != nullptr && rank->rank() == 0) {
      rank->Report(StrCat("saved ", step, "\n"));
    }
  }
  return comm->Shutdown(Deadline::After(kDeadline));
}

// Returns the one value that all elements have: the step that was saved.
int64_t SavedStep(const std::string& root, const std::string& when) {
  const auto store = OpenWhole(root, when);
  if (store == nullptr) return -1;
  const int64_t found = store->Find("state.weight.momentum_buffer");
  EXPECT_GE(found, 0) << when;
  const ReadRequest request = {static_cast<size_t>(found), 0, kNumel};
  std::vector<float> values(kNumel);
  EXPECT_OK(store->Read(
      {&request, 1}, {.threads = 1},
      [&](size_t, int64_t begin, int64_t numel, const std::byte* data) {
        std::memcpy(values.data() + begin, data,
                    static_cast<size_t>(numel) * 4);
        return Status();
      }));
  EXPECT_TRUE(std::all_of(values.begin(), values.end(), [&](float value) {
    return value == values[0];
  })) << when;
  const auto step = static_cast<int64_t>(values[0]);
  EXPECT_EQ(store->manifest()->step(), step / 3) << when;
  return step;
}

// Returns the last step that rank 0 reported, or -1.
int64_t LastTold(const std::string& report) {
  const size_t at = report.rfind("saved ");
  if (at == std::string::npos) return -1;
  return std::atoll(report.c_str() + at + 6);
}

Status SaveAlone(const std::string& root, int64_t first, int64_t last) {
  CommOptions options;
  options.rank = 0;
  options.world_size = 1;
  SHARD_ASSIGN_OR_RETURN(const auto comm, OpenCommunicator("local:", options));
  return SaveForever(comm, root, first, last, nullptr);
}

TEST(CheckpointKillTest, AtRandomMoments) {
  const int rounds = Rounds(60, 16, 1000);
  std::mt19937 generator(20240607);
  const TempFolder folder;
  const std::string root = folder / "ckpt";
  ASSERT_OK(SaveAlone(root, 3, 3));
  int64_t step = 3;
  int stale = 0;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    // kWorldSize stands for all ranks.
    const int victim = static_cast<int>(generator() % (kWorldSize + 1));
    const auto delay = std::chrono::microseconds(generator() % 15000);
    const std::string url = StrCat("shm:", testing::UniqueName());
    const std::string when =
        StrCat("round ", round, ", rank ", victim, ", ", delay.count(), " us");
    const auto results = RunRanks(kWorldSize, [&](const Rank& rank) {
      CommOptions options;
      options.rank = rank.rank();
      options.world_size = kWorldSize;
      options.timeout = kDeadline;
      std::once_flag once;
      std::thread killer;
      if (victim == rank.rank() || victim == kWorldSize) {
        // The delay counts from the first save on.
        options.phase_hook = [&](std::string_view what) {
          if (what.rfind("save checkpoint", 0) != 0) return;
          std::call_once(once, [&] {
            killer = std::thread([delay] {
              std::this_thread::sleep_for(delay);
              kill(getpid(), SIGKILL);
            });
          });
        };
      }
      const auto comm = OpenCommunicator(url, options);
      ASSERT_OK(comm);
      const Status status =
          SaveForever(*comm, root, step + 1, step + 1000000, &rank);
      rank.Report(StrCat(StatusCodeName(status.code()), " ", status.rank(), " ",
                         status.message()));
      if (killer.joinable()) killer.join();
    });
    for (const RankResult& result : results) {
      if (victim == kWorldSize || result.rank == victim) {
        EXPECT_EQ(result.signal, SIGKILL) << when << ": " << result.ToString();
        continue;
      }
      EXPECT_TRUE(result.passed()) << when << ": " << result.ToString();
      EXPECT_NE(result.report.find(StrCat("RANK_LOST ", victim, " ")),
                std::string::npos)
          << when << ": " << result.ToString();
      EXPECT_LE(result.seconds - results[static_cast<size_t>(victim)].seconds,
                ErrorSeconds())
          << when;
    }
    // The checkpoint is the last one that was reported, or the one in which
    // they died.
    const int64_t told = std::max(step, LastTold(results[0].report));
    const int64_t found = SavedStep(root, when);
    EXPECT_GE(found, told) << when;
    EXPECT_LE(found, told + 1) << when;
    stale += CountTemporary(root);
    // The next save succeeds, and deletes temporary files.
    if (round % 4 == 0) {
      ASSERT_OK(SaveAlone(root, found + 1, found + 1));
      EXPECT_EQ(CountTemporary(root), 0) << when;
      EXPECT_EQ(SavedStep(root, when), found + 1);
      step = found + 1;
    } else {
      step = found;
    }
  }
  // Few rounds may have none.
  if (rounds >= 60) {
    EXPECT_GT(stale, 0) << "nobody died in a save";
  }
}

// The other ranks learn which one was lost, and the checkpoint is unchanged.
TEST(CheckpointKillTest, WhileItIsLoaded) {
  const int rounds = Rounds(20, 8, 300);
  std::mt19937 generator(20240608);
  const TempFolder folder;
  const std::string root = folder / "ckpt";
  ASSERT_OK(SaveAlone(root, 3, 3));
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    const int victim = static_cast<int>(generator() % kWorldSize);
    const auto delay = std::chrono::microseconds(generator() % 3000);
    const std::string url = StrCat("shm:", testing::UniqueName());
    const std::string when =
        StrCat("round ", round, ", rank ", victim, ", ", delay.count(), " us");
    const auto results = RunRanks(kWorldSize, [&](const Rank& rank) {
      CommOptions options;
      options.rank = rank.rank();
      options.world_size = kWorldSize;
      options.timeout = kDeadline;
      const auto comm = OpenCommunicator(url, options);
      ASSERT_OK(comm);
      const auto engine = MakeEngine(*comm);
      ASSERT_OK(engine);
      std::thread killer;
      if (rank.rank() == victim) {
        killer = std::thread([delay] {
          std::this_thread::sleep_for(delay);
          kill(getpid(), SIGKILL);
        });
      }
      Status status;
      while (status.ok()) {
        LoadReport report;
        LoadOptions load;
        load.timeout = kDeadline;
        status = (*engine)->Load(root, load, &report);
        EXPECT_TRUE(!status.ok() || report.step == 1) << report.step;
      }
      rank.Report(StrCat(StatusCodeName(status.code()), " ", status.rank()));
      if (killer.joinable()) killer.join();
    });
    for (const RankResult& result : results) {
      if (result.rank == victim) {
        EXPECT_EQ(result.signal, SIGKILL) << when << ": " << result.ToString();
        continue;
      }
      EXPECT_TRUE(result.passed()) << when << ": " << result.ToString();
      EXPECT_EQ(result.report, StrCat("RANK_LOST ", victim)) << when;
      EXPECT_LE(result.seconds - results[static_cast<size_t>(victim)].seconds,
                ErrorSeconds())
          << when;
    }
    EXPECT_EQ(SavedStep(root, when), 3);
  }
}

}  // namespace
}  // namespace shard
