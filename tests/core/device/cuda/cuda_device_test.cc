// SPDX-License-Identifier: Apache-2.0
//
// The device cuda over the fake of its driver: what hosts give it, and what it
// does when the driver fails.

#include "core/device/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "core/device/cuda/driver.h"
#include "tests/core/base/expect_status.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace shard::cuda {
namespace {

using testing::fake_cuda::Alive;
using testing::fake_cuda::AliveText;
using testing::fake_cuda::CheckHostAccess;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountAlive;
using testing::fake_cuda::Counters;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::FailCall;
using testing::fake_cuda::LoseAtCall;
using testing::fake_cuda::Options;
using testing::fake_cuda::Reset;
using testing::fake_cuda::SetCaptured;
using testing::fake_cuda::ViolationText;

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { Reset(); }
  void TearDown() override {
    EXPECT_EQ(ViolationText(), "");
    EXPECT_EQ(AliveText(), "");
  }

  static std::shared_ptr<Device> Open(const char* id = "0") {
    auto device = OpenDevice(id);
    EXPECT_OK(device);
    return device.ok() ? *std::move(device) : nullptr;
  }
  static DeviceMemory Allocate(Device* device, size_t bytes) {
    auto memory = device->Allocate(bytes, "a tensor");
    EXPECT_OK(memory);
    return memory.ok() ? *std::move(memory) : DeviceMemory();
  }
  static DeviceMemory AllocateHost(Device* device, size_t bytes) {
    auto memory = device->AllocateHost(bytes, "values");
    EXPECT_OK(memory);
    return memory.ok() ? *std::move(memory) : DeviceMemory();
  }
};

TEST_F(CudaDeviceTest, IsOneForAllWhoOpenIt) {
  const auto first = Open();
  const Counters before = Count();
  const auto second = Open();
  EXPECT_EQ(first, second);
  EXPECT_EQ(CountSince(before).Calls("cuModuleLoadData"), 0u);
  const auto other = Open("1");
  EXPECT_NE(first, other);
  EXPECT_EQ(other->id().ordinal, 1);
}

TEST_F(CudaDeviceTest, AUuidNamesADevice) {
  const auto device = Open("1");
  for (const char* const name : {"GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe01",
                                 "GPU-F0F1F2F3-F4F5-F6F7-F8F9-FAFBFCFDFE01",
                                 "f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe01"}) {
    EXPECT_EQ(Open(name), device) << name;
  }
  EXPECT_NE(Open("GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe00"), device);
}

TEST_F(CudaDeviceTest, AUuidNamesAMigInstance) {
  Reset({.device_name = "Fake GPU MIG 1g.5gb"});
  const auto device = Open("1");
  for (const char* const name : {"MIG-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe01",
                                 "MIG-F0F1F2F3-F4F5-F6F7-F8F9-FAFBFCFDFE01"}) {
    EXPECT_EQ(Open(name), device) << name;
  }
  ExpectError(
      OpenDevice("MIG-00000000-0000-0000-0000-000000000000").status(),
      StatusCode::kInvalidArgument,
      {"there are: MIG-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe00, MIG-f0f1f2f3"});
}

TEST_F(CudaDeviceTest, AnUnknownUuidListsThoseThatAreThere) {
  const char* const name = "GPU-00000000-0000-0000-0000-000000000000";
  ExpectError(OpenDevice(name).status(), StatusCode::kInvalidArgument,
              {"no device has the UUID", name,
               "there are: GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe00, "
               "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe01 (see nvidia-smi -L"});
  Reset({.devices = 0});
  ExpectError(OpenDevice(name).status(), StatusCode::kInvalidArgument,
              {"there are: none"});
  Reset();
  FailCall("cuDeviceGetUuid", 1, CuResult::kUnknown);
  ExpectError(OpenDevice(name).status(), StatusCode::kUnavailable,
              {"cuDeviceGetUuid"});
}

