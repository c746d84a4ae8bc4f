// SPDX-License-Identifier: Apache-2.0
//
// State dicts of an engine whose tensors lie in memory of a device.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/element_type.h"
#include "core/engine/params/all_ranks.h"
#include "core/engine/state/local_state.h"
#include "core/state/memory_store.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/guard_device.h"
#include "tests/core/device/guard_memory.h"
#include "tests/core/engine/worlds.h"

namespace shard::device_state_test {
namespace {

using testing::GuardTensors;
using testing::KernelView;

// Expects the parts to lie in memory of the device, and their copies to have
// the same bytes.
void ExpectPartsOfTheDevice(const MemoryStore& dict) {
  int parts = 0;
  for (size_t t = 0; t < dict.num_tensors(); ++t) {
    const MemoryStore::Part& part = dict.part(t);
    const auto copy = dict.CopyPart(t);
    ASSERT_OK(copy);
    const size_t bytes =
        static_cast<size_t>(part.numel) * ElementSize(dict.tensor(t).type);
    ASSERT_EQ(copy->size(), bytes);
    if (bytes == 0) continue;
    const std::byte* const kernels = KernelView(part.data);
    EXPECT_NE(kernels, part.data);
    EXPECT_EQ(std::memcmp(copy->data(), kernels, bytes), 0);
    ++parts;
  }
  EXPECT_GT(parts, 0);
}

using Gathered = std::map<std::string, std::vector<std::byte>>;

// Returns the bytes of all tensors, by key.
Gathered GatherAll(Engine* engine) {
  Gathered all;
  EXPECT_OK(engine->GatherState(
      StateOptions(), kAllRanks, 0,
      [&](const StateEntry& entry, const std::byte* data) {
        const size_t bytes =
            data == nullptr ? 0 : EntryBytes(entry, entry.numel);
        all[entry.key].assign(data, data + bytes);
        return Status();
      }));
  return all;
}

TEST(DeviceStateTest, AStateDictOfADeviceLoadsIntoAnyEngine) {
  for (const int variant : {0, 1, 3}) {
    const UnitTraining training = AwkwardTraining(2, variant);
    const auto plan = PlanOf(training);
    ASSERT_OK(plan);
    WholeState trained, back, other;
    RunThreadRanks(
        2,
        [&](const auto& comm) {
          EngineOptions options;
          options.opened_device = GuardTensors(*OpenDevice("cpu"));
          auto made = Engine::Create(*plan, GuardTensors(comm), options);
          ASSERT_OK(made);
          Engine* const engine = made->get();
          UnitTrainer trainer(training, engine);
          trainer.Fill();
          TrainSteps(1, 2, engine, &trainer);
          trained.Add(*engine);
          MemoryStore dict;
          ASSERT_OK(engine->AddLocalState(StateOptions(), &dict));
          ExpectPartsOfTheDevice(dict);
          // An engine whose tensors are the host's.
          auto host = Engine::Create(*plan, comm);
          ASSERT_OK(host);
          LoadReport report;
          ASSERT_OK((*host)->LoadState(&dict, LoadOptions(), &report));
          EXPECT_EQ(report.step, 2);
          other.Add(**host);
          const Gathered gathered = GatherAll(engine);
          EXPECT_GT(gathered.size(), 10u);
          EXPECT_TRUE(gathered == GatherAll(host->get()));
          ASSERT_OK(engine->LoadState(&dict, LoadOptions(), &report));
          back.Add(*engine);
        },
        60, training.link);
    EXPECT_TRUE(other == trained) << trained.Differences(other);
    EXPECT_TRUE(back == trained) << trained.Differences(back);
  }
}

}  // namespace
}  // namespace shard::device_state_test
