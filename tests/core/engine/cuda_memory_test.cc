// SPDX-License-Identifier: Apache-2.0
//
// Memory that runs out under engines on the device cuda, over the fake of its
// driver: that of the device, and pinned memory of the host.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/driver_api.h"
#include "core/device/forwarding_device.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_memory_test {
namespace {

using cuda_training::Fill;
using cuda_training::MakeEngine;
using cuda_training::MakePlan;
using cuda_training::OpenLocal;
using cuda_training::ReadParam;
using cuda_training::TrainOneStep;
using testing::FakeCuda;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountAlive;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::FailCall;
using testing::fake_cuda::Options;
using testing::fake_cuda::Pause;
using testing::fake_cuda::Reset;
using testing::fake_cuda::Resume;
using FakeCounters = testing::fake_cuda::Counters;

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
  return plan.Memory(plan.options().world_size == 1, nullptr, Processor::kGpu)
      .DeviceTotal();
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
                   StrCat(" free of ", FormatBytes(room)),
                   StrCat(": ", FormatBytes(planned - room), " are missing"),
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

// The error has options, and with each of them the engine is made.
TEST_P(CudaMemoryTest, AnEngineThatDoesNotFitSaysWhichOptionFits) {
  const auto make = [](int stage) {
    return MakePlan({.units = 5,
                     .world_size = 2,
                     .stage = stage,
                     .elements_per_unit = 40000});
  };
  const auto plan = make(1);
  const auto sharded = make(2);
  const size_t needed = PlannedBytes(*sharded);
  ASSERT_LT(needed, PlannedBytes(*plan));
  // Beside the plan lie tables of kernels.
  const size_t room = 2 * (needed + (16 << 10));
  ASSERT_LT(room, 2 * PlannedBytes(*plan));
  const FakeCuda fake(
      Room{.memory_pools = GetParam(), .memory_bytes = room}.ToOptions());
  RunThreadRanks(2, [&](const auto& comm) {
    ExpectError(
        MakeEngine(plan, comm), StatusCode::kResourceExhausted,
        {StrCat(FormatBytes(2 * PlannedBytes(*plan) - room), " are missing"),
         "it fits with device \"cuda:0?offload=states\"",
         StrCat("with stage 2 (", FormatBytes(needed),
                " of the device for each rank")});
    EXPECT_OK(MakeEngine(sharded, comm));
    EXPECT_OK(MakeEngine(plan, comm, Offload()));
  });
}

// The error of the first rank has no option that the second has no room for.
TEST_P(CudaMemoryTest, OptionsFitOnTheDevicesOfAllRanks) {
  const auto make = [](int stage) {
    return MakePlan({.units = 5,
                     .world_size = 2,
                     .stage = stage,
                     .elements_per_unit = 40000});
  };
  const auto plan = make(1);
  const size_t needed = PlannedBytes(*make(2));
  ASSERT_LT(needed, PlannedBytes(*plan));
  const FakeCuda fake(
      Room{.memory_pools = GetParam(), .memory_bytes = needed}.ToOptions());
  const auto expect_stage2 = [&](bool expected) {
    RunThreadRanks(2, [&](const auto& comm) {
      EngineOptions options;
      options.opened_device = *cuda::OpenDevice(comm->rank() == 0 ? "0" : "1");
      const auto engine = Engine::Create(plan, comm, options);
      ExpectError(engine, StatusCode::kResourceExhausted,
                  {"rank 0: the plan needs ", "it fits with "});
      EXPECT_EQ(std::string(engine.status().message()).find("stage 2 (") !=
                    std::string::npos,
                expected)
          << engine.status().ToString();
    });
  };
  expect_stage2(true);
  const auto device = cuda::OpenDevice("1");
  ASSERT_OK(device);
  const auto others = (*device)->Allocate(4096, "other work");
  ASSERT_OK(others);
  expect_stage2(false);
}

// The host's memory and the device's are both too small, and an error says so.
TEST_P(CudaMemoryTest, AnEngineThatFitsNowhereSaysWhatBothNeed) {
  const FakeCuda fake(
      Room{.memory_pools = GetParam(), .memory_bytes = 4096}.ToOptions());
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  ASSERT_OK(training.model->AddParam(kRootModule, "p", DType::kF32, {40000}));
  ASSERT_OK(training.model->AddHostTensor(kRootModule, "h", ElementType::kU8,
                                          {int64_t{1} << 50}, false));
  training.wrap = "";
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  ExpectError(MakeEngine(*plan, OpenLocal()), StatusCode::kResourceExhausted,
              {"the plan needs ", "on cuda:0, which has 4.0 KiB free",
               "are missing; and ", "are needed on this host",
               "no stage, narrower optimizer states, offload or up to",
               "use a smaller model"});
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
class KeepingDevice final : public ForwardingDevice {
 public:
  KeepingDevice(std::shared_ptr<Device> device, int rank,
                std::atomic<int>* looked)
      : ForwardingDevice(std::move(device)), rank_(rank), looked_(looked) {}

  StatusOr<MemoryRoom> FindMemoryRoom(const Deadline& deadline) override {
    SHARD_ASSIGN_OR_RETURN(MemoryRoom room, device().FindMemoryRoom(deadline));
    if (!std::exchange(has_looked_, true)) {
      // The last of two ranks comes late.
      while (*looked_ < rank_) std::this_thread::yield();
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

// A rank whose device hangs tells the others why.
TEST_P(CudaMemoryTest, ADeviceThatDoesNoWorkIsFoundInTime) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const FakeCuda fake(Room{.memory_pools = GetParam()}.ToOptions());
    const auto plan = LargePlan(ranks);
    Pause();
    RunThreadRanks(
        ranks,
        [&](const auto& comm) {
          const auto begin = std::chrono::steady_clock::now();
          ExpectError(MakeEngine(plan, comm), StatusCode::kDeadlineExceeded,
                      {"cuda:0 did no work within ", "nvidia-smi", "timeout"});
          const std::chrono::duration<double> took =
              std::chrono::steady_clock::now() - begin;
          EXPECT_LT(took.count(), 10);
        },
        3.0);
    Resume();
    EXPECT_OK(MakeLarge());
    // What was on its way is left alone.
    Reset();
  }
}

// A caller that has no time left learns nothing of the device.
TEST_P(CudaMemoryTest, AShortDeadlineGivesNoDeviceUp) {
  const FakeCuda fake(Room{.memory_pools = GetParam()}.ToOptions());
  const auto device = cuda::OpenDevice("0");
  ASSERT_OK(device);
  for (int i = 0; i < 20; ++i) {
    EXPECT_OK((*device)->FindMemoryRoom(Deadline::After(0)));
  }
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
              {"the plan needs ", "on cuda:0, which has ",
               "are missing while the plan changes",
               "it fits with an engine of its own: save"});
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

}  // namespace
}  // namespace shard::cuda_memory_test
