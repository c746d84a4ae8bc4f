// SPDX-License-Identifier: Apache-2.0
//
// Steps of several ranks in one kernel on each GPU, over the fakes of the
// driver and of NCCL: they have the bits of ranks on processors, call nothing
// of NCCL, and end where a rank does not come; where ranks do not reach each
// other's memory, or a step needs more, it is made of parts.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/cuda_graph_host.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_one_kernel_test {
namespace {

using nccl_training::MakeEngineOn;
using testing::FakeNccl;

constexpr int kSteps = 3;
constexpr int kTellsPeers = 22902;

testing::fake_cuda::Options Gpus(int count) {
  testing::fake_cuda::Options options;
  options.devices = count;
  return options;
}

testing::fake_nccl::Options WithPeers() {
  testing::fake_nccl::Options options;
  options.version = kTellsPeers;
  return options;
}

struct Form {
  int ranks = 2;
  int stage = 1;
  std::string optimizer = "adamw?lr=0.1";
  std::string second = "";  // The optimizer of parameter 1, if another one.
  DType dtype = DType::kF32;
  bool f32_grads = false;
  Masters masters = Masters::kF32;
  bool whole_grads = false;
  bool deterministic = true;
  std::vector<int64_t> sizes = {2000, 2700, 3400};
  int clipped_step = 0;  // 0: none.
  int thawed_at = 0;     // Parameter 1 is frozen before this step.
  // From this step on gradients are marked when they are ready; 0: never.
  int marked_from = 0;
  bool begins = false;  // These steps are begun before.
  // The last rank has input for so many steps, and then joins; 0: for all.
  int steps_of_last = 0;

  // Returns whether each step is one kernel.
  bool IsOneKernel() const { return clipped_step == 0 && marked_from == 0; }
};

std::shared_ptr<const Plan> MakePlan(const Form& form) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  for (size_t u = 0; u < form.sizes.size(); ++u) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("block", u), "Block");
    EXPECT_OK(
        training.model->AddParam(block, "weight", form.dtype, {form.sizes[u]}));
  }
  if (!form.second.empty()) {
    EXPECT_OK(training.model->AddParamGroup(form.second, std::vector{1}));
  }
  if (form.thawed_at > 0) EXPECT_OK(training.model->SetTrainable(1, false));
  training.optimizer = form.optimizer;
  training.wrap = "class?names=Block";
  training.plan.world_size = form.ranks;
  training.plan.stage = form.stage;
  training.plan.whole_grads = form.whole_grads;
  training.plan.f32_grads = form.f32_grads;
  training.plan.masters = form.masters;
  training.plan.deterministic = form.deterministic;
  training.plan.prefetch = 0;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  // Small states take a page on each rank.
  if (form.stage > 0 && form.sizes == Form().sizes) {
    EXPECT_TRUE(ShardsAsItsStage(**plan));
  }
  return *plan;
}

// Writes this rank's gradients of a step where they lie.
Status WriteGrads(Engine* engine, int rank, int step) {
  SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
  const auto& params = engine->plan().model().params();
  for (size_t p = 0; p < params.size(); ++p) {
    const auto param = static_cast<ParamId>(p);
    if (!engine->plan().buffer(engine->plan().place(param).buffer).trainable) {
      continue;
    }
    SHARD_ASSIGN_OR_RETURN(const Engine::Tensor grad, engine->Grad(param));
    std::vector<float> values(static_cast<size_t>(grad.numel));
    for (int64_t i = 0; i < grad.numel; ++i) {
      values[static_cast<size_t>(i)] = GradientValue(step, param + 3 * rank, i);
    }
    Store(engine->plan().buffer(engine->plan().place(param).buffer).grad_dtype,
          values, grad.data);
  }
  return Status();
}

Status Step(Engine* engine, int rank, int step,
            const StepOptions& options = {}) {
  SHARD_RETURN_IF_ERROR(WriteGrads(engine, rank, step));
  return engine->Step(options, nullptr);
}

// Makes a step of a form.
Status TrainStep(const Form& form, Engine* engine, int rank, int step) {
  if (step == form.thawed_at) {
    SHARD_RETURN_IF_ERROR(engine->SetTrainable(std::vector{1}, true, 0));
  }
  const StepOptions options =
      step == form.clipped_step ? cuda_training::Clipped() : StepOptions();
  if (form.marked_from == 0 || step < form.marked_from) {
    return Step(engine, rank, step, options);
  }
  if (form.begins) SHARD_RETURN_IF_ERROR(engine->BeginStep(options));
  SHARD_RETURN_IF_ERROR(WriteGrads(engine, rank, step));
  const auto units = static_cast<int32_t>(engine->plan().units().size());
  for (int32_t unit = units; unit-- > 0;) {
    SHARD_RETURN_IF_ERROR(engine->MarkUnitGradsReady(unit));
  }
  return engine->Step(options, nullptr);
}

