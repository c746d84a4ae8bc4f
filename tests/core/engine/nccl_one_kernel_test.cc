// SPDX-License-Identifier: Apache-2.0
//
// Steps of several ranks in one kernel on each GPU, over the fakes of the
// driver and of NCCL: they have the bits of ranks on processors, call nothing
// of NCCL, and end where a rank does not come; where ranks do not reach each
// other's memory, or a step needs more, it is made of parts.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/engine/engine.h"
#include "core/engine/transfer/collectives_memory.h"
#include "core/observe/logger.h"
#include "kernels/cuda/update_elements.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/kernel_accesses.h"
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
  DType dtype = DType::kF32;
  bool whole_grads = false;
  bool clips = false;
  bool marks = false;       // Gradients are marked as ready before the step.
  int64_t elements = 2000;  // Of the first parameter.
};

std::shared_ptr<const Plan> MakePlan(const Form& form) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  for (int u = 0; u < 3; ++u) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("block", u), "Block");
    EXPECT_OK(training.model->AddParam(block, "weight", form.dtype,
                                       {form.elements + 700 * u}));
  }
  training.optimizer = form.optimizer;
  training.wrap = "class?names=Block";
  training.plan.world_size = form.ranks;
  training.plan.stage = form.stage;
  training.plan.whole_grads = form.whole_grads;
  training.plan.deterministic = true;
  training.plan.prefetch = 0;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  EXPECT_TRUE(form.stage == 0 || ShardsAsItsStage(**plan));
  return *plan;
}

Status Step(Engine* engine, int rank, int step, const StepOptions& options) {
  SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
  const auto& params = engine->plan().model().params();
  for (size_t p = 0; p < params.size(); ++p) {
    const auto param = static_cast<ParamId>(p);
    SHARD_ASSIGN_OR_RETURN(const Engine::Tensor grad, engine->Grad(param));
    std::vector<float> values(static_cast<size_t>(grad.numel));
    for (int64_t i = 0; i < grad.numel; ++i) {
      values[static_cast<size_t>(i)] = GradientValue(step, param + 3 * rank, i);
    }
    Store(engine->plan().buffer(engine->plan().place(param).buffer).grad_dtype,
          values, grad.data);
  }
  return engine->Step(options, nullptr);
}

struct Result {
  std::vector<std::vector<std::byte>> params;  // By rank.
  std::string json;                            // Of rank 0.
  CollectivesMemory memory;                    // Of rank 0.
  uint64_t reductions = 0;                     // Calls of NCCL, in all steps.
  uint64_t gathers = 0;
};

Result Train(const std::string& device, const Form& form,
             const testing::fake_nccl::Options& nccl = WithPeers()) {
  const FakeNccl fake(Gpus(form.ranks), nccl);
  const auto plan = MakePlan(form);
  Result result;
  result.params.resize(static_cast<size_t>(form.ranks));
  RunThreadRanks(
      form.ranks,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions options;
        options.one_kernel = device != "cpu";
        const auto engine = MakeEngineOn(device, plan, comm, options);
        ASSERT_OK(engine);
        ASSERT_OK(cuda_training::Fill(engine->get()));
        for (int step = 1; step <= kSteps; ++step) {
          const StepOptions how =
              form.clips ? cuda_training::Clipped() : StepOptions();
          ASSERT_OK(form.marks
                        ? cuda_training::TrainOneStep(engine->get(), step, how)
                        : Step(engine->get(), comm->rank(), step, how));
        }
        ASSERT_OK((*engine)->Synchronize(0));
        auto& bytes = result.params[static_cast<size_t>(comm->rank())];
        for (size_t p = 0; p < plan->model().params().size(); ++p) {
          const auto param = (*engine)->Param(static_cast<ParamId>(p));
          ASSERT_OK(param);
          const auto* const begin = static_cast<const std::byte*>(param->data);
          bytes.insert(bytes.end(), begin,
                       begin + DTypeBytes(form.dtype, param->numel));
        }
        if (comm->rank() == 0) {
          result.json = (*engine)->ToJson();
          result.memory = (*engine)->collectives_memory();
        }
      },
      30, "direct=0");
  const auto counts = testing::fake_nccl::Count({});
  result.reductions =
      counts.Calls("ncclReduceScatter") + counts.Calls("ncclSend");
  result.gathers = counts.Calls("ncclAllGather");
  return result;
}

