// SPDX-License-Identifier: Apache-2.0
//
// DriverTest: a fixture for tests of the fake driver, which call it as libshard
// does.

#ifndef SHARD_TESTS_FAKE_CUDA_DRIVER_TESTING_H_
#define SHARD_TESTS_FAKE_CUDA_DRIVER_TESTING_H_

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "core/device/cuda/driver_api.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::testing::fake_cuda {

using cuda::CuContext;
using cuda::CuDeviceAttribute;
using cuda::CuEvent;
using cuda::CuFunction;
using cuda::CuModule;
using cuda::CuPointer;
using cuda::CuResult;
using cuda::CuStream;
using cuda::DriverApi;

inline constexpr size_t kBytes = 64;

#define EXPECT_CU(call) EXPECT_EQ((call), CuResult::kSuccess)
#define ASSERT_CU(call) ASSERT_EQ((call), CuResult::kSuccess)

// Loads the driver as libshard does.
inline const DriverApi& Api() {
  static const DriverApi api = [] {
    DriverApi made;
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(library, nullptr) << dlerror();
#define SHARD_FIND(name, symbol, parameters)                                  \
  made.name = reinterpret_cast<decltype(made.name)>(dlsym(library, #symbol)); \
  EXPECT_NE(made.name, nullptr) << #symbol;
    SHARD_CUDA_DRIVER(SHARD_FIND)
#undef SHARD_FIND
    EXPECT_CU(made.Init(0));
    return made;
  }();
  return api;
}

// Finds a function of a library that only programs of their own use.
template <typename Function>
Function Find(const char* library, const char* symbol) {
  void* const opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(opened, nullptr) << dlerror();
  void* const found = opened == nullptr ? nullptr : dlsym(opened, symbol);
  EXPECT_NE(found, nullptr) << symbol;
  return reinterpret_cast<Function>(found);
}

inline CuResult StreamSynchronize(CuStream stream) {
  return Find<CuResult (*)(CuStream)>("libcuda.so.1",
                                      "cuStreamSynchronize")(stream);
}

inline CuPointer At(const void* memory) {
  return reinterpret_cast<CuPointer>(memory);
}

// Has the context of device 0 current.
class DriverTest : public ::testing::Test {
 protected:
  void SetUp() override { Begin({}); }
  void TearDown() override {
    streams_.push_back(cuda::LegacyStream());
    for (const CuStream stream : streams_) {
      // Fails where the device is lost.
      CuEvent event = nullptr;
      if (api_.EventCreate(&event, 0) != CuResult::kSuccess) continue;
      EXPECT_CU(api_.EventRecord(event, stream));
      EXPECT_CU(Await(event));
      EXPECT_CU(api_.EventDestroy(event));
    }
    streams_.pop_back();
    for (const CuStream stream : streams_) api_.StreamDestroy(stream);
    for (const CuEvent event : events_) api_.EventDestroy(event);
    for (const CuPointer memory : memory_) api_.MemFree(memory);
    CuContext popped = nullptr;
    api_.CtxPopCurrent(&popped);
    api_.DevicePrimaryCtxRelease(0);
    FakeCuda::Check();
  }

  void Begin(const Options& options) {
    streams_.clear();
    events_.clear();
    memory_.clear();
    Reset(options);
    ASSERT_CU(api_.DevicePrimaryCtxRetain(&context_, 0));
    ASSERT_CU(api_.CtxPushCurrent(context_));
  }

  CuStream MakeStream(unsigned flags = cuda::kStreamNonBlocking) {
    CuStream stream = nullptr;
    EXPECT_CU(api_.StreamCreate(&stream, flags));
    streams_.push_back(stream);
    return stream;
  }
  CuEvent MakeEvent() {
    CuEvent event = nullptr;
    EXPECT_CU(api_.EventCreate(&event, cuda::kEventDisableTiming));
    events_.push_back(event);
    return event;
  }
  CuPointer MakeMemory(size_t bytes = kBytes) {
    CuPointer memory = 0;
    EXPECT_CU(api_.MemAlloc(&memory, bytes));
    memory_.push_back(memory);
    return memory;
  }
  CuEvent Record(CuStream stream) {
    const CuEvent event = MakeEvent();
    EXPECT_CU(api_.EventRecord(event, stream));
    return event;
  }
  void Set(CuPointer to, unsigned char value, CuStream stream,
           size_t bytes = kBytes) {
    EXPECT_CU(api_.MemsetD8Async(to, value, bytes, stream));
  }
  void Copy(CuPointer to, CuPointer from, CuStream stream,
            size_t bytes = kBytes) {
    EXPECT_CU(api_.MemcpyAsync(to, from, bytes, stream));
  }
  CuResult Await(CuEvent event) {
    for (;;) {
      const CuResult result = api_.EventQuery(event);
      if (result != CuResult::kNotReady) return result;
      std::this_thread::yield();
    }
  }
  void Synchronize(CuStream stream) { EXPECT_CU(Await(Record(stream))); }
  // Returns the first byte, when a stream comes to it.
  int Read(CuPointer memory, CuStream stream) {
    unsigned char byte = 0;
    Copy(At(&byte), memory, stream, 1);
    Synchronize(stream);
    return byte;
  }
  // Expects one violation, whose text has both parts.
  void ExpectViolation(ViolationKind kind, const std::string& a,
                       const std::string& b) {
    const std::vector<Violation> all = Violations();
    ASSERT_EQ(all.size(), 1u) << ViolationText();
    EXPECT_EQ(all[0].kind, kind);
    EXPECT_NE(all[0].text.find(a), std::string::npos) << all[0].text;
    EXPECT_NE(all[0].text.find(b), std::string::npos) << all[0].text;
    ClearViolations();
  }

  const DriverApi& api_ = Api();
  CuContext context_ = nullptr;
  std::vector<CuStream> streams_;
  std::vector<CuEvent> events_;
  std::vector<CuPointer> memory_;
};

}  // namespace shard::testing::fake_cuda

#endif  // SHARD_TESTS_FAKE_CUDA_DRIVER_TESTING_H_
