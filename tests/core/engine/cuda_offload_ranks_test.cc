// SPDX-License-Identifier: Apache-2.0
//
// Two ranks on the device cuda, over the fake of its driver, that shard
// optimizer states and masters which are offloaded to the host's memory, and in
// stages 2 and 3 gradients and parameters, too. Parameters, states and masters
// have the bits of ranks on the host, and both memories are as planned.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/offload.h"
#include "core/base/strings.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/device.h"
#include "core/device/offload/offloading_device.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_offload_training.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/engine/whole_state.h"
#include "tests/core/flat/sharding.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_offload_ranks_test {
namespace {

using cuda_training::HostsStream;

constexpr int kRanks = 2;
constexpr int kSteps = 3;

// A window takes one page in bf16, and two in fp32, which sums may have.
constexpr Offload kOffload = {.threads = 3, .window = 1536};

struct Form {
  const char* name;
  int stage = 1;
  bool begins = false;
  // Halves of gradients in fp32 take as much memory as whole ones in bf16.
  bool f32_grads = false;
  Partition partition = Partition::kEven;
};

class OffloadRanksTest : public testing::FakeCudaTest,
                         public ::testing::WithParamInterface<Form> {};

// Returns a model of eight units of several pages, of which ranks keep one
// whole where the others are sharded.
std::shared_ptr<Model> LargeBlocks() {
  auto model = std::make_shared<Model>("Root");
  EXPECT_OK(model->AddParam(kRootModule, "base", DType::kBF16, {10}));
  for (int b = 0; b < 8; ++b) {
    const ModuleId block =
        *model->AddModule(kRootModule, StrCat("b", b), "Block");
    EXPECT_OK(model->AddParam(block, "weight", DType::kBF16, {80, 90 + b}));
    EXPECT_OK(model->AddParam(block, "bias", DType::kBF16, {90 + b}));
  }
  return model;
}

// Returns the number of masters that this rank has, and expects these and all
// other states to lie where they are expected.
int64_t CountMasters(const Engine& engine, bool offloads) {
  int64_t masters = 0;
  for (const EngineBuffer& buffer : engine.memory().buffers()) {
    EXPECT_TRUE(buffer.plan->has_masters);
    for (const unsigned char* const state : buffer.states) {
      if (!offloads) break;
      EXPECT_OK(
          (*cuda::OpenDevice("0"))->CheckPlace(state, MemoryPlace::kHost));
    }
    const FlatLayout& layout =
        buffer.plan->StateLayout(buffer.states.size() - 1);
    for (const SlotSlice& slice : layout.SlicesOf(engine.comm()->rank())) {
      masters += slice.numel;
    }
  }
  return masters;
}

TEST_P(OffloadRanksTest, HaveTheBitsOfTheHost) {
  const Form& form = GetParam();
  UnitTraining training;
  training.model = LargeBlocks();
  training.wrap = "class?names=Block";
  training.plan.world_size = kRanks;
  training.plan.stage = form.stage;
  training.plan.partition = form.partition;
  training.plan.f32_grads = form.f32_grads;
  // Sums do not depend on whether ranks share memory.
  training.plan.deterministic = true;
  training.plan.prefetch = 0;
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  ASSERT_TRUE(ShardsAsItsStage(**plan));
  WholeState states[2];
  int64_t masters[kRanks] = {};
  for (const bool offloads : {false, true}) {
    RunThreadRanks(kRanks, [&](const auto& comm) {
      EngineOptions options;
      std::optional<HostsStream> stream;
      if (offloads) {
        options.opened_device =
            OffloadStates(*cuda::OpenDevice("0"), *OpenDevice("cpu"), kOffload);
        stream.emplace();
      }
      const auto made = Engine::Create(*plan, comm, options);
      ASSERT_OK(made);
      Engine* const engine = made->get();
      masters[comm->rank()] = CountMasters(*engine, offloads);
      if (offloads) {
        // GPUs share no memory.
        const MemoryReport planned =
            (*plan)->Memory(false, &kOffload, Processor::kGpu);
        EXPECT_EQ(engine->Memory().DeviceTotal(), planned.DeviceTotal());
        EXPECT_EQ(engine->Memory().PinnedTotal(), planned.PinnedTotal());
      }
      if (offloads) ASSERT_OK(engine->SetStream(stream->get()));
      UnitTrainer trainer(training, engine);
      trainer.Fill();
      for (int step = 1; step <= kSteps; ++step) {
        if (form.begins) ASSERT_OK(engine->BeginStep(training.step));
        trainer.Forward();
        trainer.Backward(step, true);
        ASSERT_OK(trainer.Step(nullptr));
        ASSERT_OK(engine->ZeroGrad());
      }
      ASSERT_OK(engine->Synchronize(0));
      EXPECT_EQ(engine->step(), kSteps);
      states[offloads].Add(*engine);
    });
  }
  EXPECT_EQ(states[1].Differences(states[0]), "");
  int64_t params = 0;
  for (const Model::Param& param : training.model->params()) {
    params += param.numel;
  }
  // Each rank has masters of its own.
  EXPECT_EQ(masters[0] + masters[1], params);
  EXPECT_GT(masters[0], params / 4);
  EXPECT_GT(masters[1], params / 4);
  // A parameter, two states and a master.
  EXPECT_EQ(states[0].tensors().size(), 4 * training.model->params().size());
}

INSTANTIATE_TEST_SUITE_P(
    , OffloadRanksTest,
    ::testing::Values(Form{.name = "stage1"},
                      Form{.name = "stage1_greedy",
                           .partition = Partition::kGreedy},
                      Form{.name = "stage2", .stage = 2, .f32_grads = true},
                      Form{.name = "stage3", .stage = 3, .f32_grads = true},
                      Form{.name = "begun_stage1", .begins = true},
                      Form{.name = "begun_stage2",
                           .stage = 2,
                           .begins = true,
                           .f32_grads = true},
                      Form{.name = "begun_stage3",
                           .stage = 3,
                           .begins = true,
                           .f32_grads = true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shard::cuda_offload_ranks_test
