// SPDX-License-Identifier: Apache-2.0
//
// Engines on the device cuda, over the fake of its driver: what a steady step
// costs, memory that runs out, and fork. cuda_host_test has a host that does
// work of its own, and cuda_faults_test makes the driver fail.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
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
#include "tests/core/device/forwarding_device.h"
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
using testing::fake_cuda::FailCall;
using testing::fake_cuda::NumPending;
using testing::fake_cuda::Options;
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
          {"cuLaunchKernel", 2 * buffers + 1}};
      EXPECT_EQ(WithoutContext(counters), expected);
      const std::map<std::string, uint64_t> launches = {
          {"shard_add_to_norm", buffers},
          {"shard_finish_norm", 1},
          {"shard_update_AdamW", buffers}};
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

// ---- Memory that runs out ---------------------------------------------------

struct Room {
  bool memory_pools = true;
  size_t memory_bytes = size_t{1} << 30;
  size_t pinned_bytes = size_t{1} << 30;

  Options ToOptions() const {
    Options options;
    options.memory_pools = memory_pools;
    options.memory_bytes = memory_bytes;
    options.pinned_bytes = pinned_bytes;
    return options;
  }
};

std::shared_ptr<const Plan> LargePlan(int world_size = 1) {
  return MakePlan(
      {.units = 5, .world_size = world_size, .elements_per_unit = 40000});
}

StatusOr<std::unique_ptr<Engine>> MakeLarge() {
  return MakeEngine(LargePlan(), OpenLocal());
}

// Returns what a plan predicts for the device of one rank.
size_t PlannedBytes(const Plan& plan) {
  return plan.Memory(plan.options().world_size == 1).DeviceTotal();
}

// Returns the bytes that an error says are needed.
size_t NeededBytes(const Status& status) {
  const std::string text(status.message());
  const size_t end = text.find(" bytes)");
  const size_t begin = text.rfind('(', end) + 1;
  EXPECT_NE(end, std::string::npos) << text;
  return std::strtoull(text.c_str() + begin, nullptr, 10);
}

// Returns how many calls were made that give memory.
uint64_t CountMemoryCalls(const FakeCounters& counters) {
  uint64_t count = 0;
  for (const auto& [symbol, calls] : counters.calls) {
    const bool gives = symbol.starts_with("cuMem") &&
                       symbol.find("Alloc") != std::string::npos;
    if (gives) count += calls;
  }
  return count;
}

class CudaMemoryTest : public ::testing::TestWithParam<bool> {
 protected:
  // Returns the bytes of the device that an engine takes.
  static size_t LargeBytes() {
    const FakeCuda fake(Room{.memory_pools = GetParam()}.ToOptions());
    const auto engine = MakeLarge();
    EXPECT_OK(engine);
    return CountAlive().device_bytes;
  }
};

TEST_P(CudaMemoryTest, AnEngineThatDoesNotFitSaysWhatItNeeds) {
  const size_t all = LargeBytes();
  const size_t planned = PlannedBytes(*LargePlan());
  // The tables of kernels and the values of steps are beside the plan.
  ASSERT_LT(planned + 2, all);
  std::vector<size_t> rooms = {planned - 1, planned, planned + 1, all - 1};
  for (size_t room = 0; room < planned; room += all / 24) rooms.push_back(room);
  for (const size_t room : rooms) {
    SCOPED_TRACE(room);
    const FakeCuda fake(
        Room{.memory_pools = GetParam(), .memory_bytes = room}.ToOptions());
    const FakeCounters before = Count();
    const auto engine = MakeLarge();
    ASSERT_FALSE(engine.ok());
    const size_t needed = NeededBytes(engine.status());
    if (room < planned) {
      EXPECT_EQ(needed, planned);
      ExpectError(engine, StatusCode::kResourceExhausted,
                  {StrCat("the plan needs ", FormatBytes(planned)),
                   "on cuda:0, which has ", FormatBytes(room),
                   StrCat(" free of ", FormatBytes(room)), "higher stage",
                   "shardctl plan"});
      EXPECT_EQ(CountMemoryCalls(CountSince(before)), 0u);
    } else {
      EXPECT_GT(needed, 0u);
      ExpectError(engine, StatusCode::kResourceExhausted,
                  {"of memory of cuda:0", FormatBytes(needed), "which has ",
                   StrCat(" free of ", FormatBytes(room)), "shardctl plan"});
    }
  }
}

// Somebody else has taken the room that was there.
TEST_P(CudaMemoryTest, MemoryThatIsRefusedLaterNamesThePlanToo) {
  const FakeCuda fake(Room{.memory_pools = GetParam()}.ToOptions());
  FailCall(GetParam() ? "cuMemAllocFromPoolAsync" : "cuMemAlloc", 2,
           cuda::CuResult::kOutOfMemory);
  ExpectError(MakeLarge(), StatusCode::kResourceExhausted,
              {StrCat("a plan that needs ",
                      FormatBytes(PlannedBytes(*LargePlan())), " on cuda:0: "),
               "of memory of cuda:0", "shardctl plan"});
}