// Returns the bytes of all parameters.
std::vector<std::byte> ParamsOf(Engine* engine) {
  std::vector<std::byte> bytes;
  const auto& params = engine->plan().model().params();
  for (size_t p = 0; p < params.size(); ++p) {
    const auto param = engine->Param(static_cast<ParamId>(p));
    EXPECT_OK(param);
    const auto* const begin = static_cast<const std::byte*>(param->data);
    bytes.insert(bytes.end(), begin,
                 begin + DTypeBytes(params[p].dtype, param->numel));
  }
  return bytes;
}

struct Result {
  std::vector<std::vector<std::byte>> params;  // By rank.
  std::string json;                            // Of rank 0.
  uint64_t reductions = 0;                     // Calls of NCCL, in all steps.
  uint64_t gathers = 0;
};

// Trains on "cuda", with or without steps of one kernel, or on "cpu", where
// ranks share memory.
Result Train(const std::string& device, const Form& form,
             const testing::fake_nccl::Options& nccl = WithPeers(),
             bool one_kernel = true) {
  const FakeNccl fake(Gpus(form.ranks), nccl);
  const auto plan = MakePlan(form);
  Result result;
  result.params.resize(static_cast<size_t>(form.ranks));
  RunThreadRanks(
      form.ranks,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions options;
        options.one_kernel = one_kernel && device != "cpu";
        const auto engine = MakeEngineOn(device, plan, comm, options);
        ASSERT_OK(engine);
        ASSERT_OK(cuda_training::Fill(engine->get()));
        const bool is_last = comm->rank() == form.ranks - 1;
        const int steps =
            is_last && form.steps_of_last > 0 ? form.steps_of_last : kSteps;
        for (int step = 1; step <= steps; ++step) {
          ASSERT_OK(TrainStep(form, engine->get(), comm->rank(), step));
        }
        if (form.steps_of_last > 0) {
          int64_t joined = 0;
          ASSERT_OK((*engine)->Join(0, &joined));
          EXPECT_EQ(joined, kSteps - steps);
        }
        ASSERT_OK((*engine)->Synchronize(0));
        result.params[static_cast<size_t>(comm->rank())] =
            ParamsOf(engine->get());
        if (comm->rank() == 0) result.json = (*engine)->ToJson();
        ASSERT_OK(comm->Barrier("all have read", Deadline::After(30)));
      },
      30, device == "cpu" ? "" : "direct=0");
  const auto counts = testing::fake_nccl::Count({});
  result.reductions =
      counts.Calls("ncclReduceScatter") + counts.Calls("ncclSend");
  result.gathers = counts.Calls("ncclAllGather");
  return result;
}

// Expects the same parameters on each rank.
void ExpectSame(const Result& got, const Result& expected) {
  // The thread sanitizer's configuration has no fused multiply-add on the CPU.
  if (SHARD_TESTS_THREAD_SANITIZER != 0) return;
  for (size_t rank = 0; rank < got.params.size(); ++rank) {
    EXPECT_FALSE(got.params[rank].empty());
    EXPECT_TRUE(got.params[rank] == expected.params[rank]) << "rank " << rank;
  }
}

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
  ExpectSame(one, expected);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, OneKernelTest,
    ::testing::Values(
        Form{}, Form{.ranks = 3}, Form{.ranks = 3, .stage = 0},
        Form{.ranks = 3, .stage = 2, .whole_grads = true},
        Form{.optimizer = "sgd?lr=0.5"},
        Form{.ranks = 3, .dtype = DType::kBF16},
        // A launch for each of two formulas.
        Form{.ranks = 3, .second = "sgd?lr=0.5&momentum=0.9"},
        // Sums of 16-bit gradients stay in fp32.
        Form{.ranks = 3, .dtype = DType::kBF16, .deterministic = false},
        Form{.ranks = 3, .deterministic = false},
        Form{.dtype = DType::kBF16, .f32_grads = true},
        Form{.optimizer = "adamw?lr=0.1&states=q8",
             .dtype = DType::kBF16,
             .masters = Masters::kNoneStochastic},
        // Two ranks have padding alone.
        Form{.ranks = 3, .sizes = {10, 7, 2700}},
        Form{.ranks = 3,
             .optimizer = "adamw?lr=0.1&states=q8",
             .sizes = {10, 7, 5}},
        // The plan is made anew, with other memory.
        Form{.ranks = 3, .thawed_at = 2},
        // Steps in parts before and after.
        Form{.ranks = 3, .clipped_step = 2}, Form{.marked_from = 2},
        Form{.ranks = 3, .marked_from = 3, .begins = true}));

// A rank in join does not mark gradients, and takes part in what others mark.
INSTANTIATE_TEST_SUITE_P(
    Join, OneKernelTest,
    ::testing::Values(Form{.ranks = 3, .steps_of_last = 1},
                      Form{.ranks = 3, .marked_from = 1, .steps_of_last = 1},
                      Form{.ranks = 3,
                           .marked_from = 1,
                           .begins = true,
                           .steps_of_last = 2}));

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