TEST_F(CudaDeviceTest, AWrongOrdinalSaysHowManyThereAre) {
  ExpectError(OpenDevice("2").status(), StatusCode::kInvalidArgument,
              {"cuda:2: the driver shows 2 devices, numbered from 0",
               "CUDA_VISIBLE_DEVICES"});
  Reset({.devices = 1});
  ExpectError(OpenDevice("1").status(), StatusCode::kInvalidArgument,
              {"cuda:1: the driver shows 1 device, "});
}

TEST_F(CudaDeviceTest, TellsWhereMemoryLies) {
  const auto device = Open();
  const auto other = Open("1");
  const DeviceMemory tensor = Allocate(device.get(), 64);
  const DeviceMemory far = Allocate(other.get(), 64);
  const DeviceMemory pinned = AllocateHost(device.get(), 64);
  std::array<char, 8> pageable = {};
  EXPECT_OK(device->CheckPlace(tensor.data(), MemoryPlace::kDevice));
  EXPECT_OK(device->CheckPlace(tensor.data() + 63, MemoryPlace::kDevice));
  EXPECT_OK(device->CheckPlace(pinned.data(), MemoryPlace::kHost));
  EXPECT_OK(device->CheckPlace(pageable.data(), MemoryPlace::kHost));
  ExpectError(device->CheckPlace(pageable.data(), MemoryPlace::kDevice),
              StatusCode::kInvalidArgument, {"is the host's", "cuda:0"});
  ExpectError(device->CheckPlace(pinned.data(), MemoryPlace::kDevice),
              StatusCode::kInvalidArgument, {"is the host's"});
  ExpectError(device->CheckPlace(far.data(), MemoryPlace::kDevice),
              StatusCode::kInvalidArgument, {"is of cuda:1", "of cuda:0"});
  ExpectError(device->CheckPlace(tensor.data(), MemoryPlace::kHost),
              StatusCode::kInvalidArgument, {"is of a GPU"});
}

TEST_F(CudaDeviceTest, RefusesStreamsThatItCannotUse) {
  const auto device = Open();
  ExpectError(device->WrapStream(PerThreadStream()).status(),
              StatusCode::kInvalidArgument, {"per-thread"});
  int none = 0;
  ExpectError(device->WrapStream(&none).status(), StatusCode::kInvalidArgument,
              {"primary context"});
  // An error of the driver is not the stream's.
  FailCall("cuStreamGetCtx", 1, CuResult::kUnknown);
  ExpectError(device->WrapStream(&none).status(), StatusCode::kUnavailable,
              {"cuStreamGetCtx"});
}

TEST_F(CudaDeviceTest, AnOldGpuIsRefused) {
  Reset({.compute_major = 7, .compute_minor = 5});
  const auto device = OpenDevice("0");
  ExpectError(device.status(), StatusCode::kBackendUnavailable,
              {"cuda:0", "7.5", "8.0"});
}

TEST_F(CudaDeviceTest, KeepsPinnedMemory) {
  const auto device = Open();
  std::byte* first = nullptr;
  {
    const DeviceMemory memory = AllocateHost(device.get(), 1 << 20);
    first = memory.data();
    std::memset(first, 1, memory.size());
  }
  const Counters before = Count();
  // Too small for that, and the same size again.
  const DeviceMemory small = AllocateHost(device.get(), 100);
  EXPECT_NE(small.data(), first);
  const DeviceMemory again = AllocateHost(device.get(), (1 << 20) - 100);
  EXPECT_EQ(again.data(), first);
  EXPECT_EQ(again.data()[1000], std::byte{0});
  const Counters counters = CountSince(before);
  EXPECT_EQ(counters.Calls("cuMemHostAlloc"), 1u);
  EXPECT_EQ(counters.Calls("cuMemFreeHost"), 0u);
}

