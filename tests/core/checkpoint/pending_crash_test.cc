// SPDX-License-Identifier: Apache-2.0
//
// A save that fails, dies, or loses power at any moment leaves the old
// checkpoint or the new one, whole. SHARD_TEST_LONG kills 1,000 processes.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "core/base/strings.h"
#include "core/checkpoint/folder/cleanup.h"
#include "core/checkpoint/folder/directory.h"
#include "core/checkpoint/folder/pending.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/base/unsynced_env.h"
#include "tests/core/checkpoint/test_checkpoint.h"

namespace shard::pending_crash_test {
namespace {

using testing::ExpectAllWhole;
using testing::Fault;
using testing::FaultEnv;
using testing::kMemoryFolder;
using testing::NamesIn;
using testing::NoSyncEnv;
using testing::PowerCut;
using testing::ReadText;
using testing::ResolvedGeneration;
using testing::SaveGeneration;
using testing::TempFolder;
using testing::UnsyncedEnv;

constexpr int64_t kBefore = 0;
constexpr int64_t kOld = 1;
constexpr int64_t kNew = 2;

// The save under test: the first one, into a root that it creates; the next
// step; the same step again; the next step of a run that went back, where a
// checkpoint of a higher step exists and only LATEST names the right one.
enum class Kind { kFirst, kNext, kOverwrite, kBack };

class SaveTest : public ::testing::TestWithParam<Kind> {
 protected:
  bool has_old() const { return GetParam() != Kind::kFirst; }
  int64_t new_step() const {
    return GetParam() == Kind::kFirst || GetParam() == Kind::kOverwrite ? 10
                                                                        : 11;
  }