// The memory is the one that a plan predicts.
void ExpectMemory(const CollectivesMemory& memory, const Form& form,
                  bool one_kernel) {
  CollectivesMemory expected =
      CollectivesMemoryOf(*MakePlan(form), Transport::kNccl);
  if (one_kernel) expected += MeetingsMemory(form.ranks, Transport::kNccl);
  EXPECT_EQ(memory.device_bytes, expected.device_bytes);
  EXPECT_EQ(memory.host_bytes, expected.host_bytes);
}

class OneKernelTest : public ::testing::TestWithParam<Form> {};

TEST_P(OneKernelTest, HasTheBitsOfProcessors) {
  const Form& form = GetParam();
  const Result expected = Train("cpu", form);
  const Result one = Train("cuda", form);
  EXPECT_NE(one.json.find("\"one_kernel\":true"), std::string::npos)
      << one.json;
  EXPECT_EQ(one.reductions, 0u);
  EXPECT_EQ(one.gathers, 0u);
  ExpectMemory(one.memory, form, true);
  for (int r = 0; r < form.ranks; ++r) {
    const auto rank = static_cast<size_t>(r);
    EXPECT_FALSE(one.params[rank].empty());
    EXPECT_TRUE(one.params[rank] == expected.params[rank]) << "rank " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, OneKernelTest,
    ::testing::Values(Form{}, Form{.ranks = 3}, Form{.ranks = 3, .stage = 0},
                      Form{.ranks = 3, .stage = 2, .whole_grads = true},
                      Form{.optimizer = "sgd?lr=0.5"},
                      // Some ranks have no elements of a unit.
                      Form{.ranks = 3, .elements = 5},
                      Form{.ranks = 3, .dtype = DType::kBF16}));

TEST(OneKernelFallbackTest, AStepThatClipsIsMadeOfParts) {
  const Form form = {.clips = true};
  const Result expected = Train("cpu", form);
  const Result parts = Train("cuda", form);
  EXPECT_GT(parts.reductions, 0u);
  EXPECT_TRUE(parts.params[1] == expected.params[1]);
}

TEST(OneKernelFallbackTest, AStepAfterGradientsThatAreReadyIsMadeOfParts) {
  const Form form = {.marks = true};
  const Result expected = Train("cpu", form);
  const Result parts = Train("cuda", form);
  EXPECT_GT(parts.reductions, 0u);
  EXPECT_TRUE(parts.params[1] == expected.params[1]);
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
  EXPECT_TRUE(parts.params[1] == expected.params[1]);
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
  EXPECT_NE(lines.texts[0].find("use 2.29.2 or later"), std::string::npos)
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

// Returns where the engine has the parameters, and their bytes.
std::vector<std::span<const std::byte>> ParamsOf(Engine* engine) {
  std::vector<std::span<const std::byte>> all;
  for (size_t p = 0; p < engine->plan().model().params().size(); ++p) {
    const auto param = engine->Param(static_cast<ParamId>(p));
    EXPECT_OK(param);
    all.emplace_back(static_cast<const std::byte*>(param->data),
                     DTypeBytes(DType::kF32, param->numel));
  }
  return all;
}

// A rank whose kernel has met the others, and then takes long, has stored
// nothing yet: the steps of the others end after it.
TEST(OneKernelOrderTest, AStepEndsOnceAllRanksHaveStored) {
  using testing::fake_cuda::Progress;
  constexpr uint32_t kSlow = 1;
  const FakeNccl fake(Gpus(3), WithPeers());
  const auto plan = MakePlan({.ranks = 3});
  std::atomic<bool> waits = false;
  std::atomic<bool> stores = false;
  testing::fake_cuda::DescribeWaits(
      "shard_update_AdamW", [&](const void* args, std::function<void()> run) {
        const auto* const launched =
            static_cast<const cuda::UpdateElementsArgs*>(args);
        return
            [&, launched, update = testing::BeginUpdate(args, std::move(run))] {
              const cuda::PeerMeetings& meetings = *launched->meetings;
              const bool has_met =
                  meetings.rank == kSlow &&
                  *cuda::FlagAt(meetings, cuda::PeerFlag::kCome, 0, kSlow) > 0;
              if (has_met) waits = true;
              return has_met && !stores ? Progress::kWaits : update();
            };
      });
  std::thread later([&] {
    EXPECT_TRUE(testing::ComesTrue([&] { return waits.load(); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stores = true;
  });
  RunThreadRanks(
      3,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions options;
        options.one_kernel = true;
        const auto engine = MakeEngineOn("cuda", plan, comm, options);
        ASSERT_OK(engine);
        ASSERT_OK(cuda_training::Fill(engine->get()));
        ASSERT_OK(Step(engine->get(), comm->rank(), 1, StepOptions()));
        ASSERT_OK((*engine)->Synchronize(0));
        EXPECT_TRUE(stores);
        // The kernel of the slow rank uses this one's memory.
        EXPECT_TRUE(testing::ComesTrue([&] { return stores.load(); }));
      },
      30, "direct=0");
  later.join();
}

// The kernels of the others wait for the one of a rank whose stream is held,
// until its time is over, and update nothing.
TEST(OneKernelFailureTest, ARankWhoseStreamIsHeldEndsAll) {
  constexpr int kHeld = 1;
  const FakeNccl fake(Gpus(3), WithPeers());
  const auto plan = MakePlan({.ranks = 3});
  std::atomic<bool> released = false;
  std::atomic<int> ended = 0;
  RunThreadRanks(
      3,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions options;
        options.one_kernel = true;
        auto engine = MakeEngineOn("cuda", plan, comm, options);
        ASSERT_OK(engine);
        ASSERT_OK(cuda_training::Fill(engine->get()));
        ASSERT_OK(Step(engine->get(), comm->rank(), 1, StepOptions()));
        ASSERT_OK((*engine)->Synchronize(0));
        const auto params = ParamsOf(engine->get());
        std::vector<std::vector<std::byte>> before;
        for (const auto& it : params) before.emplace_back(it.begin(), it.end());
        if (comm->rank() == kHeld) {
          HoldStream(&(*engine)->host_stream(), &released);
        }
        auto begin = std::chrono::steady_clock::now();
        const auto seconds = [&] {
          const auto end = std::chrono::steady_clock::now();
          return std::chrono::duration<double>(end - begin).count();
        };
        StepOptions step;
        step.timeout = 1;
        const Status status = (*engine)->Step(step, nullptr);
        EXPECT_LT(seconds(), 2.5);
        for (size_t p = 0; p < params.size(); ++p) {
          EXPECT_TRUE(std::ranges::equal(params[p], before[p])) << p;
        }
        if (++ended == 3) {
          // The rank that is held knows by then that the step has failed, and
          // its kernel does not come to the others.
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          released = true;
        }
        // All ranks have come to the step: nobody knows whose stream it is.
        // A rank may be told another one's error.
        EXPECT_NE(status.ToString().find("DEADLINE_EXCEEDED"),
                  std::string::npos)
            << status.ToString();
        while (!released) std::this_thread::yield();
        // The kernels of all ranks have ended, or do.
        EXPECT_TRUE(testing::ComesTrue(
            [] { return testing::fake_cuda::NumPending() == 0; },
            Deadline::After(5)));
        begin = std::chrono::steady_clock::now();
        engine->reset();
        EXPECT_LT(seconds(), 2.5);
      },
      30, "direct=0");
}

}  // namespace
}  // namespace shard::nccl_one_kernel_test
