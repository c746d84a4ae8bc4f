// SPDX-License-Identifier: Apache-2.0
//
// Files fail while memory runs out as well: a call that writes, creates,
// renames or syncs fails, and then the n-th allocation; or an allocation fails,
// and then the k-th such call; alone, or with all later ones; for every pair
// (SHARD_TEST_LONG) or some. The flow replaces a checkpoint and a safetensors
// file. Each time the files of both names are whole. The checkpoint and LATEST
// are both the old ones or both the new ones, or the message says that the new
// checkpoint is complete. The call returns the code of one of the two faults,
// and nothing stays allocated or open.
//
// SHARD_TEST_TRACE=N prints where allocation N is made, as in
// out_of_memory_test.cc.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/fault/host.h"
#include "tests/fault/host_flows.h"

namespace shard {
namespace {

namespace fs = std::filesystem;

enum class First { kFiles, kMemory };

ino_t IdentityOf(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 ? found.st_ino : 0;
}

class TwoFaults
    : public ::testing::TestWithParam<std::tuple<World, Flow, First, Outage>> {
 protected:
  void RunChild(Tally* tally);
  // Moves on to the next pair. With `again`, it has the same first fault.
  void Next(Tally* tally, bool again) const;
  Faults FaultsOf(const Tally& tally) const;
  // Restores the files that are to be replaced, and deletes the remains of
  // failures.
  void Restore();
  void Judge(const Held& before, Host* host, Tally* tally) const;
  void ExpectWhole(const std::string& path, Tally* tally) const;

  bool exports() const { return std::string_view(flow_.name) == "files"; }
  std::string checkpoint() const { return folder_ / "new/step-000001"; }
  std::string manifest() const { return checkpoint() + "/manifest.shard"; }
  std::string latest() const { return folder_ / "new/LATEST"; }
  std::string file() const { return folder_ / "model.safetensors"; }

  const World world_ = std::get<0>(GetParam());
  const Flow flow_ = std::get<1>(GetParam());
  const First first_ = std::get<2>(GetParam());
  const Outage outage_ = std::get<3>(GetParam());
  const testing::TempFolder folder_{testing::kMemoryFolder};
  ino_t old_manifest_ = 0;
  ino_t old_latest_ = 0;
};

void TwoFaults::Next(Tally* tally, bool again) const {
  const bool all = tally->stride == 1;
  const int64_t some = kSanitized ? 20 : 16;
  if (again) {
    tally->second += all || first_ == First::kMemory ? 1 : some;
    return;
  }
  const int64_t step =
      std::max<int64_t>(1, tally->allocations / (kSanitized ? 3 : 16));
  tally->at += all || first_ == First::kFiles ? 1 : step;
  // Where some pairs are left out, another second fault comes with each first
  // one.
  tally->second =
      all || first_ == First::kMemory ? 1 : 1 + tally->at * 3 % some;
}

Faults TwoFaults::FaultsOf(const Tally& tally) const {
  FileFault file;
  file.and_after = outage_ == Outage::kForGood;
  file.error = tally.at % 2 == 0 ? EIO : ENOSPC;
  if (first_ == First::kMemory) {
    file.at = tally.second;
    file.after_memory = true;
    return {outage_, tally.at, file};
  }
  file.at = tally.at;
  file.then_outage = outage_;
  file.then_at = tally.second;
  return {Outage::kNone, 0, file};
}

void TwoFaults::Restore() {
  const std::string root = folder_ / "new";
  const std::set<std::string> names = {"step-000001", "LATEST"};
  if (old_manifest_ == 0 || testing::NamesIn(root) != names) {
    fs::remove_all(root);
    fs::copy(folder_ / "saved", root, fs::copy_options::recursive);
  }
  old_manifest_ = IdentityOf(manifest());
  old_latest_ = IdentityOf(latest());
  for (const std::string& name : testing::NamesIn(folder_.path())) {
    if (name.find(".tmp-") != std::string::npos) fs::remove(folder_ / name);
  }
}

void TwoFaults::ExpectWhole(const std::string& path, Tally* tally) const {
  shard_checkpoint* opened = nullptr;
  shard_error* error = shard_checkpoint_open(path.c_str(), &opened);
  if (error == nullptr) {
    shard_verify_options options = SHARD_VERIFY_OPTIONS_INIT;
    options.threads = 1;
    error = shard_checkpoint_verify(opened, &options);
  }
  if (error != nullptr) {
    ++tally->wrong;
    tally->Add("fault %lld, %lld: %s", static_cast<long long>(tally->at.load()),
               static_cast<long long>(tally->second.load()),
               shard_error_message(error));
  }
  shard_error_free(error);
  shard_checkpoint_free(opened);
}

void TwoFaults::Judge(const Held& before, Host* host, Tally* tally) const {
  JudgeHeld(before, tally);
  ExpectWhole(folder_ / "new", tally);
  if (exports()) ExpectWhole(file(), tally);
  if (host->IsOk()) {
    ++tally->tolerated;
    return;
  }
  bool allowed = true;
  bool told = false;
  for (int r = 0; r < host->ranks(); ++r) {
    const HostRank& rank = host->rank(r);
    allowed &= rank.code == SHARD_OK || rank.code == SHARD_RESOURCE_EXHAUSTED ||
               rank.code == SHARD_DATA_LOSS || rank.code == SHARD_POISONED ||
               (host->ranks() > 1 && rank.code == SHARD_RANK_LOST);
    told |= std::strstr(rank.message, "is complete") != nullptr;
  }
  // LATEST is replaced last: a failure after that does not undo the commit.
  const bool whole = (IdentityOf(manifest()) == old_manifest_) ==
                     (IdentityOf(latest()) == old_latest_);
  // While both faults persist, no commit can be undone and no message made.
  told |= outage_ == Outage::kForGood && FileFailed();
  if (allowed && (whole || told)) return;
  ++tally->wrong;
  if (!whole && !told) tally->Add("half of the commit was undone:");
  host->TellErrors(tally);
}

void TwoFaults::RunChild(Tally* tally) {
  Host host(world_, flow_, folder_.path());
  host.SaveOnce();
  for (int i = 0; i < 3; ++i) {
    Restore();
    host.RunFlow(Faults());
  }
  if (!host.IsOk()) {
    ++tally->wrong;
    host.TellErrors(tally);
    return;
  }
  tally->allocations = host.allocations();
  for (;;) {
    Restore();
    const Held before = HeldNow();
    host.RunFlow(FaultsOf(*tally));
    const bool files = first_ == First::kFiles;
    if (!(files ? FileFailed() : AllocationFailed())) return;
    ++tally->runs;
    Judge(before, &host, tally);
    Next(tally, files ? AllocationFailed() : FileFailed());
  }
}

TEST_P(TwoFaults, LeaveWhatWasThere) {
  RunInChildren(
      ::testing::UnitTest::GetInstance()->current_test_info()->name(),
      [&](Tally* tally) {
        if (const char* const trace = std::getenv("SHARD_TEST_TRACE")) {
          TraceAllocation(std::atoll(trace));
          tally->at = std::atoll(trace);
        }
        RunChild(tally);
      },
      [&](Tally* tally) { Next(tally, true); },
      [](const Tally& tally) { EXPECT_GT(tally.runs, kSanitized ? 2 : 13); });
}

std::vector<std::tuple<World, Flow, First, Outage>> Cases() {
  std::vector<std::tuple<World, Flow, First, Outage>> cases;
  int triples = 0;
  for (const World& world : Worlds()) {
    const std::string_view name = world.name;
    if (name != "local" && name != "threads") continue;
    for (const Flow& flow : Flows()) {
      const std::string_view called = flow.name;
      if (called != "save" && called != "save_async" && called != "files") {
        continue;
      }
      if (!flow.of_ranks && name != "local") continue;
      for (const First first : {First::kFiles, First::kMemory}) {
        ++triples;
        for (const Outage outage : {Outage::kOnce, Outage::kForGood}) {
          // Under a sanitizer, each triple has one of the two, in turn.
          const bool once = outage == Outage::kOnce;
          if (kSanitized && once != (triples / 2 % 2 == 0)) continue;
          cases.emplace_back(world, flow, first, outage);
        }
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(
    All, TwoFaults, ::testing::ValuesIn(Cases()), [](const auto& info) {
      const bool files = std::get<2>(info.param) == First::kFiles;
      return std::string(std::get<0>(info.param).name) + "_" +
             std::get<1>(info.param).name +
             (files ? "_files_first" : "_memory_first") +
             (std::get<3>(info.param) == Outage::kOnce ? "_once" : "_for_good");
    });

}  // namespace
}  // namespace shard