  void PutOld(const std::string& root) {
    if (GetParam() == Kind::kBack) {
      ASSERT_OK(SaveGeneration(NoSyncEnv::Get(), root, 20, kBefore));
    }
    if (has_old()) {
      ASSERT_OK(SaveGeneration(NoSyncEnv::Get(), root, 10, kOld));
    }
  }
  Status SaveNew(FileEnv* env, const std::string& root) {
    return SaveGeneration(env, root, new_step(), kNew,
                          GetParam() == Kind::kOverwrite);
  }
  // Expects that the root resolves to the old or the new checkpoint, and that
  // all complete checkpoints are whole. Returns whether it is the new one.
  bool ExpectOldOrNew(const std::string& root, const std::string& when) {
    if (!std::filesystem::exists(root)) {
      EXPECT_FALSE(has_old()) << when;
      return false;
    }
    ExpectAllWhole(root);
    const int64_t generation = ResolvedGeneration(root);
    EXPECT_TRUE(generation == kNew || generation == (has_old() ? kOld : -2))
        << when << ": " << generation;
    return generation == kNew;
  }
  // Expects that the next save works as if nothing had happened.
  void ExpectRecovers(const std::string& root, const std::string& when) {
    ASSERT_OK(SaveGeneration(NoSyncEnv::Get(), root, 12, 3));
    const auto directory = Directory::Open(NoSyncEnv::Get(), root);
    ASSERT_OK(directory);
    EXPECT_OK(CleanStale(*directory));
    EXPECT_EQ(ResolvedGeneration(root), 3) << when;
    for (const std::string& name : NamesIn(root)) {
      EXPECT_FALSE(ParseTemporaryName(name)) << when << ": " << name;
    }
  }
};

std::string NameOf(const ::testing::TestParamInfo<Kind>& info) {
  constexpr const char* kNames[] = {"First", "Next", "Overwrite", "Back"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Kinds, SaveTest,
                         ::testing::Values(Kind::kFirst, Kind::kNext,
                                           Kind::kOverwrite, Kind::kBack),
                         NameOf);

TEST_P(SaveTest, EveryCallMayFail) {
  for (const Fault& kind : {Fault{.error = EIO},
                            // The device is gone from then on, so nothing can
                            // be cleaned up either.
                            Fault{.and_after = true, .error = EIO},
                            Fault{.kind = Fault::Kind::kZero}}) {
    // Under a sanitizer, every third call fails.
    for (int64_t k = 0;; k += kSanitized ? 3 : 1) {
      const TempFolder folder(kMemoryFolder);
      const std::string root = folder / "ckpt";
      PutOld(root);
      FaultEnv env(NoSyncEnv::Get());
      Fault fault = kind;
      fault.at = k;
      env.Set(fault);
      const Status status = SaveNew(&env, root);
      const std::string when =
          StrCat("call ", k, ", errno ", kind.error, ", ", status.ToString());
      EXPECT_EQ(env.open_descriptors(), 0) << when;
      EXPECT_EQ(env.wrong_closes(), 0) << when;
      const bool is_new = ExpectOldOrNew(root, when);
      if (status.ok()) {
        EXPECT_TRUE(is_new) << when;
      } else if (!kind.and_after && std::filesystem::exists(root)) {
        // A save that failed has cleaned up, except for the old checkpoint that
        // it replaced.
        size_t temporary = 0;
        for (const std::string& name : NamesIn(root)) {
          if (ParseTemporaryName(name)) ++temporary;
        }
        EXPECT_LE(temporary, is_new && has_old() ? 1u : 0u) << when;
      }
      ExpectRecovers(root, when);
      if (env.calls() <= k) {
        EXPECT_OK(status);
        EXPECT_GT(k, 20);
        break;
      }
      ASSERT_LT(k, 1000);
    }
  }
}

TEST_P(SaveTest, InterruptedAndShortCallsDoNotMatter) {
  for (const Fault& fault :
       {Fault{.every = 2, .error = EINTR}, Fault{.every = 3, .error = EINTR},
        Fault{.every = 1, .kind = Fault::Kind::kShort}}) {
    const TempFolder folder(kMemoryFolder);
    const std::string root = folder / "ckpt";
    PutOld(root);
    FaultEnv env(NoSyncEnv::Get());
    env.Set(fault);
    EXPECT_OK(SaveNew(&env, root));
    EXPECT_GT(env.faults(), 3);
    EXPECT_EQ(env.open_descriptors(), 0);
    EXPECT_TRUE(ExpectOldOrNew(root, "after EINTR"));
    const size_t steps[] = {1, 2, 1, 3};
    EXPECT_EQ(NamesIn(root).size(), 1 + steps[static_cast<int>(GetParam())]);
  }
}

TEST_P(SaveTest, ThePowerMayGoAtEveryCall) {
  const TempFolder folder(kMemoryFolder);
  const std::string disk = folder / "disk";
  std::filesystem::create_directory(disk);
  PutOld(disk + "/ckpt");
  UnsyncedEnv env(disk, NoSyncEnv::Get());
  int64_t calls = 0;
  int64_t cuts = 0;
  int64_t with_new = 0;
  const auto cut_power = [&] {
    for (const auto cut :
         {PowerCut::kLost, PowerCut::kKept, PowerCut::kNamesKept,
          PowerCut::kTruncated, PowerCut::kEntriesLost, PowerCut::kRandom}) {
      const uint64_t seeds = cut != PowerCut::kRandom ? 1 : kSanitized ? 3 : 16;
      for (uint64_t seed = 0; seed < seeds; ++seed) {
        const std::string copy = folder / "copy";
        std::filesystem::remove_all(copy);
        env.AfterPowerCut(cut, static_cast<uint64_t>(calls) * 100 + seed, copy);
        const std::string when =
            StrCat("call ", calls, ", cut ", static_cast<int>(cut), ", ", seed);
        if (ExpectOldOrNew(copy + "/ckpt", when)) ++with_new;
        ++cuts;
        if (seed == 0) ExpectRecovers(copy + "/ckpt", when);
      }
    }
    ++calls;
  };
  env.AtEachCall(cut_power);
  ASSERT_OK(SaveNew(&env, disk + "/ckpt"));
  EXPECT_GT(calls, 10);
  EXPECT_GT(with_new, 0);
  EXPECT_LT(with_new, cuts);
  // After Commit the new checkpoint is found, whatever is lost.
  const int64_t before = cuts - with_new;
  cut_power();
  EXPECT_EQ(cuts - with_new, before);
}

// Saves growing generations without end, in a process of its own.
[[noreturn]] void SaveForever(const std::string& root, bool overwrite,
                              int ready) {
  int64_t generation = ResolvedGeneration(root);
  {
    // A save may have been killed after it committed its step and before it
    // wrote LATEST.
    const auto directory = Directory::Open(NoSyncEnv::Get(), root);
    const auto steps = ListCheckpoints(*directory);
    if (!overwrite) generation = std::max(generation, steps->back());
  }
  for (;;) {
    ++generation;
    const int64_t step = overwrite ? 10 : generation;
    const Status status =
        SaveGeneration(NoSyncEnv::Get(), root, step, generation, overwrite);
    if (!status.ok()) ::_exit(2);
    const auto directory = Directory::Open(NoSyncEnv::Get(), root);
    if (!directory.ok() || !CleanStale(*directory).ok()) ::_exit(3);
    if (!RetainCheckpoints(*directory, {.keep_last = 2}).ok()) ::_exit(4);
    // The parent learns of the save, and expects the checkpoint afterwards.
    if (::write(ready, &generation, sizeof(generation)) != sizeof(generation)) {
      ::_exit(5);
    }
  }
}

TEST(SaveKillTest, AKilledSaveLeavesWholeCheckpoints) {
  const int rounds = std::getenv("SHARD_TEST_LONG") != nullptr ? 1000 : 50;
  std::mt19937 generator(20240607);
  for (const bool overwrite : {false, true}) {
    const TempFolder root;
    ASSERT_OK(SaveGeneration(NoSyncEnv::Get(), root.path(), 10, 100));
    int64_t committed = 100;
    for (int round = 0; round < rounds / 2 && !HasFailure(); ++round) {
      int ends[2];
      ASSERT_EQ(::pipe(ends), 0);
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        ::close(ends[0]);
        SaveForever(root.path(), overwrite, ends[1]);
      }
      ::close(ends[1]);
      // Waits for the first save, then kills at a random moment of a later one.
      int64_t told = 0;
      EXPECT_EQ(::read(ends[0], &told, sizeof(told)),
                static_cast<ssize_t>(sizeof(told)));
      committed = std::max(committed, told);
      std::this_thread::sleep_for(
          std::chrono::microseconds(generator() % 20000));
      ASSERT_EQ(::kill(child, SIGKILL), 0);
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);
      while (::read(ends[0], &told, sizeof(told)) == sizeof(told)) {
        committed = std::max(committed, told);
      }
      ::close(ends[0]);

      ExpectAllWhole(root.path());
      // The last save that the parent learned of, or the one that was killed.
      const int64_t found = ResolvedGeneration(root.path());
      EXPECT_GE(found, committed) << "round " << round;
      EXPECT_LE(found, committed + 1) << "round " << round;
    }
    const auto directory = Directory::Open(NoSyncEnv::Get(), root.path());
    ASSERT_OK(directory);
    EXPECT_OK(CleanStale(*directory));
    for (const std::string& name : NamesIn(root.path())) {
      EXPECT_FALSE(ParseTemporaryName(name)) << name;
    }
  }
}

}  // namespace
}  // namespace shard::pending_crash_test
