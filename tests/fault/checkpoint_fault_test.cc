// SPDX-License-Identifier: Apache-2.0
//
// Any file call of any rank fails during a save or a load, or the power goes
// during a save. All ranks get an error that names the rank, the old checkpoint
// is whole, and the engines go on.

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/base/unsynced_env.h"
#include "tests/core/engine/whole_state.h"
#include "tests/core/engine/worlds.h"
#include "tests/fault/whole_checkpoint.h"

namespace shard {
namespace {

using testing::CountTemporary;
using testing::Fault;
using testing::FaultEnv;
using testing::NoSyncEnv;
using testing::OpenWhole;
using testing::PowerCut;
using testing::TempFolder;
using testing::UnsyncedEnv;

constexpr int kWorldSize = 3;

SaveOptions SaveThrough(FileEnv* env) {
  SaveOptions options;
  options.env = env;
  options.threads = 1;  // With one thread, calls come in one order.
  return options;
}

// Runs `of_one` on rank 0, while the other ranks wait before and after it.
void Together(Engine* engine, const std::function<void()>& of_one) {
  ASSERT_OK(engine->comm()->Barrier("before", Deadline::After(60)));
  if (engine->comm()->rank() == 0) of_one();
  ASSERT_OK(engine->comm()->Barrier("after", Deadline::After(60)));
}

class FaultTest
    : public ::testing::TestWithParam<std::tuple<int, bool, const char*>> {
 protected:
  int victim() const { return std::get<0>(GetParam()); }
  bool and_after() const { return std::get<1>(GetParam()); }
  int error() const {
    return std::string(std::get<2>(GetParam())) == "EIO" ? EIO : ENOSPC;
  }
  // The calls that fail, one after the other: all; under a sanitizer, every
  // fourth one with one error, those between them with the other.
  int64_t first_call() const { return kSanitized && error() == EIO ? 2 : 0; }
  static constexpr int64_t kStride = kSanitized ? 4 : 1;
  // Expects the error of the victim: all ranks get it, and it names the victim.
  void ExpectVictims(const Status& status, const std::string& when) {
    EXPECT_EQ(status.rank(), victim()) << when;
    EXPECT_NE(status.message().find(StrCat("rank ", victim())),
              std::string::npos)
        << when;
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, FaultTest,
                         ::testing::Combine(::testing::Values(0, 1),
                                            ::testing::Bool(),
                                            ::testing::Values("EIO", "ENOSPC")),
                         [](const auto& info) {
                           return StrCat(
                               "Rank", std::get<0>(info.param),
                               std::get<1>(info.param) ? "FromThenOn" : "Once",
                               std::get<2>(info.param));
                         });

TEST_P(FaultTest, EveryCallOfASave) {
  for (const bool async : {false, true}) {
    const TempFolder folder;
    const std::string root = folder / "ckpt";
    FaultEnv env(NoSyncEnv::Get());
    std::atomic<bool> done{false};
    const auto body = [&](Engine* engine, UnitTrainer* trainer) {
      ASSERT_OK(engine->Save(root, SaveThrough(NoSyncEnv::Get())));
      TrainSteps(2, 2, engine, trainer);
      int failures = 0;
      for (int64_t k = first_call(); !done && k < 1000; k += kStride) {
        Together(engine, [&] {
          std::filesystem::remove_all(root + "/step-000002");
          env.Set({.at = k, .and_after = and_after(), .error = error()});
        });
        const bool mine = engine->comm()->rank() == victim();
        SaveOptions options =
            SaveThrough(mine ? &env : static_cast<FileEnv*>(NoSyncEnv::Get()));
        options.async = async;
        const auto save = engine->Save(root, options);
        Status status = save.status();
        if (save.ok() && async) status = (*save)->Wait(Deadline::After(60));
        const std::string when = StrCat("call ", k, ": ", status.ToString());
        if (!status.ok()) {
          ++failures;
          ExpectVictims(status, when);
        }
        Together(engine, [&] {
          EXPECT_EQ(env.open_descriptors(), 0) << when;
          EXPECT_EQ(env.wrong_closes(), 0) << when;
          const auto store = OpenWhole(root, when);
          ASSERT_NE(store, nullptr);
          const int64_t step = store->manifest()->step();
          // Only a failure after the commit leaves the new checkpoint, and its
          // message says so.
          if (status.ok()) {
            EXPECT_EQ(step, 2) << when;
          } else if (status.message().find("is complete") ==
                     std::string::npos) {
            EXPECT_EQ(step, 1) << when;
          }
          if (!and_after()) {
            EXPECT_EQ(CountTemporary(root), 0) << when;
          }
          if (env.calls() <= k) done = true;
        });
      }
      EXPECT_GT(failures, 5 / kStride);
      EXPECT_TRUE(done);
      TrainSteps(3, 3, engine, trainer);
      ASSERT_OK(engine->Save(root, SaveThrough(NoSyncEnv::Get())));
      Together(engine, [&] { EXPECT_EQ(CountTemporary(root), 0); });
    };
    RunWorld(AwkwardTraining(kWorldSize, 2), 1, body);
  }
}

TEST_P(FaultTest, EveryCallOfALoad) {
  const TempFolder folder;
  FaultEnv env;
  std::atomic<bool> done{false};
  RunWorld(
      AwkwardTraining(kWorldSize, 3), 1,
      [&](Engine* engine, UnitTrainer* trainer) {
        ASSERT_OK(engine->Save(folder.path(), SaveThrough(NoSyncEnv::Get())));
        const auto kept = trainer->Read();
        int failures = 0;
        for (int64_t k = first_call(); !done && k < 1000; k += kStride) {
          Together(engine, [&] {
            env.Set({.at = k, .and_after = and_after(), .error = error()});
          });
          LoadOptions options;
          options.threads = 1;
          if (engine->comm()->rank() == victim()) options.env = &env;
          LoadReport report;
          const Status status = engine->Load(folder.path(), options, &report);
          const std::string when = StrCat("call ", k, ": ", status.ToString());
          if (!status.ok()) {
            ++failures;
            ExpectVictims(status, when);
            ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
          }
          EXPECT_EQ(trainer->Read(), kept) << when;
          Together(engine, [&] {
            EXPECT_EQ(env.open_descriptors(), 0) << when;
            EXPECT_EQ(env.wrong_closes(), 0) << when;
            if (env.calls() <= k) done = true;
          });
        }
        EXPECT_GT(failures, 4 / kStride);
        EXPECT_TRUE(done);
        TrainSteps(2, 2, engine, trainer);
      });
}

TEST(CheckpointFaultTest, InterruptedAndShortCallsDoNotMatter) {
  for (const Fault& fault :
       {Fault{.every = 2, .error = EINTR}, Fault{.every = 3, .error = EINTR},
        Fault{.every = 1, .kind = Fault::Kind::kShort}}) {
    const TempFolder folder;
    FaultEnv env(NoSyncEnv::Get());
    env.Set(fault);
    const UnitTraining training = AwkwardTraining(kWorldSize, 2);
    WholeState saved, loaded;
    RunWorld(training, 1, [&](Engine* engine, UnitTrainer*) {
      saved.Add(*engine);
      ASSERT_OK(engine->Save(folder.path(), SaveThrough(&env)));
    });
    const int64_t faults = env.faults();
    EXPECT_GT(faults, 5);
    RunWorld(training, 0, [&](Engine* engine, UnitTrainer*) {
      LoadOptions options;
      options.env = &env;
      LoadReport report;
      ASSERT_OK(engine->Load(folder.path(), options, &report));
      loaded.Add(*engine);
    });
    EXPECT_GT(env.faults(), faults + 5);
    EXPECT_TRUE(loaded == saved) << saved.Differences(loaded);
    EXPECT_EQ(env.open_descriptors(), 0);
  }
}

// One rank has saved the checkpoint; two save over it.
TEST(CheckpointFaultTest, ThePowerMayGoAtEveryCall) {
  const TempFolder folder;
  const std::string disk = folder / "disk";
  const std::string root = disk + "/ckpt";
  std::filesystem::create_directory(disk);
  RunWorld(AwkwardTraining(1, 1), 1, [&](Engine* engine, UnitTrainer*) {
    ASSERT_OK(engine->Save(root, SaveThrough(NoSyncEnv::Get())));
  });
  UnsyncedEnv env(disk, NoSyncEnv::Get());
  std::mutex mutex;
  uint64_t calls = 0;
  int olds = 0;
  int news = 0;
  const auto cut_power = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto cut :
         {PowerCut::kLost, PowerCut::kKept, PowerCut::kNamesKept,
          PowerCut::kTruncated, PowerCut::kEntriesLost, PowerCut::kRandom}) {
      const uint64_t seeds = cut != PowerCut::kRandom ? 1 : kSanitized ? 2 : 8;
      for (uint64_t seed = 0; seed < seeds; ++seed) {
        const std::string copy = folder / "copy";
        std::filesystem::remove_all(copy);
        env.AfterPowerCut(cut, calls * 100 + seed, copy);
        const auto store = OpenWhole(copy + "/ckpt",
                                     StrCat("call ", calls, ", cut ",
                                            static_cast<int>(cut), ", ", seed));
        if (store == nullptr) continue;
        ++(store->manifest()->world_size() == 2 ? news : olds);
      }
    }
    ++calls;
  };
  env.AtEachCall(cut_power);
  RunWorld(AwkwardTraining(2, 2), 1, [&](Engine* engine, UnitTrainer*) {
    SaveOptions options = SaveThrough(&env);
    options.overwrite = true;
    ASSERT_OK(engine->Save(root, options));
  });
  EXPECT_GT(calls, 15u);
  EXPECT_GT(olds, 0);
  EXPECT_GT(news, 0);
  // After the save has returned, only the new checkpoint is found.
  const int before = olds;
  cut_power();
  EXPECT_EQ(olds, before);
}

}  // namespace
}  // namespace shard