TEST_F(CudaDeviceTest, FreesPinnedMemoryThatIsLargeOrNeeded) {
  Reset({.pinned_bytes = size_t{100} << 20});
  const auto device = Open();
  { const DeviceMemory large = AllocateHost(device.get(), size_t{65} << 20); }
  EXPECT_EQ(CountAlive().pinned_allocations, 0u);
  { const DeviceMemory kept = AllocateHost(device.get(), size_t{40} << 20); }
  EXPECT_EQ(CountAlive().pinned_allocations, 1u);
  // There is room only without what is kept.
  { const DeviceMemory large = AllocateHost(device.get(), size_t{90} << 20); }
  EXPECT_EQ(CountAlive().pinned_allocations, 0u);
  ExpectError(device->AllocateHost(size_t{101} << 20, "values").status(),
              StatusCode::kResourceExhausted,
              {"values", "101.0 MiB", "pinned"});
}

// A host that captures a graph forbids much to threads that do not say that
// they know what they do.
TEST_F(CudaDeviceTest, WorksWhileTheHostCapturesAStream) {
  const auto device = Open();
  auto stream = device->CreateStream(StreamKind::kCompute);
  auto hosts = device->CreateStream(StreamKind::kCompute);
  ASSERT_OK(stream);
  ASSERT_OK(hosts);
  // Any stream that is not of this test.
  SetCaptured(reinterpret_cast<CuStream>(0x10));
  const DeviceMemory memory = Allocate(device.get(), 64);
  (*stream)->FillZeros(memory.data(), 64);
  (*stream)->Call("work of the host", [] { return Status(); });
  (*stream)->FillZeros(memory.data(), 64);
  EXPECT_OK((*stream)->Synchronize(Deadline::After(30)));
  // The legacy stream cannot be used meanwhile.
  auto legacy = device->WrapStream(nullptr);
  ASSERT_OK(legacy);
  const Event event = (*legacy)->Record();
  ExpectError(event.Synchronize(Deadline::After(30)),
              StatusCode::kFailedPrecondition,
              {"captures a CUDA graph", "shard-host"});
  SetCaptured(nullptr);
}

TEST_F(CudaDeviceTest, ACapturedStreamOfTheHostIsRefused) {
  const auto device = Open();
  const DriverApi& api = (*Driver::Load())->api();
  CuContext context = nullptr;
  CuStream native = nullptr;
  ASSERT_EQ(api.DevicePrimaryCtxRetain(&context, 0), CuResult::kSuccess);
  ASSERT_EQ(api.CtxPushCurrent(context), CuResult::kSuccess);
  ASSERT_EQ(api.StreamCreate(&native, 0), CuResult::kSuccess);
  auto wrapped = device->WrapStream(native);
  ASSERT_OK(wrapped);
  const Counters before = Count();
  SetCaptured(native);
  ExpectError((*wrapped)->Record().Synchronize(Deadline::After(30)),
              StatusCode::kFailedPrecondition,
              {"captures the work of its stream", "shard-host"});
  EXPECT_EQ(CountSince(before).Calls("cuEventRecord"), 0u);
  // Nor can it wait for work that is not captured.
  auto other = device->CreateStream(StreamKind::kCompute);
  ASSERT_OK(other);
  wrapped = device->WrapStream(native);
  ASSERT_OK(wrapped);
  (*wrapped)->Wait((*other)->Record(), Deadline::After(30));
  ExpectError((*wrapped)->status(), StatusCode::kFailedPrecondition,
              {"captures the work of its stream", "shard-host"});
  EXPECT_EQ(CountSince(before).Calls("cuStreamWaitEvent"), 0u);
  SetCaptured(nullptr);
  wrapped->reset();
  EXPECT_EQ(api.StreamDestroy(native), CuResult::kSuccess);
  EXPECT_EQ(api.CtxPopCurrent(&context), CuResult::kSuccess);
  EXPECT_EQ(api.DevicePrimaryCtxRelease(0), CuResult::kSuccess);
}