// Each of two ranks on a GPU finds room for itself before the other allocates.
TEST_P(CudaMemoryTest, RanksOnADeviceLeaveRoomForEachOther) {
  const auto plan = LargePlan(2);
  const size_t planned = PlannedBytes(*plan);
  const auto make = [&](const auto& comm, const char* device) {
    EngineOptions options;
    options.opened_device = *cuda::OpenDevice(device);
    return Engine::Create(plan, comm, options);
  };
  const FakeCuda fake(
      Room{.memory_pools = GetParam(), .memory_bytes = planned * 3 / 2}
          .ToOptions());
  const FakeCounters before = Count();
  RunThreadRanks(2, [&](const auto& comm) {
    const auto engine = make(comm, "0");
    ExpectError(engine, StatusCode::kResourceExhausted,
                {StrCat("rank 0: the plan needs ", FormatBytes(planned), " (",
                        planned, " bytes) for each of 2 ranks on cuda:0"),
                 StrCat("which has ", FormatBytes(planned * 3 / 2), " free")});
  });
  EXPECT_EQ(CountMemoryCalls(CountSince(before)), 0u);
  FakeCuda::Check();
  // The ranks' own devices have room for one each.
  RunThreadRanks(2, [&](const auto& comm) {
    EXPECT_OK(make(comm, comm->rank() == 0 ? "0" : "1"));
  });
  // One rank has no room, because others use its device.
  const auto device = cuda::OpenDevice("0");
  ASSERT_OK(device);
  const auto others = (*device)->Allocate(planned, "other work");
  ASSERT_OK(others);
  RunThreadRanks(2, [&](const auto& comm) {
    const auto engine = make(comm, comm->rank() == 0 ? "1" : "0");
    ExpectError(engine, StatusCode::kResourceExhausted,
                {"rank 1: the plan needs ", "on cuda:0, which has "});
  });
}

// A device of a process of its own, which keeps memory until it looks for room.
class KeepingDevice final : public testing::ForwardingDevice {
 public:
  KeepingDevice(std::shared_ptr<Device> device, int rank,
                std::atomic<int>* looked)
      : ForwardingDevice(std::move(device)), rank_(rank), looked_(looked) {}

  StatusOr<MemoryRoom> FindMemoryRoom() override {
    SHARD_ASSIGN_OR_RETURN(MemoryRoom room, device().FindMemoryRoom());
    if (!std::exchange(has_looked_, true)) {
      // The last of two ranks comes late.
      std::this_thread::sleep_for(std::chrono::milliseconds(50 * rank_));
      ++*looked_;
    }
    if (*looked_ < 2) room.free = 0;
    return room;
  }

 private:
  const int rank_;
  std::atomic<int>* const looked_;
  bool has_looked_ = false;
};

TEST_P(CudaMemoryTest, MemoryThatOtherProcessesKeepIsFree) {
  const FakeCuda fake(Room{.memory_pools = GetParam()}.ToOptions());
  const auto plan = LargePlan(2);
  std::atomic<int> looked = 0;
  RunThreadRanks(2, [&](const auto& comm) {
    EngineOptions options;
    options.opened_device = std::make_shared<KeepingDevice>(
        *cuda::OpenDevice("0"), comm->rank(), &looked);
    EXPECT_OK(Engine::Create(plan, comm, options));
  });
}

// Both plans have their memory until the states have moved.
TEST_P(CudaMemoryTest, AnEngineTrainsOnWithoutRoomToChangeItsPlan) {
  const FakeCuda fake(Room{.memory_pools = GetParam(),
                           .memory_bytes = LargeBytes() + (64 << 10)}
                          .ToOptions());
  const auto engine = MakeLarge();
  ASSERT_OK(engine);
  ASSERT_OK(Fill(engine->get()));
  ASSERT_OK(TrainOneStep(engine->get(), 1));
  const size_t before = CountAlive().device_bytes;
  const std::vector<ParamId> params = {0};
  const Status changed = (*engine)->SetTrainable(params, false, 0);
  ExpectError(changed, StatusCode::kResourceExhausted,
              {"the plan needs ", "on cuda:0, which has "});
  EXPECT_LT(NeededBytes(changed), PlannedBytes(*LargePlan()));
  EXPECT_EQ(CountAlive().device_bytes, before);
  EXPECT_OK(TrainOneStep(engine->get(), 2));
}

// A pool keeps memory that was freed until the host knows of that.
TEST_P(CudaMemoryTest, MemoryThatThePoolKeepsIsFree) {
  const FakeCuda fake(
      Room{.memory_pools = GetParam(), .memory_bytes = LargeBytes()}
          .ToOptions());
  // Keeps the pool of the device.
  const auto device = cuda::OpenDevice("0");
  ASSERT_OK(device);
  for (int i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    EXPECT_OK(MakeLarge());
  }
}