TEST(OneKernelFallbackTest, AnOlderLibraryIsNamed) {
  const Result parts = Train("cuda", {}, {});
  EXPECT_NE(parts.json.find("use 2.29.2 or later"), std::string::npos)
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

// Enqueues a kernel that ends once `released` is set.
void HoldStream(Stream* stream, const std::atomic<bool>* released) {
  stream->Native("a test", [released](void* native) {
    int device = 0;
    const testing::fake_cuda::WaitingKernel kernel = {
        .name = "held",
        .context = testing::fake_cuda::CurrentContext(&device),
        .streams = {static_cast<cuda::CuStream>(native)},
        .begin = [released] {
          return [released] {
            return *released ? testing::fake_cuda::Progress::kDone
                             : testing::fake_cuda::Progress::kWaits;
          };
        }};
    EXPECT_EQ(testing::fake_cuda::LaunchWaiting(kernel),
              cuda::CuResult::kSuccess);
    return Status();
  });
}

// Three ranks make a step, and then one in which the kernels of two wait for
// that of rank 1, whose stream is held. `fail` is called on each rank before
// that step, and `expect` with its status. Nothing is updated anywhere.
constexpr int kHeld = 1;
void HoldInStep(
    const StepOptions& options,
    const std::function<void(const std::shared_ptr<Communicator>&)>& fail,
    const std::function<void(const Status&)>& expect) {
  constexpr int kRanks = 3;
  const FakeNccl fake(Gpus(kRanks), WithPeers());
  const auto plan = MakePlan({.ranks = kRanks});
  std::atomic<bool> released = false;
  std::atomic<int> ended = 0;
  RunThreadRanks(
      kRanks,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions engine_options;
        engine_options.one_kernel = true;
        const auto engine = MakeEngineOn("cuda", plan, comm, engine_options);
        ASSERT_OK(engine);
        ASSERT_OK(cuda_training::Fill(engine->get()));
        ASSERT_OK(Step(engine->get(), comm->rank(), 1));
        ASSERT_OK((*engine)->Synchronize(0));
        const std::vector<std::byte> before = ParamsOf(engine->get());
        if (comm->rank() == kHeld) {
          HoldStream(&(*engine)->host_stream(), &released);
        }
        fail(comm);
        const auto begin = std::chrono::steady_clock::now();
        expect((*engine)->Step(options, nullptr));
        const std::chrono::duration<double> seconds =
            std::chrono::steady_clock::now() - begin;
        EXPECT_LT(seconds.count(), kSanitized ? 10 : 2.5);
        // A host may see the deadline before its watchdog does, and a kernel
        // that is let go then may still make the step.
        if (++ended == kRanks) {
          const auto aborted = [] {
            return testing::fake_nccl::Count().Calls("ncclCommAbort");
          };
          const Deadline deadline = Deadline::After(30);
          while (aborted() < kRanks && !deadline.Expired()) {
            std::this_thread::yield();
          }
          released = true;
        }
        while (!released) std::this_thread::yield();
        testing::fake_cuda::RunAll();
        EXPECT_TRUE(ParamsOf(engine->get()) == before);
      },
      30, "direct=0");
}

TEST(OneKernelFailureTest, ARankWhoseStreamIsHeldEndsAll) {
  StepOptions options;
  options.timeout = 1;
  // All ranks have come to the step: nobody knows whose stream it is.
  HoldInStep(
      options, [](const auto&) {},
      [](const Status& status) {
        // The first rank that sees the deadline tells the others.
        EXPECT_NE(status.ToString().find("DEADLINE_EXCEEDED"),
                  std::string::npos)
            << status.ToString();
      });
}

// The hosts wait for the end of kernels that the failure ends.
TEST(OneKernelFailureTest, AStepThatWasEndedIsAnError) {
  constexpr int kRounds = kSanitized ? 2 : 8;
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    std::thread killer;
    StepOptions options;
    options.timeout = 60;
    HoldInStep(
        options,
        [&](const std::shared_ptr<Communicator>& comm) {
          if (comm->rank() != kHeld) return;
          killer = std::thread([comm] {
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            comm->Abort(RankLost(kHeld, "a test"));
          });
        },
        [](const Status& status) { EXPECT_FALSE(status.ok()); });
    killer.join();
  }
}

// The memory of other ranks is used until all kernels have ended.
TEST(OneKernelFailureTest, AnEngineEndsAfterAStepThatNobodyAwaits) {
  const FakeNccl fake(Gpus(3), WithPeers());
  const auto plan = MakePlan({.ranks = 3});
  RunThreadRanks(
      3,
      [&](const std::shared_ptr<Communicator>& comm) {
        const cuda_training::HostsStream stream(comm->rank());
        ASSERT_NE(stream.get(), nullptr);
        EngineOptions options;
        options.one_kernel = true;
        auto engine = MakeEngineOn("cuda", plan, comm, options);
        ASSERT_OK(engine);
        ASSERT_OK((*engine)->SetStream(stream.get()));
        ASSERT_OK(cuda_training::Fill(engine->get()));
        for (int step = 1; step <= 2; ++step) {
          ASSERT_OK(Step(engine->get(), comm->rank(), step));
        }
        engine->reset();
      },
      30, "direct=0");
}

}  // namespace
}  // namespace shard::nccl_one_kernel_test