// An error of captured work ends with the capture, and one that was found
// elsewhere does not.
TEST_F(CudaDeviceTest, TheErrorThatAStreamIsGivenOutlivesACapture) {
  const auto device = Open();
  const DriverApi& api = (*Driver::Load())->api();
  CuContext context = nullptr;
  CuStream native = nullptr;
  ASSERT_EQ(api.DevicePrimaryCtxRetain(&context, 0), CuResult::kSuccess);
  ASSERT_EQ(api.CtxPushCurrent(context), CuResult::kSuccess);
  ASSERT_EQ(api.StreamCreate(&native, 0), CuResult::kSuccess);
  {
    const DeviceMemory memory = Allocate(device.get(), 64);
    const auto host = device->WrapStream(native);
    ASSERT_OK(host);
    const auto stream = device->CreateStream(StreamKind::kCompute);
    ASSERT_OK(stream);
    SetCaptured(native);
    ASSERT_OK((*stream)->BeginCapture(host->get()));
    FailCall("cuMemsetD8Async", 1, CuResult::kUnknown);
    (*stream)->FillZeros(memory.data(), 64);
    ExpectError((*stream)->status(), StatusCode::kUnavailable, {"FillZeros"});
    (*stream)->EndCapture();
    EXPECT_OK((*stream)->status());
    ASSERT_OK((*stream)->BeginCapture(host->get()));
    (*stream)->Fail(Cancelled("a rank is lost"));
    for (int i = 0; i < 2; ++i) {
      ExpectError((*stream)->status(), StatusCode::kCancelled,
                  {"a rank is lost"});
      (*stream)->EndCapture();
    }
    SetCaptured(nullptr);
    EXPECT_FALSE((*stream)->Synchronize(Deadline::After(30)).ok());
  }
  EXPECT_EQ(api.StreamDestroy(native), CuResult::kSuccess);
  EXPECT_EQ(api.CtxPopCurrent(&context), CuResult::kSuccess);
  EXPECT_EQ(api.DevicePrimaryCtxRelease(0), CuResult::kSuccess);
}

// A stream that cannot tell whether its work has ended leaves everything as it
// is: that work may still write.
TEST_F(CudaDeviceTest, NothingIsFreedUnderWorkThatMayRun) {
  // The work stays where it is until somebody waits for it.
  Reset({.lazy = true});
  {
    const auto device = Open();
    auto stream = device->CreateStream(StreamKind::kCompute);
    ASSERT_OK(stream);
    const DeviceMemory memory = Allocate(device.get(), 64);
    DeviceMemory pinned = AllocateHost(device.get(), 64);
    const std::byte* const used = pinned.data();
    (*stream)->Copy(memory.data(), pinned.data(), 64);
    FailCall("cuEventRecord", 1, CuResult::kUnknown);
    FailCall("cuEventRecord", 2, CuResult::kUnknown);
    stream->reset();
    pinned = DeviceMemory();
    EXPECT_NE(AllocateHost(device.get(), 64).data(), used);
  }
  const Alive alive = CountAlive();
  EXPECT_EQ(alive.streams, 2u);  // Also that of the memory pool.
  EXPECT_EQ(alive.modules, 1u);
  EXPECT_EQ(alive.context_retains, 1u);
  EXPECT_GE(alive.device_allocations, 1u);
  EXPECT_EQ(alive.pinned_allocations, 2u);
  EXPECT_EQ(alive.current_contexts, 0u);
  EXPECT_EQ(ViolationText(), "");
  Reset();
}

// Nothing stays of a device whose streams ended, though one call failed
// (TearDown).
TEST_F(CudaDeviceTest, OneFailedCallAtAStreamsEndIsTriedAgain) {
  for (const char* const symbol :
       {"cuCtxPushCurrent", "cuEventRecord", "cuEventQuery"}) {
    SCOPED_TRACE(symbol);
    Reset({.lazy = true});
    const auto device = Open();
    auto stream = device->CreateStream(StreamKind::kCompute);
    ASSERT_OK(stream);
    const DeviceMemory memory = Allocate(device.get(), 64);
    (*stream)->FillZeros(memory.data(), 64);
    const Counters before = Count();
    FailCall(symbol, 1, CuResult::kUnknown);
    stream->reset();
    EXPECT_EQ(CountSince(before).Calls("cuStreamDestroy"), 1u);
    EXPECT_EQ(CountAlive().streams, 1u);  // That of the memory pool.
  }
}

