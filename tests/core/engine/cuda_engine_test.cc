// SPDX-License-Identifier: Apache-2.0
//
// Engines on the device cuda, over the fake of its driver: what a steady step
// costs, and fork. cuda_tensor_launches_test has the steps of LAMB and
// Adafactor, cuda_memory_test lets memory run out, cuda_host_test has a host
// that does work of its own, and cuda_faults_test makes the driver fail.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/driver_api.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_engine_test {
namespace {

using cuda_training::Clipped;
using cuda_training::Fill;
using cuda_training::Form;
using cuda_training::HostsStream;
using cuda_training::MakeEngine;
using cuda_training::MakePlan;
using cuda_training::OpenLocal;
using cuda_training::ReadParam;
using cuda_training::TrainOneStep;
using testing::FakeCuda;
using testing::FakeCudaTest;
using testing::fake_cuda::Alive;
using testing::fake_cuda::ClearViolations;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountAlive;
using testing::fake_cuda::CountInChild;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::NumPending;
using testing::fake_cuda::Pause;
using testing::fake_cuda::Resume;
using testing::fake_cuda::RunAll;
using testing::fake_cuda::ViolationText;
using FakeCounters = testing::fake_cuda::Counters;

// ---- What a step costs ------------------------------------------------------

// Declares the gradients of all units.
void Backward(Engine* engine) {
  for (auto unit = static_cast<int32_t>(engine->plan().units().size());
       unit-- > 0;) {
    ASSERT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
    ASSERT_OK(engine->MarkUnitGradsReady(unit));
    ASSERT_OK(engine->UnitRelease(unit));
  }
}

void Step(Engine* engine) {
  Backward(engine);
  ASSERT_OK(engine->Step(Clipped(), nullptr));
}

void ExpectOnGpu(const StatusOr<Engine::Tensor>& tensor) {
  ASSERT_OK(tensor);
  const auto device = cuda::OpenDevice("0");
  ASSERT_OK(device);
  EXPECT_OK((*device)->CheckPlace(tensor->data, MemoryPlace::kDevice));
}

// Returns what each step calls once all is warm, its backward pass included.
FakeCounters CountStep(const Form& form) {
  const FakeCuda fake;
  const HostsStream stream;
  const auto engine = MakeEngine(MakePlan(form), OpenLocal());
  EXPECT_OK(engine);
  EXPECT_OK((*engine)->SetStream(stream.get()));
  EXPECT_OK(Fill(engine->get()));
  const size_t params = (*engine)->plan().places().size();
  for (ParamId p = 0; p < static_cast<ParamId>(params); ++p) {
    ExpectOnGpu((*engine)->Param(p));
    ExpectOnGpu((*engine)->Grad(p));
  }
  FakeCounters counters;
  for (int step = 1; step <= 7; ++step) {
    // Then each wait of the host is one query.
    RunAll();
    const FakeCounters before = Count();
    Step(engine->get());
    const FakeCounters made = CountSince(before);
    if (step > 4) {
      EXPECT_EQ(made.calls, counters.calls) << "step " << step;
    }
    counters = made;
  }
  EXPECT_OK((*engine)->Synchronize(0));
  return counters;
}

// Takes the calls that only make the context current for others. A call has at
// most one of each pair.
std::map<std::string, uint64_t> WithoutContext(const FakeCounters& counters) {
  std::map<std::string, uint64_t> calls = counters.calls;
  const uint64_t pushes = calls["cuCtxPushCurrent"];
  EXPECT_EQ(calls["cuCtxPopCurrent"], pushes);
  EXPECT_EQ(calls["cuThreadExchangeStreamCaptureMode"], 2 * pushes);
  calls.erase("cuCtxPushCurrent");
  calls.erase("cuCtxPopCurrent");
  calls.erase("cuThreadExchangeStreamCaptureMode");
  uint64_t others = 0;
  for (const auto& [symbol, count] : calls) others += count;
  EXPECT_LE(pushes, others);
  return calls;
}

TEST(StepCostTest, NoCallDrainsTheDevice) {
#define SHARD_SYMBOL(name, symbol, parameters) #symbol,
  for (const std::string_view symbol : {SHARD_CUDA_DRIVER(SHARD_SYMBOL)}) {
    EXPECT_EQ(symbol.find("Synchronize"), std::string_view::npos) << symbol;
  }
#undef SHARD_SYMBOL
}

// No other call: nothing is allocated, freed, made or loaded.
TEST(StepCostTest, AStepMakesTheseCallsAndNoOther) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int units : {1, 2, 10}) {
      SCOPED_TRACE(StrCat("stage ", stage, ", ", units, " units"));
      const FakeCounters counters = CountStep({.units = units, .stage = stage});
      const auto buffers = static_cast<uint64_t>(units);
      const std::map<std::string, uint64_t> expected = {
          // For the step before.
          {"cuEventQuery", 1},
          // Of the host's stream, whose gradients are complete; of the step's
          // end, for the next one; and of its end, for the host's stream.
          {"cuEventRecord", 3},
          // In each call, of the unit without parameters, too; and before each
          // use of the host's stream.
          {"cuStreamIsCapturing", 3 * (buffers + 1) + 3},
          {"cuStreamWaitEvent", 2},
          // The step's values, where the step reads them, and its results.
          {"cuMemcpyAsync", 3},
          // The sums of norms.
          {"cuMemsetD8Async", 1},
          {"cuLaunchKernel", buffers + 2}};
      EXPECT_EQ(WithoutContext(counters), expected);
      const std::map<std::string, uint64_t> launches = {
          {"shard_add_to_norm", buffers},
          {"shard_finish_norm", 1},
          {"shard_update_AdamW", 1}};
      EXPECT_EQ(counters.launches, launches);
      EXPECT_EQ(counters.waits_of_host, 0u);
      EXPECT_EQ(counters.pageable_copies, 0u);
      EXPECT_EQ(counters.to_device.count, 1u);
      EXPECT_EQ(counters.to_host.count, 1u);
      EXPECT_EQ(counters.on_device.count, 1u);
      EXPECT_LE(counters.to_device.bytes + counters.to_host.bytes +
                    counters.on_device.bytes + counters.memsets.bytes,
                4096u);
    }
  }
}