TEST_P(CudaMemoryTest, AnEngineThatJustFitsTrains) {
  const size_t all = LargeBytes();
  // For the copies of set_param, whose stream has a little memory of its own.
  const size_t room = all + 4096;
  const FakeCuda fake(
      Room{.memory_pools = GetParam(), .memory_bytes = room}.ToOptions());
  const auto engine = MakeLarge();
  ASSERT_OK(engine);
  ASSERT_OK(Fill(engine->get()));
  ASSERT_OK(TrainOneStep(engine->get(), 1));
  const size_t used = CountAlive().device_bytes;
  const std::string free =
      StrCat("which has ", FormatBytes(room - used), " free of ");
  // Another one finds no room, and takes none.
  ExpectError(MakeLarge(), StatusCode::kResourceExhausted,
              {"the plan needs ", free});
  EXPECT_EQ(CountAlive().device_bytes, used);
  ASSERT_OK(TrainOneStep(engine->get(), 2));
  EXPECT_OK(ReadParam(engine->get()));
}

TEST_P(CudaMemoryTest, PinnedMemoryThatRunsOutIsNamed) {
  for (const size_t room : {size_t{0}, size_t{4096}, size_t{4} << 20}) {
    SCOPED_TRACE(room);
    const FakeCuda fake(
        Room{.memory_pools = GetParam(), .pinned_bytes = room}.ToOptions());
    const auto engine = MakeLarge();
    const Status status = engine.ok() ? Fill(engine->get()) : engine.status();
    ExpectError(status, StatusCode::kResourceExhausted,
                {"of the host's memory", "pinned", "cuda:0",
                 FormatBytes(NeededBytes(status))});
  }
}

// Trains an engine whose parameter cannot be summoned for want of pinned
// memory.
void ExpectNoRoomToSummon(bool memory_pools, int64_t elements,
                          std::initializer_list<std::string_view> error) {
  // For what the engine has, and for its copies of tensors one by one.
  const FakeCuda fake(Room{.memory_pools = memory_pools,
                           .pinned_bytes = (size_t{8} << 20) + (64 << 10)}
                          .ToOptions());
  const auto engine =
      MakeEngine(MakePlan({.elements_per_unit = elements}), OpenLocal());
  ASSERT_OK(engine);
  ASSERT_OK(Fill(engine->get()));
  ASSERT_OK(TrainOneStep(engine->get(), 1));
  ExpectError((*engine)->Summon(0, -1, 0), StatusCode::kResourceExhausted,
              error);
  EXPECT_OK(TrainOneStep(engine->get(), 2));
}

TEST_P(CudaMemoryTest, AnEngineTrainsOnWithoutRoomToSummon) {
  constexpr int64_t kElements = int64_t{3} << 19;
  const std::string bytes = FormatBytes(4 * kElements);
  ExpectNoRoomToSummon(GetParam(), kElements,
                       {"summoned parameters", bytes, "pinned"});
}

// There is room for the copies, but not for staging memory beside them.
TEST_P(CudaMemoryTest, AnEngineTrainsOnWithoutRoomToCopyWhatItSummons) {
  ExpectNoRoomToSummon(GetParam(), int64_t{1} << 18,
                       {"staging memory for tensors", "pinned"});
}

// Wherever memory runs out, all ranks have the error, and train on.
TEST_P(CudaMemoryTest, AnEngineTrainsOnWithoutRoomToGather) {
  int refused = 0;
  int done = 0;
  for (size_t room = size_t{8} << 20; room < size_t{32} << 20;
       room += size_t{1} << 20) {
    SCOPED_TRACE(room);
    const FakeCuda fake(
        Room{.memory_pools = GetParam(), .pinned_bytes = room + (64 << 10)}
            .ToOptions());
    const auto engine = MakeEngine(MakePlan({}), OpenLocal());
    ASSERT_OK(engine);
    ASSERT_OK(Fill(engine->get()));
    ASSERT_OK(TrainOneStep(engine->get(), 1));
    size_t tensors = 0;
    const Status gathered = (*engine)->GatherState(
        StateOptions(), 0, 0, [&](const StateEntry&, const std::byte*) {
          ++tensors;
          return Status();
        });
    if (gathered.ok()) {
      EXPECT_GE(tensors, 3u);
      ++done;
    } else {
      ExpectError(gathered, StatusCode::kResourceExhausted, {"pinned"});
      ++refused;
    }
    EXPECT_OK(TrainOneStep(engine->get(), 2));
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(done, 0);
}

INSTANTIATE_TEST_SUITE_P(, CudaMemoryTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "pools" : "without_pools";
                         });

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
