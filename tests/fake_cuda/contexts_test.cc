// SPDX-License-Identifier: Apache-2.0
//
// Devices and contexts of the fake driver.

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tests/fake_cuda/driver_testing.h"

namespace shard::contexts_test {
namespace {

using namespace testing::fake_cuda;

using ContextsTest = DriverTest;

TEST_F(ContextsTest, DevicesHaveAttributes) {
  int count = 0;
  EXPECT_CU(api_.DeviceGetCount(&count));
  EXPECT_EQ(count, 2);
  cuda::CuUuid first = {};
  cuda::CuUuid second = {};
  EXPECT_CU(api_.DeviceGetUuid(&first, 0));
  EXPECT_CU(api_.DeviceGetUuid(&second, 1));
  EXPECT_NE(std::memcmp(&first, &second, sizeof(first)), 0);
  char name[5] = {};
  EXPECT_CU(api_.DeviceGetName(name, sizeof(name), 1));
  EXPECT_STREQ(name, "Fake");
  size_t bytes = 0;
  EXPECT_CU(api_.DeviceTotalMem(&bytes, 1));
  EXPECT_EQ(bytes, Options().memory_bytes);
  const auto attribute = [&](CuDeviceAttribute of) {
    int value = -1;
    EXPECT_CU(api_.DeviceGetAttribute(&value, of, 1));
    return value;
  };
  EXPECT_EQ(attribute(CuDeviceAttribute::kMultiprocessorCount), 2);
  EXPECT_EQ(attribute(CuDeviceAttribute::kUnifiedAddressing), 1);
  EXPECT_EQ(attribute(CuDeviceAttribute::kComputeCapabilityMajor), 9);
  EXPECT_EQ(attribute(CuDeviceAttribute::kComputeCapabilityMinor), 0);
  EXPECT_EQ(attribute(CuDeviceAttribute::kMemoryPoolsSupported), 1);
  cuda::CuDevice device = -1;
  EXPECT_EQ(api_.DeviceGet(&device, 2), CuResult::kInvalidDevice);
  EXPECT_EQ(api_.DeviceTotalMem(&bytes, -1), CuResult::kInvalidDevice);
  int version = 0;
  EXPECT_CU(api_.DriverGetVersion(&version));
  EXPECT_EQ(version, 13000);
}

TEST_F(ContextsTest, ThereMayBeNoDevice) {
  TearDown();
  Options options;
  options.devices = 0;
  options.driver_version = 11080;
  Reset(options);
  EXPECT_EQ(api_.Init(0), CuResult::kNoDevice);
  int version = 0;
  EXPECT_CU(api_.DriverGetVersion(&version));
  EXPECT_EQ(version, 11080);
  Begin({});
}

TEST_F(ContextsTest, CallsNeedACurrentContext) {
  std::thread([this] {
    CuPointer memory = 0;
    CuStream stream = nullptr;
    CuContext popped = nullptr;
    EXPECT_EQ(api_.MemAlloc(&memory, 1), CuResult::kInvalidContext);
    EXPECT_EQ(api_.StreamCreate(&stream, 0), CuResult::kInvalidContext);
    EXPECT_EQ(api_.MemsetD8Async(1, 0, 1, nullptr), CuResult::kInvalidContext);
    EXPECT_EQ(api_.CtxPopCurrent(&popped), CuResult::kInvalidContext);
    EXPECT_CU(api_.CtxPushCurrent(context_));
    EXPECT_CU(api_.MemAlloc(&memory, 1));
    EXPECT_CU(api_.MemFree(memory));
    EXPECT_EQ(CountAlive().current_contexts, 1u);
  }).join();
  EXPECT_EQ(CountAlive().current_contexts, 1u);
}

TEST_F(ContextsTest, HandlesBelongToAContext) {
  const CuStream stream = MakeStream();
  const CuEvent event = Record(stream);
  CuContext other = nullptr;
  CuContext popped = nullptr;
  EXPECT_CU(api_.DevicePrimaryCtxRetain(&other, 1));
  EXPECT_NE(other, context_);
  EXPECT_CU(api_.CtxPushCurrent(other));
  EXPECT_EQ(api_.EventRecord(event, stream), CuResult::kInvalidContext);
  EXPECT_EQ(api_.EventRecord(event, nullptr), CuResult::kInvalidContext);
  CuContext owner = nullptr;
  EXPECT_CU(api_.StreamGetCtx(stream, &owner));
  EXPECT_EQ(owner, context_);
  // But for waits, which may be for another device.
  CuStream its = nullptr;
  EXPECT_CU(api_.StreamCreate(&its, 0));
  EXPECT_CU(api_.StreamWaitEvent(its, event, 0));
  EXPECT_CU(api_.StreamDestroy(its));
  EXPECT_CU(api_.CtxPopCurrent(&popped));
  EXPECT_EQ(popped, other);
  EXPECT_CU(api_.DevicePrimaryCtxRelease(1));
  EXPECT_EQ(api_.CtxPushCurrent(other), CuResult::kInvalidContext);
}

TEST_F(ContextsTest, AContextLivesWhileItIsRetained) {
  CuContext again = nullptr;
  EXPECT_CU(api_.DevicePrimaryCtxRetain(&again, 0));
  EXPECT_EQ(again, context_);
  EXPECT_EQ(CountAlive().context_retains, 2u);
  EXPECT_CU(api_.DevicePrimaryCtxRelease(0));
  CuPointer memory = 0;
  EXPECT_CU(api_.MemAlloc(&memory, 1));
  EXPECT_CU(api_.MemFree(memory));
  EXPECT_CU(api_.DevicePrimaryCtxRelease(0));
  EXPECT_EQ(api_.MemAlloc(&memory, 1), CuResult::kInvalidContext);
  EXPECT_EQ(api_.DevicePrimaryCtxRelease(0), CuResult::kInvalidContext);
}

TEST_F(ContextsTest, CountsWhatIsAlive) {
  MakeStream();
  MakeEvent();
  MakeMemory();
  CuModule module = nullptr;
  EXPECT_CU(api_.ModuleLoadData(&module, "an image"));
  Alive expected;
  expected.device_allocations = 1;
  expected.device_bytes = kBytes;
  expected.streams = expected.events = expected.modules = 1;
  expected.context_retains = expected.current_contexts = 1;
  EXPECT_EQ(CountAlive(), expected) << AliveText();
  EXPECT_EQ(AliveText(),
            "1 allocations of devices, 64 bytes of devices, 1 streams, "
            "1 events, 1 modules, 1 retains of contexts, 1 contexts that this "
            "thread has pushed");
  EXPECT_CU(api_.ModuleUnload(module));
}

}  // namespace
}  // namespace shard::contexts_test