TEST(StepCostTest, DependsOnNoNumberOfTensors) {
  const FakeCounters one = CountStep({});
  const FakeCounters many = CountStep({.tensors_per_unit = 1000});
  EXPECT_EQ(many.calls, one.calls);
  EXPECT_EQ(many.launches, one.launches);
  EXPECT_EQ(many.to_device, one.to_device);
  EXPECT_EQ(many.to_host, one.to_host);
  EXPECT_EQ(many.on_device, one.on_device);
  EXPECT_EQ(many.memsets, one.memsets);
}

// A launch has as many blocks as the device runs at once, which are 2 on each
// of the fake's 2 multiprocessors, and no more than there is work for.
TEST(StepCostTest, AGridHasTheSizeOfTheDevice) {
  for (const auto& [elements, updates, norms] :
       {std::array<int64_t, 3>{1000, 1, 1}, {4000, 2, 1}, {1000000, 4, 4}}) {
    SCOPED_TRACE(elements);
    const FakeCounters counters = CountStep({.elements_per_unit = elements});
    const std::map<std::string, uint64_t> blocks = {
        {"shard_add_to_norm", norms},
        {"shard_finish_norm", 1},
        {"shard_update_AdamW", updates}};
    EXPECT_EQ(counters.blocks, blocks);
  }
}

TEST(StepCostTest, EachUnitAddsTheSame) {
  const FakeCounters two = CountStep({.units = 2});
  const FakeCounters three = CountStep({.units = 3});
  const FakeCounters ten = CountStep({.units = 10});
  for (const auto& [symbol, count] : ten.calls) {
    EXPECT_EQ(count - two.Calls(symbol),
              8 * (three.Calls(symbol) - two.Calls(symbol)))
        << symbol;
  }
  EXPECT_EQ(ten.to_device, two.to_device);
  EXPECT_EQ(ten.to_host, two.to_host);
}

