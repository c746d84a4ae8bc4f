// SPDX-License-Identifier: Apache-2.0
//
// State dicts of an engine whose collectives are NCCL's, taken while its last
// step may still run: they load into another such engine, and into one on the
// CPU.

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/device/cuda/cuda_device.h"
#include "core/engine/engine.h"
#include "core/engine/params/all_ranks.h"
#include "core/engine/state/local_state.h"
#include "core/state/memory_store.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/engine/whole_state.h"
#include "tests/core/engine/worlds.h"
#include "tests/core/flat/sharding.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_state_test {
namespace {

using testing::FakeNccl;

struct Form {
  int world_size;
  int stage;
  int group_size = 0;
};

StatusOr<std::unique_ptr<Engine>> MakeNcclEngine(
    const std::shared_ptr<const Plan>& plan,
    const std::shared_ptr<Communicator>& comm) {
  EngineOptions options;
  SHARD_ASSIGN_OR_RETURN(options.opened_device,
                         cuda::OpenDevice(StrCat(comm->rank())));
  options.transport = Transport::kNccl;
  return Engine::Create(plan, comm, options);
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

class NcclStateTest : public ::testing::TestWithParam<Form> {};

TEST_P(NcclStateTest, LoadsIntoAnyEngine) {
  const Form& form = GetParam();
  testing::fake_cuda::Options gpus;
  gpus.devices = form.world_size;
  const FakeNccl fake(gpus);
  UnitTraining training = AwkwardTraining(form.world_size, form.stage);
  training.plan.shard_group_size = form.group_size;
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  ASSERT_TRUE(ShardsAsItsStage(**plan));
  ASSERT_EQ((*plan)->shards_params(), form.stage == 3);
  WholeState trained, on_gpus, on_cpus;
  RunThreadRanks(
      form.world_size,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto made = MakeNcclEngine(*plan, comm);
        ASSERT_OK(made);
        Engine* const engine = made->get();
        UnitTrainer trainer(training, engine);
        trainer.Fill();
        for (const int step : {1, 2}) {
          trainer.Forward();
          trainer.Backward(step, true);
          ASSERT_OK(trainer.Step(nullptr));
          ASSERT_OK(engine->ZeroGrad());
        }
        // No call between the step and these waits for the GPU.
        MemoryStore dict;
        Gathered gathered;
        if (form.world_size == 2) {
          ASSERT_OK(engine->AddLocalState(StateOptions(), &dict));
          gathered = GatherAll(engine);
        } else {
          gathered = GatherAll(engine);
          ASSERT_OK(engine->AddLocalState(StateOptions(), &dict));
        }
        EXPECT_GT(gathered.size(), 10u);
        ASSERT_OK(engine->Synchronize(0));
        trained.Add(*engine);

        const auto load = [&](Engine* other, WholeState* loaded) {
          LoadReport report;
          ASSERT_OK(other->LoadState(&dict, LoadOptions(), &report));
          EXPECT_EQ(report.step, 2);
          ASSERT_OK(other->Synchronize(0));
          loaded->Add(*other);
          EXPECT_TRUE(GatherAll(other) == gathered);
        };
        const auto another = MakeNcclEngine(*plan, comm);
        ASSERT_OK(another);
        load(another->get(), &on_gpus);
        const auto cpu = Engine::Create(*plan, comm);
        ASSERT_OK(cpu);
        load(cpu->get(), &on_cpus);
      },
      60, "direct=0");
  EXPECT_GT(trained.tensors().size(), 10u);
  EXPECT_TRUE(on_gpus == trained) << trained.Differences(on_gpus);
  EXPECT_TRUE(on_cpus == trained) << trained.Differences(on_cpus);
}

INSTANTIATE_TEST_SUITE_P(Forms, NcclStateTest,
                         ::testing::Values(Form{2, 0}, Form{2, 1}, Form{2, 2},
                                           Form{2, 3}, Form{3, 0}, Form{3, 1},
                                           Form{3, 2}, Form{3, 3},
                                           Form{4, 3, 2}),
                         [](const auto& info) {
                           const Form& form = info.param;
                           return StrCat("stage", form.stage, "_of",
                                         form.world_size,
                                         form.group_size > 0 ? "_groups" : "");
                         });

}  // namespace
}  // namespace shard::nccl_state_test