// The host may read what the device wrote before the call. The fake is told of
// that, and so finds a call that is early though its values are right.
TEST_F(CudaDeviceTest, ACallWaitsForTheDevice) {
  const auto device = Open();
  auto stream = device->CreateStream(StreamKind::kCompute);
  ASSERT_OK(stream);
  const DeviceMemory memory = Allocate(device.get(), 64);
  const DeviceMemory pinned = AllocateHost(device.get(), 64);
  for (int i = 1; i <= 3; ++i) {
    SCOPED_TRACE(i);
    std::memset(pinned.data(), i, 64);
    (*stream)->Copy(memory.data(), pinned.data(), 32);
    (*stream)->Copy(pinned.data() + 32, memory.data(), 32);
    (*stream)->Call("look", [&] {
      CheckHostAccess({pinned.data() + 32, 32, false}, "a look");
      CheckHostAccess({pinned.data(), 32, true}, "a change");
      EXPECT_EQ(static_cast<int>(pinned.data()[63]), i);
      return Status();
    });
    EXPECT_OK((*stream)->Synchronize(Deadline::After(30)));
  }
}

// So that work which uses a few more of them at once than before makes none.
TEST_F(CudaDeviceTest, EventsAreMadeAhead) {
  const auto device = Open();
  const auto stream = device->CreateStream(StreamKind::kCompute);
  ASSERT_OK(stream);
  std::vector<Event> events;
  for (int i = 0; i < 5; ++i) events.push_back((*stream)->Record());
  const Counters before = Count();
  for (int i = 0; i < 3; ++i) events.push_back((*stream)->Record());
  events.clear();
  for (int i = 0; i < 8; ++i) events.push_back((*stream)->Record());
  EXPECT_EQ(CountSince(before).Calls("cuEventCreate"), 0u);
  EXPECT_OK((*stream)->Synchronize(Deadline::After(30)));
  // Where there is room for no more, that one is enough which is needed.
  for (int i = 0; i < 8; ++i) events.push_back((*stream)->Record());
  FailCall("cuEventCreate", 2, CuResult::kOutOfMemory);
  events.push_back((*stream)->Record());
  EXPECT_EQ(CountSince(before).Calls("cuEventCreate"), 10u);
  EXPECT_OK((*stream)->Synchronize(Deadline::After(30)));
}

// On a lost device nothing runs.
TEST_F(CudaDeviceTest, ALostDeviceIsFreed) {
  const auto device = Open();
  auto stream = device->CreateStream(StreamKind::kCompute);
  ASSERT_OK(stream);
  const DeviceMemory memory = Allocate(device.get(), 64);
  LoseAtCall("cuMemsetD8Async", 1);
  (*stream)->FillZeros(memory.data(), 64);
  ExpectError((*stream)->Synchronize(Deadline::After(30)),
              StatusCode::kUnavailable,
              {"shard-compute", "FillZeros", "ILLEGAL_ADDRESS"});
  stream->reset();
  EXPECT_EQ(CountAlive().streams, 1u);
  Reset();
}

TEST_F(CudaDeviceTest, WorkThatThrowsLeavesNoContextCurrent) {
  const auto device = Open();
  auto stream = device->CreateStream(StreamKind::kCommunication);
  ASSERT_OK(stream);
  (*stream)->Call("work of the host",
                  []() -> Status { throw std::runtime_error("no"); });
  ExpectError((*stream)->Synchronize(Deadline::After(30)),
              StatusCode::kInternal, {"threw"});
  EXPECT_EQ(CountAlive().current_contexts, 0u);
}

}  // namespace
}  // namespace shard::cuda
