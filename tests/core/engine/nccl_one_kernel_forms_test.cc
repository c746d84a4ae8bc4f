// SPDX-License-Identifier: Apache-2.0
//
// Steps of several ranks in one kernel on each GPU, over the fakes of the
// driver and of NCCL: they have the bits of ranks on processors, launch nothing
// else, and call nothing of NCCL; where ranks do not reach each other's memory,
// or a step needs more, it is made of parts.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/observe/logger.h"
#include "tests/core/base/forwarding_env.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/cuda_graph_host.h"
#include "tests/core/engine/one_kernel_training.h"

namespace shard::nccl_one_kernel_forms_test {
namespace {

using one_kernel_training::ExpectedUpdates;
using one_kernel_training::ExpectMemory;
using one_kernel_training::ExpectSame;
using one_kernel_training::FakeNccl;
using one_kernel_training::Form;
using one_kernel_training::Gpus;
using one_kernel_training::MakeEngineOn;
using one_kernel_training::MakePlan;
using one_kernel_training::ParamsOf;
using one_kernel_training::Result;
using one_kernel_training::Step;
using one_kernel_training::Train;
using one_kernel_training::WithPeers;

class OneKernelTest : public ::testing::TestWithParam<Form> {};

TEST_P(OneKernelTest, HasTheBitsOfProcessors) {
  const Form& form = GetParam();
  const Result expected = Train("cpu", form);
  const Result one = Train("cuda", form);
  EXPECT_NE(one.json.find("\"one_kernel\":true"), std::string::npos)
      << one.json;
  EXPECT_EQ(one.reductions == 0, form.IsOneKernel());
  // A change of the plan gathers, too.
  EXPECT_EQ(one.gathers == 0, form.IsOneKernel() && form.thawed_at == 0);
  EXPECT_EQ(one.Updates(), ExpectedUpdates(form));
  if (form.IsOneKernel() && form.thawed_at == 0) {
    EXPECT_EQ(one.Launches(), one.Updates())
        << ::testing::PrintToString(one.launches);
  }
  // The plan before a change had other memory.
  if (form.thawed_at == 0) ExpectMemory(one.memory, form, true);
  ExpectSame(one, expected);
}

std::string NameOf(const ::testing::TestParamInfo<Form>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(
    Forms, OneKernelTest,
    ::testing::Values(
        Form{.name = "two_ranks"}, Form{.name = "three_ranks", .ranks = 3},
        Form{.name = "stage0", .ranks = 3, .stage = 0},
        Form{.name = "stage2", .ranks = 3, .stage = 2, .whole_grads = true},
        Form{.name = "sgd", .optimizer = "sgd?lr=0.5"},
        Form{.name = "bf16", .ranks = 3, .dtype = DType::kBF16},
        Form{.name = "f16", .ranks = 3, .dtype = DType::kF16},
        // A launch for each of two formulas.
        Form{.name = "two_formulas",
             .ranks = 3,
             .second = "sgd?lr=0.5&momentum=0.9"},
        // Sums of 16-bit gradients stay in fp32.
        Form{.name = "bf16_any_order",
             .ranks = 3,
             .dtype = DType::kBF16,
             .deterministic = false},
        Form{.name = "any_order", .ranks = 3, .deterministic = false},
        Form{
            .name = "bf16_f32_grads", .dtype = DType::kBF16, .f32_grads = true},
        Form{.name = "bf16_stochastic",
             .optimizer = "adamw?lr=0.1&states=q8",
             .dtype = DType::kBF16,
             .masters = Masters::kNoneStochastic},
        // Two ranks have padding alone.
        Form{.name = "padding", .ranks = 3, .sizes = {10, 7, 2700}},
        Form{.name = "padding_q8",
             .ranks = 3,
             .optimizer = "adamw?lr=0.1&states=q8",
             .sizes = {10, 7, 5}},
        // The plan is made anew, with other memory.
        Form{.name = "thawed", .ranks = 3, .thawed_at = 2},
        // Ranges in the order of ranks, as without groups.
        Form{.name = "groups_of_one", .ranks = 3, .shard_group_size = 1},
        Form{.name = "one_group", .ranks = 3, .shard_group_size = 3},
        // Steps in parts before and after.
        Form{.name = "clipped", .ranks = 3, .clipped_step = 2},
        Form{.name = "marked", .marked_from = 2},
        Form{.name = "begun", .ranks = 3, .marked_from = 3, .begins = true}),
    NameOf);

// A rank in join does not mark gradients, and takes part in what others mark.
INSTANTIATE_TEST_SUITE_P(
    Join, OneKernelTest,
    ::testing::Values(Form{.name = "written", .ranks = 3, .steps_of_last = 1},
                      Form{.name = "marked",
                           .ranks = 3,
                           .marked_from = 1,
                           .steps_of_last = 1},
                      Form{.name = "begun",
                           .ranks = 3,
                           .marked_from = 1,
                           .begins = true,
                           .steps_of_last = 2}),
    NameOf);

// One rank has nobody to meet: its update is one kernel in any case, and writes
// the parameters where they are.
TEST(OneKernelAloneTest, AStepOfOneRankIsOneLaunch) {
  const Form form = {.ranks = 1};
  const Result expected = Train("cpu", form);
  const Result one = Train("cuda", form);
  EXPECT_EQ(one.reductions, 0u);
  EXPECT_EQ(one.gathers, 0u);
  ExpectSame(one, expected);
  const auto counts = testing::fake_cuda::Count();
  EXPECT_EQ(counts.Launches("shard_update_AdamW"),
            static_cast<uint64_t>(one_kernel_training::kSteps));
  // Nothing of several ranks is made for it.
  EXPECT_EQ(testing::fake_nccl::Count().Calls("ncclCommWindowRegister"), 0u);
  EXPECT_EQ(one.json.find("one_kernel"), std::string::npos) << one.json;
}

// The kernels of later steps use the memory that a checkpoint was loaded into.
TEST(OneKernelTest, ACheckpointIsLoadedBetweenSteps) {
  const Form form = {.ranks = 3};
  const testing::TempFolder folder;
  // Trains step 1, saves, and trains steps 2 and 3; or trains step 2 twice,
  // with a load of the checkpoint before the second time.
  const auto train = [&](bool loads) {
    const FakeNccl fake(Gpus(form.ranks), WithPeers());
    const auto plan = MakePlan(form);
    Result result;
    result.params.resize(static_cast<size_t>(form.ranks));
    RunThreadRanks(
        form.ranks,
        [&](const std::shared_ptr<Communicator>& comm) {
          EngineOptions options;
          options.one_kernel = true;
          const auto made = MakeEngineOn("cuda", plan, comm, options);
          ASSERT_OK(made);
          Engine* const engine = made->get();
          ASSERT_OK(cuda_training::Fill(engine));
          ASSERT_OK(Step(engine, comm->rank(), 1));
          if (loads) {
            ASSERT_OK(Step(engine, comm->rank(), 7));
            LoadReport report;
            ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
            EXPECT_EQ(report.step, 1);
          } else {
            const SaveOptions save = {.async = false,
                                      .env = testing::NoSyncEnv::Get()};
            ASSERT_OK(engine->Save(folder.path(), save));
          }
          for (const int step : {2, 3}) {
            ASSERT_OK(Step(engine, comm->rank(), step));
          }
          ASSERT_OK(engine->Synchronize(0));
          EXPECT_NE(engine->ToJson().find("\"one_kernel\":true"),
                    std::string::npos);
          result.params[static_cast<size_t>(comm->rank())] = ParamsOf(engine);
          ASSERT_OK(comm->Barrier("all have read", Deadline::After(30)));
        },
        30, "direct=0");
    EXPECT_EQ(testing::fake_nccl::Count().Calls("ncclReduceScatter"), 0u);
    EXPECT_EQ(testing::fake_nccl::Count().Calls("ncclSend"), 0u);
    return result;
  };
  const Result saved = train(false);
  ExpectSame(train(true), saved);
  ExpectSame(saved, Train("cpu", form));
}

TEST(OneKernelFallbackTest, AStepThatClipsIsMadeOfParts) {
  const Form form = {.clipped_step = 1};
  const Result expected = Train("cpu", form);
  const Result parts = Train("cuda", form);
  EXPECT_GT(parts.reductions, 0u);
  ExpectSame(parts, expected);
}

// A step in a graph, between two that are one kernel.
TEST(OneKernelFallbackTest, ACapturedStepIsMadeOfParts) {
  const Form form;
  const Result expected = Train("cpu", form);
  const FakeNccl fake(Gpus(form.ranks), WithPeers());
  const auto plan = MakePlan(form);
  Result captured;
  captured.params.resize(static_cast<size_t>(form.ranks));
  RunThreadRanks(
      form.ranks,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions options;
        options.one_kernel = true;
        auto made = MakeEngineOn("cuda", plan, comm, options);
        ASSERT_OK(made);
        cuda_graphs::Host host(*std::move(made), comm->rank());
        Engine* const engine = host.engine();
        const auto step = [&](int number) -> Status {
          host.CopyGrads(number, true);
          SHARD_RETURN_IF_ERROR(engine->Step(StepOptions(), nullptr));
          return engine->Synchronize(0);
        };
        const auto calls = [&](const char* symbol) {
          return testing::fake_nccl::Count({.rank = comm->rank()})
              .Calls(symbol);
        };
        ASSERT_OK(step(1));
        EXPECT_EQ(calls("ncclAllGather"), 0u);
        ASSERT_OK(host.Capture(StepOptions()));
        EXPECT_GT(calls("ncclAllGather"), 0u);
        host.CopyGrads(2, true);
        ASSERT_OK(host.Replay(StepOptions()));
        ASSERT_OK(engine->AwaitStep());
        ASSERT_OK(step(3));
        EXPECT_EQ(engine->step(), 3);
        captured.params[static_cast<size_t>(comm->rank())] = ParamsOf(engine);
        ASSERT_OK(comm->Barrier("all have read", Deadline::After(30)));
      },
      30, "direct=0");
  ExpectSame(captured, expected);
}

TEST(OneKernelFallbackTest, RanksThatDoNotReachEachOtherSayWhy) {
  testing::fake_nccl::Options nccl = WithPeers();
  nccl.ranks_in_reach = 1;
  const Result parts = Train("cuda", {}, nccl);
  EXPECT_NE(parts.json.find("\"one_kernel\":false"), std::string::npos);
  EXPECT_NE(parts.json.find("does not reach the memory of rank"),
            std::string::npos)
      << parts.json;
  EXPECT_GT(parts.reductions, 0u);
  // Nothing is kept for steps that do not come.
  const auto bytes_of = [](const std::string& json) {
    const size_t at = json.find("\"registered_bytes\":");
    return json.substr(at, json.find_first_of(",}", at) - at);
  };
  const Result plain = Train("cuda", {}, nccl, /*one_kernel=*/false);
  EXPECT_EQ(plain.json.find("one_kernel"), std::string::npos) << plain.json;
  EXPECT_EQ(bytes_of(parts.json), bytes_of(plain.json));
}

TEST(OneKernelFallbackTest, RanksWithoutWindowsSayWhy) {
  const Result expected = Train("cpu", {});
  testing::fake_nccl::Options nccl = WithPeers();
  nccl.makes_windows = false;
  const Result parts = Train("cuda", {}, nccl);
  EXPECT_NE(parts.json.find("NCCL makes no windows of this memory"),
            std::string::npos)
      << parts.json;
  EXPECT_GT(parts.reductions, 0u);
  ExpectSame(parts, expected);
  ExpectMemory(parts.memory, {}, false);
}

// The first rank logs it, and no other one.
TEST(OneKernelFallbackTest, TheReasonIsLoggedOnce) {
  const FakeNccl fake(Gpus(2), {});
  const auto plan = MakePlan({});
  struct Lines {
    std::mutex mutex;
    std::vector<std::string> texts;
  } lines;
  CommOptions options;
  options.timeout = 30;
  options.logger = Logger(
      [](int32_t /*level*/, const char* message, void* to) {
        const std::string_view text = message;
        if (text.find("a step is not one kernel") == text.npos) return;
        auto* const all = static_cast<Lines*>(to);
        const std::lock_guard<std::mutex> lock(all->mutex);
        all->texts.emplace_back(text);
      },
      LogLevel::kInfo, &lines);
  RunThreadRanks(
      2,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions one;
        one.one_kernel = true;
        EXPECT_OK(MakeEngineOn("cuda", plan, comm, one));
      },
      options, "direct=0");
  ASSERT_EQ(lines.texts.size(), 1u);
  EXPECT_NE(lines.texts[0].find("use 2.31.2 or later"), std::string::npos)
      << lines.texts[0];
}

TEST(OneKernelFallbackTest, RanksChooseTheSame) {
  const FakeNccl fake(Gpus(2), WithPeers());
  const auto plan = MakePlan({});
  RunThreadRanks(
      2,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions options;
        options.one_kernel = comm->rank() == 0;
        ExpectError(MakeEngineOn("cuda", plan, comm, options),
                    StatusCode::kDesync, {"steps of one kernel"});
      },
      30, "direct=0");
}