// A step returns with its work still to be done, and the next one waits for it.
TEST(StepCostTest, AStepWaitsForTheOneBefore) {
  const FakeCuda fake;
  const HostsStream stream;
  const auto engine = MakeEngine(MakePlan({}), OpenLocal());
  ASSERT_OK(engine);
  ASSERT_OK((*engine)->SetStream(stream.get()));
  ASSERT_OK(Fill(engine->get()));
  Step(engine->get());
  ASSERT_OK((*engine)->Synchronize(0));
  Pause();
  Step(engine->get());
  EXPECT_GT(NumPending(), 5u);
  std::atomic<bool> returned = false;
  std::thread next([&] {
    Step(engine->get());
    returned = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(returned);
  Resume();
  next.join();
  EXPECT_OK((*engine)->Synchronize(0));
}

// Returns the calls that make or free something, or drain the device.
std::map<std::string, uint64_t> MakingCalls(const FakeCounters& counters) {
  std::map<std::string, uint64_t> making;
  for (const auto& [symbol, count] : counters.calls) {
    for (const char* word : {"Alloc", "Create", "Load", "Free", "Destroy",
                             "Unload", "Trim", "Retain", "Release"}) {
      if (symbol.find(word) != std::string::npos) making[symbol] = count;
    }
  }
  return making;
}

void Forward(Engine* engine) {
  const auto units = static_cast<int32_t>(engine->plan().units().size());
  for (int32_t unit = 0; unit < units; ++unit) {
    EXPECT_OK(engine->UnitAcquire(unit, Pass::kForward, 0));
    EXPECT_OK(engine->UnitRelease(unit));
  }
}

// Ranks that share a GPU move their tensors through pinned memory, in threads
// of their own. How far these are behind the host, and so how many events are
// in use, is chance: steps may make some now and then, but not for long.
TEST(StepCostTest, AStepOfStagedRanksMakesNothing) {
  constexpr uint64_t kSteps = 10;
  constexpr int kMostRounds = 6;
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(StrCat("stage ", stage));
    const FakeCuda fake;
    const auto plan = MakePlan({.units = 3, .world_size = 2, .stage = stage});
    bool made_nothing = false;
    std::barrier<> all(2);
    RunThreadRanks(2, [&](const auto& comm) {
      const HostsStream stream;
      const auto engine = MakeEngine(plan, comm);
      EXPECT_OK(engine);
      EXPECT_OK((*engine)->SetStream(stream.get()));
      EXPECT_OK(Fill(engine->get()));
      const auto train = [&] {
        for (uint64_t step = 0; step < kSteps; ++step) {
          Forward(engine->get());
          Step(engine->get());
        }
        EXPECT_OK((*engine)->Synchronize(0));
        all.arrive_and_wait();
      };
      train();
      for (int round = 0; round < kMostRounds && !made_nothing; ++round) {
        const FakeCounters before = Count();
        all.arrive_and_wait();
        train();
        if (comm->rank() == 0) {
          const FakeCounters made = CountSince(before);
          auto making = MakingCalls(made);
          made_nothing = making.empty();
          making.erase("cuEventCreate");
          EXPECT_EQ(making, (std::map<std::string, uint64_t>()));
          EXPECT_EQ(made.waits_of_host, 0u);
          EXPECT_EQ(made.pageable_copies, 0u);
          // Tensors did go through the host: a rank's half of each, at least.
          const uint64_t bytes = kSteps * plan->units().size() * 4000 * 2;
          EXPECT_GE(made.to_host.bytes, bytes);
          EXPECT_GE(made.to_device.bytes, bytes);
        }
        all.arrive_and_wait();
      }
    });
    EXPECT_TRUE(made_nothing);
  }
}

// ---- Order ------------------------------------------------------------------

// What the host enqueues before a step and after it is ordered with the kernels
// of the step. Work of another stream is not, and the fake finds that.
TEST(StepOrderTest, TheHostsWorkIsOrderedWithTheKernels) {
  const FakeCuda fake;
  const HostsStream stream;
  const HostsStream other;
  const auto engine = MakeEngine(MakePlan({}), OpenLocal());
  ASSERT_OK(engine);
  ASSERT_OK((*engine)->SetStream(stream.get()));
  ASSERT_OK(Fill(engine->get()));
  const auto param = (*engine)->Param(0);
  const auto grad = (*engine)->Grad(0);
  ASSERT_OK(param);
  ASSERT_OK(grad);
  const auto from = reinterpret_cast<cuda::CuPointer>(param->data);
  const auto to = reinterpret_cast<cuda::CuPointer>(grad->data);
  const cuda::DriverApi& api = (*cuda::Driver::Load())->api();
  const auto copy = [&](const HostsStream& on) {
    EXPECT_EQ(api.MemcpyAsync(to, from, 4000 * sizeof(float), on.get()),
              cuda::CuResult::kSuccess);
  };
  for (int step = 1; step <= 3; ++step) {
    copy(stream);
    Step(engine->get());
  }
  copy(stream);
  EXPECT_EQ(ViolationText(), "");
  Step(engine->get());
  copy(other);
  EXPECT_NE(ViolationText().find("is not ordered after shard_update_AdamW"),
            std::string::npos)
      << ViolationText();
  ClearViolations();
  // The host learns that the copy is over, so that memory may be freed.
  cuda::CuEvent copied = nullptr;
  ASSERT_EQ(api.EventCreate(&copied, 0), cuda::CuResult::kSuccess);
  ASSERT_EQ(api.EventRecord(copied, other.get()), cuda::CuResult::kSuccess);
  RunAll();
  EXPECT_EQ(api.EventQuery(copied), cuda::CuResult::kSuccess);
  EXPECT_EQ(api.EventDestroy(copied), cuda::CuResult::kSuccess);
  EXPECT_OK((*engine)->Synchronize(0));
}

// ---- fork -------------------------------------------------------------------

// Runs `body` in a child of fork, which then exits as programs do: what is
// static is destroyed. An engine is not, if `body` has not destroyed it.
void InChild(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60);
    body();
    const int code = ::testing::Test::HasFailure() ? 1 : 0;
    std::fflush(nullptr);
    // What a child leaves alone is a leak to the address sanitizer.
    if (kSanitized) ::_exit(code);
    std::exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_FALSE(WIFSIGNALED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "see above";
}

void ExpectForked(const Status& status) {
  ExpectError(status, StatusCode::kFailedPrecondition,
              {"CUDA_ERROR_NOT_INITIALIZED", "works in no child of fork"});
}

// An engine, and the host's stream where it has one.
struct Training {
  explicit Training(bool hosts_stream) {
    if (hosts_stream) stream = std::make_unique<HostsStream>();
    auto made = MakeEngine(MakePlan({.units = 2}), OpenLocal());
    EXPECT_OK(made);
    engine = *std::move(made);
    if (hosts_stream) EXPECT_OK(engine->SetStream(stream->get()));
    EXPECT_OK(Fill(engine.get()));
    EXPECT_OK(TrainOneStep(engine.get(), 1));
  }

  std::unique_ptr<HostsStream> stream;
  std::unique_ptr<Engine> engine;
};

class CudaForkTest : public FakeCudaTest,
                     public ::testing::WithParamInterface<bool> {};

TEST_P(CudaForkTest, AChildLeavesTheDeviceAlone) {
  std::vector<float> expected;
  {
    const Training plain(GetParam());
    for (int step = 2; step <= 6; ++step) {
      ASSERT_OK(TrainOneStep(plain.engine.get(), step));
    }
    const auto read = ReadParam(plain.engine.get());
    ASSERT_OK(read);
    expected = *read;
  }
  Training training(GetParam());
  Engine* const engine = training.engine.get();
  ASSERT_OK(TrainOneStep(engine, 2));
  const Alive before = CountAlive();
  // A driver may hang or crash in a child, and does not know its handles.
  const auto destroy = [&] {
    const uint64_t calls = CountInChild();
    training.engine.reset();
    EXPECT_EQ(CountInChild(), calls);
  };
  // The engine is left to the end of the process.
  InChild([] {});
  InChild(destroy);
  ASSERT_OK(TrainOneStep(engine, 3));
  // No device is opened, with the handles of the parent or without.
  InChild([&] {
    ExpectError(cuda::OpenDevice("0"), StatusCode::kFailedPrecondition,
                {"was forked from", "exec"});
    destroy();
    ExpectError(MakeEngine(MakePlan({}), OpenLocal()),
                StatusCode::kFailedPrecondition, {"was forked from", "exec"});
  });
  InChild([&] {
    ExpectForked(engine->Synchronize(5));
    // The error is final.
    ExpectForked(engine->UnitAcquire(0, Pass::kBackward, 5));
    ExpectForked(engine->Step(Clipped(), nullptr));
    destroy();
  });
  ASSERT_OK(TrainOneStep(engine, 4));
  InChild([&] {
    ExpectForked(StatusOf(ReadParam(engine)));
    ExpectForked(TrainOneStep(engine, 5));
  });
  EXPECT_EQ(CountAlive(), before);
  ASSERT_OK(TrainOneStep(engine, 5));
  // The device is at work.
  Pause();
  if (GetParam()) {
    for (int32_t unit = 3; unit-- > 0;) {
      EXPECT_OK(engine->UnitAcquire(unit, Pass::kForward, 0));
    }
  }
  InChild(destroy);
  Resume();
  if (GetParam()) {
    for (int32_t unit = 3; unit-- > 0;) EXPECT_OK(engine->UnitRelease(unit));
  }
  ASSERT_OK(TrainOneStep(engine, 6));
  const auto read = ReadParam(engine);
  ASSERT_OK(read);
  EXPECT_EQ(*read, expected);
}

INSTANTIATE_TEST_SUITE_P(, CudaForkTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "hosts_stream" : "own_stream";
                         });

}  // namespace
}  // namespace shard::cuda_engine_test
