// SPDX-License-Identifier: Apache-2.0
//
// A model of so many parameters that their names are most of a checkpoint:
// saved by two ranks, loaded by three, written again and verified, within the
// memory that docs/checkpoints.md states for names. SHARD_TEST_LONG takes
// 1,000,000 parameters, which are 3,000,000 tensors with AdamW.

#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/open_store.h"
#include "core/checkpoint/write_checkpoint.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "core/engine/state/local_state.h"
#include "core/optim/groups.h"
#include "core/state/manifest_bound.h"
#include "core/state/state_entries.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/memory_growth.h"
#include "tests/ranks/ranks.h"

namespace shard {
namespace {

using testing::ExpectAllPassed;
using testing::Rank;
using testing::RunRanks;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr double kTimeout = 1500;

struct Size {
  int modules;
  int params;         // The parameters of each module.
  size_t name_bytes;  // The length of a module's name.

  int64_t tensors() const { return int64_t{3} * modules * params; }
};

// The names of the short form are more than version 1 of the format can hold.
Size SizeOfTest() {
  const bool is_long = std::getenv("SHARD_TEST_LONG") != nullptr;
  return is_long ? Size{10000, 100, 20} : Size{300, 100, 700};
}

std::shared_ptr<Model> MakeModel(const Size& size) {
  auto model = std::make_shared<Model>("Test");
  for (int m = 0; m < size.modules; ++m) {
    std::string name = StrCat("layer", m, "_");
    name.resize(size.name_bytes, 'x');
    const ModuleId module = *model->AddModule(kRootModule, name, "");
    for (int p = 0; p < size.params; ++p) {
      EXPECT_OK(model->AddParam(module, StrCat("weight", p), DType::kF32, {2}));
    }
  }
  return model;
}

// Returns a number that no other element has.
uint32_t ValueOf(size_t entry, int64_t element) {
  return static_cast<uint32_t>(2 * entry) + static_cast<uint32_t>(element) + 1;
}

// Calls `act(value, memory)` for each element that this rank owns.
void ForEachElement(const Engine& engine,
                    const std::function<void(uint32_t, std::byte*)>& act) {
  const int rank = engine.comm()->rank();
  const auto entries = ListStateEntries(engine.plan(), {});
  ASSERT_OK(entries);
  for (size_t e = 0; e < entries->size(); ++e) {
    const StateEntry& entry = (*entries)[e];
    const OwnedElements owned = OwnedBy(engine.plan(), entry, rank);
    if (owned.numel == 0) continue;
    std::byte* const data =
        LocalData(engine.plan(), engine.memory(), entry, owned, rank);
    for (int64_t i = 0; i < owned.numel; ++i) {
      act(ValueOf(e, owned.begin + i), data + 4 * i);
    }
  }
}

class ManyTensorsTest : public ::testing::Test {
 protected:
  // Runs `act` on each rank, with the rank's engine.
  void WithEngines(int world_size, const std::function<void(Engine*)>& act) {
    const std::string url = StrCat("shm:", testing::UniqueName());
    ExpectAllPassed(RunRanks(
        world_size,
        [&](const Rank& rank) {
          const CommOptions options = {.rank = rank.rank(),
                                       .world_size = world_size,
                                       .timeout = kTimeout};
          const auto comm = OpenCommunicator(url, options);
          ASSERT_OK(comm);
          auto model = MakeModel(size_);
          PlanOptions plan_options;
          plan_options.world_size = world_size;
          auto groups = PlanGroups(*model, "adamw");
          ASSERT_OK(groups);
          plan_options.groups = *std::move(groups);
          const auto plan = Plan::Create(std::move(model), plan_options);
          ASSERT_OK(plan);
          const auto engine = Engine::Create(*plan, *comm);
          ASSERT_OK(engine);
          act(engine->get());
          ASSERT_OK((*comm)->Shutdown(Deadline::After(kTimeout)));
        },
        kTimeout));
  }

  // Runs `act`, prints its time and memory, and expects at most
  // `bytes_per_tensor` bytes for each tensor.
  void Hold(const std::string& what, int64_t bytes_per_tensor,
            const std::function<void()>& act) {
    // Memory that was freed before would hide what is allocated now.
    ::malloc_trim(0);
    const auto begin = std::chrono::steady_clock::now();
    const int64_t growth = GrowthOf(act);
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - begin;
    std::cout << what << ": " << took.count() << " s, "
              << static_cast<double>(growth) / kMiB << " MiB, "
              << growth / size_.tensors() << " bytes per tensor" << std::endl;
    EXPECT_LT(growth, size_.tensors() * bytes_per_tensor + 64 * kMiB) << what;
  }

  const Size size_ = SizeOfTest();
  const testing::TempFolder folder_;
};

TEST_F(ManyTensorsTest, SavesLoadsWritesAndVerifiesInBoundedMemory) {
  // The longest keys have this text around the name of a module.
  constexpr std::string_view kAround = "state..weight99.exp_avg_sq";
  const auto key = static_cast<int64_t>(size_.name_bytes + kAround.size());
  const std::string root = folder_ / "ckpt";
  WithEngines(2, [&](Engine* engine) {
    ForEachElement(*engine, [](uint32_t value, std::byte* to) {
      std::memcpy(to, &value, sizeof(value));
    });
    ASSERT_OK(engine->BroadcastParams(0));
    // The bound on the manifest was checked when the engine was made.
    const ManifestBound bound = BoundManifest(engine->plan());
    EXPECT_EQ(static_cast<int64_t>(bound.tensors), size_.tensors());
    EXPECT_LT(bound.bytes, kMaxManifestBytes - kBlobManifestBytes);
    const int rank = engine->comm()->rank();
    Hold(StrCat("save, rank ", rank), rank == 0 ? 600 + 4 * key : 250 + 2 * key,
         [&] { ASSERT_OK(engine->Save(root, SaveOptions())); });
  });

  std::shared_ptr<const FileStore> store;
  Hold("open", 100 + key, [&] {
    auto opened = OpenTensorStore(FileEnv::Posix(), root);
    ASSERT_OK(opened);
    store = opened->store;
  });
  ASSERT_NE(store, nullptr);
  const Manifest& manifest = *store->manifest();
  EXPECT_EQ(static_cast<int64_t>(manifest.num_tensors()), size_.tensors());
  EXPECT_EQ(manifest.version(), 2u);
  std::cout << "manifest: " << static_cast<double>(store->index_bytes()) / kMiB
            << " MiB\n";
  Hold("verify", 250, [&] {
    std::vector<std::string> problems;
    ASSERT_OK(store->Verify({}, &problems));
    EXPECT_TRUE(problems.empty());
  });
  Hold("write", 600 + 3 * key, [&] {
    const WriteCheckpointOptions options = {.world_size = 3};
    ASSERT_OK(
        WriteCheckpoint(FileEnv::Posix(), *store, folder_ / "again", options));
  });
  store.reset();

  WithEngines(3, [&](Engine* engine) {
    Hold(StrCat("load, rank ", engine->comm()->rank()), 450 + 3 * key, [&] {
      LoadReport report;
      ASSERT_OK(engine->Load(folder_ / "again", LoadOptions(), &report));
      EXPECT_EQ(report.match.loaded, size_.tensors());
    });
    int64_t different = 0;
    ForEachElement(*engine, [&](uint32_t value, std::byte* at) {
      different += std::memcmp(at, &value, sizeof(value)) != 0;
    });
    EXPECT_EQ(different, 0);
  });
}

}  // namespace
}  // namespace shard
