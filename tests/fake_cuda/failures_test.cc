// SPDX-License-Identifier: Apache-2.0
//
// Calls of the fake driver that fail, devices that are lost, and children of
// fork.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/core/base/in_child.h"
#include "tests/fake_cuda/driver_testing.h"

namespace shard::failures_test {
namespace {

using namespace testing::fake_cuda;

using FailuresTest = DriverTest;

TEST_F(FailuresTest, ACallFailsOnce) {
  const CuStream stream = MakeStream();
  const CuPointer memory = MakeMemory();
  FailCall("cuMemsetD8Async", 2, CuResult::kUnknown);
  Set(memory, 1, stream);
  EXPECT_EQ(api_.MemsetD8Async(memory, 2, kBytes, stream), CuResult::kUnknown);
  EXPECT_EQ(Read(memory, stream), 1);
  Set(memory, 3, stream);
  FailCall("", 1, CuResult::kOutOfMemory);
  CuPointer more = 0;
  EXPECT_EQ(api_.MemAlloc(&more, 1), CuResult::kOutOfMemory);
  EXPECT_EQ(Read(memory, stream), 3);
}

TEST_F(FailuresTest, ACallThatFreesDoesSoAndFails) {
  CuPointer memory = 0;
  CuStream stream = nullptr;
  CuContext popped = nullptr;
  EXPECT_CU(api_.MemAlloc(&memory, kBytes));
  EXPECT_CU(api_.StreamCreate(&stream, 0));
  FailCall("cuMemFree", 1, CuResult::kUnknown);
  FailCall("cuStreamDestroy", 1, CuResult::kUnknown);
  FailCall("cuCtxPopCurrent", 1, CuResult::kUnknown);
  EXPECT_EQ(api_.MemFree(memory), CuResult::kUnknown);
  EXPECT_EQ(api_.StreamDestroy(stream), CuResult::kUnknown);
  EXPECT_EQ(api_.CtxPopCurrent(&popped), CuResult::kUnknown);
  EXPECT_EQ(popped, context_);
  EXPECT_EQ(AliveText(), "1 retains of contexts");
  EXPECT_CU(api_.CtxPushCurrent(context_));
}

TEST_F(FailuresTest, ALostDeviceDropsItsWork) {
  const CuStream stream = MakeStream();
  const CuPointer memory = MakeMemory();
  const CuEvent before = Record(stream);
  EXPECT_CU(Await(before));
  Pause();
  Set(memory, 1, stream);
  const CuEvent event = Record(stream);
  LoseAtCall("cuStreamWaitEvent", 1);
  EXPECT_EQ(api_.EventQuery(event), CuResult::kNotReady);
  EXPECT_EQ(api_.StreamWaitEvent(stream, event, 0), CuResult::kIllegalAddress);
  EXPECT_EQ(NumPending(), 0u);
  EXPECT_EQ(api_.EventQuery(event), CuResult::kIllegalAddress);
  EXPECT_EQ(api_.EventQuery(before), CuResult::kIllegalAddress);
  CuPointer more = 0;
  EXPECT_EQ(api_.MemAlloc(&more, 1), CuResult::kIllegalAddress);
  const char* name = nullptr;
  EXPECT_CU(api_.GetErrorName(CuResult::kIllegalAddress, &name));
  EXPECT_STREQ(name, "CUDA_ERROR_ILLEGAL_ADDRESS");
  // What TearDown frees is freed.
}

TEST_F(FailuresTest, AnOperationLosesTheDevice) {
  const CuStream stream = MakeStream();
  const CuPointer memory = MakeMemory();
  LoseAtOperation(2, CuResult::kLaunchFailed);
  Pause();
  Set(memory, 1, stream);
  Set(memory, 2, stream);
  const CuEvent event = Record(stream);
  Resume();
  EXPECT_EQ(Await(event), CuResult::kLaunchFailed);
}

TEST_F(FailuresTest, FailuresThatDidNotComeAreForgotten) {
  const CuStream stream = MakeStream();
  const CuPointer memory = MakeMemory();
  FailCall("cuMemsetD8Async", 1, CuResult::kUnknown);
  LoseAtCall("cuEventQuery", 1);
  LoseAtOperation(1);
  ClearFailures();
  Set(memory, 1, stream);
  EXPECT_EQ(Read(memory, stream), 1);
  EXPECT_FALSE(IsLost());
}

// An operation that has begun may still run when the others are dropped.
TEST_F(FailuresTest, MemoryIsFreedOnALostDeviceThatIsBusy) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    TearDown();
    Options options;
    options.seed = seed;
    options.max_delay = std::chrono::milliseconds(4);
    Begin(options);
    const CuStream stream = MakeStream();
    CuPointer memory = 0;
    void* pinned = nullptr;
    EXPECT_CU(api_.MemAlloc(&memory, kBytes));
    EXPECT_CU(api_.MemHostAlloc(&pinned, kBytes, 0));
    std::vector<unsigned char> pageable(kBytes);
    for (int i = 0; i < 5; ++i) {
      Set(memory, 1, stream);
      Copy(At(pinned), memory, stream);
      Copy(At(pageable.data()), memory, stream);
    }
    while (NumPending() + seed > 15) std::this_thread::yield();
    const CuEvent event = Record(stream);
    LoseAtCall("cuEventQuery", 1);
    EXPECT_EQ(api_.EventQuery(event), CuResult::kIllegalAddress);
    EXPECT_EQ(NumPending(), 0u);
    // No more work reaches the memory of the host, either.
    pageable.assign(kBytes, 3);
    EXPECT_EQ(api_.MemFree(memory), CuResult::kIllegalAddress);
    EXPECT_EQ(api_.MemFreeHost(pinned), CuResult::kIllegalAddress);
  }
}

TEST_F(FailuresTest, AChildOfForkCannotUseIt) {
  const CuStream stream = MakeStream();
  const CuPointer memory = MakeMemory();
  Synchronize(stream);
  testing::InChild([&] {
    CuPointer more = 0;
    int count = 0;
    EXPECT_EQ(api_.Init(0), CuResult::kNotInitialized);
    EXPECT_EQ(api_.DriverGetVersion(&count), CuResult::kNotInitialized);
    EXPECT_EQ(api_.DeviceGetCount(&count), CuResult::kNotInitialized);
    EXPECT_EQ(api_.MemAlloc(&more, 1), CuResult::kNotInitialized);
    EXPECT_EQ(api_.MemFree(memory), CuResult::kNotInitialized);
    EXPECT_EQ(api_.StreamDestroy(stream), CuResult::kNotInitialized);
    // All but Init and DriverGetVersion, which begin anew.
    EXPECT_EQ(CountInChild(), 4u);
  });
  EXPECT_EQ(CountInChild(), 0u);
}

}  // namespace
}  // namespace shard::failures_test