TEST(OneKernelFallbackTest, AnOlderLibraryIsNamed) {
  const Result parts = Train("cuda", {}, {});
  EXPECT_NE(parts.json.find("use 2.31.2 or later"), std::string::npos)
      << parts.json;
}

TEST(OneKernelFallbackTest, ShardedGradientsAreNamed) {
  const FakeNccl fake(Gpus(3), WithPeers());
  const auto plan = MakePlan({.ranks = 3, .stage = 2});
  RunThreadRanks(
      3,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions options;
        options.one_kernel = true;
        const auto engine = MakeEngineOn("cuda", plan, comm, options);
        ASSERT_OK(engine);
        const std::string json = (*engine)->ToJson();
        EXPECT_NE(json.find("stage 2 reduces gradients unit by unit"),
                  std::string::npos)
            << json;
      },
      30, "direct=0");
}

// Such an engine has no gradients, and trains once it has some.
TEST(OneKernelFallbackTest, ParametersThatAreAllFrozenAreNamed) {
  const FakeNccl fake(Gpus(2), WithPeers());
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  EXPECT_OK(training.model->AddParam(kRootModule, "a", DType::kF32, {3000}));
  EXPECT_OK(training.model->SetTrainable(0, false));
  training.wrap = "";
  training.plan.world_size = 2;
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  RunThreadRanks(
      2,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions options;
        options.one_kernel = true;
        const auto engine = MakeEngineOn("cuda", *plan, comm, options);
        ASSERT_OK(engine);
        EXPECT_NE((*engine)->ToJson().find("no parameter is trainable"),
                  std::string::npos)
            << (*engine)->ToJson();
        ASSERT_OK(cuda_training::Fill(engine->get()));
        ASSERT_OK((*engine)->SetTrainable(std::vector{0}, true, 0));
        EXPECT_NE((*engine)->ToJson().find("\"one_kernel\":true"),
                  std::string::npos);
        ASSERT_OK(Step(engine->get(), comm->rank(), 1));
        ASSERT_OK((*engine)->Synchronize(0));
      },
      30, "direct=0");
}

}  // namespace
}  // namespace shard::nccl_one_kernel_forms_test
