// SPDX-License-Identifier: Apache-2.0
//
// Memory of the fake device: its limits, and the uses of it that are found to
// be wrong.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/core/base/sanitizers.h"
#include "tests/fake_cuda/driver_testing.h"

namespace shard::memory_test {
namespace {

using namespace testing::fake_cuda;

using MemoryTest = DriverTest;

TEST_F(MemoryTest, MemoryHasALimit) {
  TearDown();
  Options options;
  options.memory_bytes = 1000;
  options.pinned_bytes = 100;
  Begin(options);
  CuPointer memory = 0;
  EXPECT_EQ(api_.MemAlloc(&memory, 0), CuResult::kInvalidValue);
  EXPECT_EQ(api_.MemAlloc(&memory, 1001), CuResult::kOutOfMemory);
  EXPECT_CU(api_.MemAlloc(&memory, 600));
  CuPointer more = 0;
  EXPECT_EQ(api_.MemAlloc(&more, 401), CuResult::kOutOfMemory);
  size_t free = 0;
  size_t total = 0;
  EXPECT_CU(api_.MemGetInfo(&free, &total));
  EXPECT_EQ(free, 400u);
  EXPECT_EQ(total, 1000u);
  void* pinned = nullptr;
  EXPECT_EQ(api_.MemHostAlloc(&pinned, 101, 0), CuResult::kOutOfMemory);
  EXPECT_CU(api_.MemHostAlloc(&pinned, 100, 0));
  EXPECT_EQ(CountAlive().device_bytes, 600u);
  EXPECT_EQ(CountAlive().pinned_allocations, 1u);
  EXPECT_EQ(CountAlive().pinned_bytes, 100u);
  EXPECT_CU(api_.MemFree(memory));
  EXPECT_CU(api_.MemAlloc(&memory, 1000));
  EXPECT_CU(api_.MemFree(memory));
  EXPECT_EQ(api_.MemFree(At(pinned)), CuResult::kInvalidValue);
  EXPECT_CU(api_.MemFreeHost(pinned));
}

TEST_F(MemoryTest, PointersHaveAttributes) {
  const CuPointer memory = MakeMemory();
  void* pinned = nullptr;
  EXPECT_CU(api_.MemHostAlloc(&pinned, 1, 0));
  cuda::CuMemoryType type = {};
  int ordinal = -1;
  EXPECT_CU(api_.PointerGetAttribute(
      &type, cuda::CuPointerAttribute::kMemoryType, memory + kBytes - 1));
  EXPECT_EQ(type, cuda::CuMemoryType::kDevice);
  EXPECT_CU(api_.PointerGetAttribute(
      &ordinal, cuda::CuPointerAttribute::kDeviceOrdinal, memory));
  EXPECT_EQ(ordinal, 0);
  EXPECT_CU(api_.PointerGetAttribute(
      &type, cuda::CuPointerAttribute::kMemoryType, At(pinned)));
  EXPECT_EQ(type, cuda::CuMemoryType::kHost);
  EXPECT_EQ(api_.PointerGetAttribute(
                &type, cuda::CuPointerAttribute::kMemoryType, At(&type)),
            CuResult::kInvalidValue);
  EXPECT_CU(api_.MemFreeHost(pinned));
}

TEST_F(MemoryTest, CopiesAreCountedByDirection) {
  const CuStream stream = MakeStream();
  const CuPointer a = MakeMemory();
  const CuPointer b = MakeMemory();
  void* pinned = nullptr;
  EXPECT_CU(api_.MemHostAlloc(&pinned, kBytes, 0));
  unsigned char host[kBytes] = {};
  const Counters before = Count();
  Set(a, 0, stream);
  Copy(b, a, stream);
  Copy(a, At(pinned), stream, 8);
  Copy(At(pinned), a, stream, 16);
  Copy(At(host), a, stream, 4);
  Copy(At(pinned), At(pinned) + 32, stream, 2);
  const Counters counters = CountSince(before);
  EXPECT_EQ(counters.memsets, (Traffic{1, kBytes}));
  EXPECT_EQ(counters.on_device, (Traffic{1, kBytes}));
  EXPECT_EQ(counters.to_device, (Traffic{1, 8}));
  EXPECT_EQ(counters.to_host, (Traffic{2, 20}));
  EXPECT_EQ(counters.on_host, (Traffic{1, 2}));
  EXPECT_EQ(counters.pageable_copies, 1u);
  EXPECT_EQ(counters.Calls("cuMemcpyAsync"), 5u);
  EXPECT_EQ(counters.Calls("cuMemAlloc"), 0u);
  Synchronize(stream);
  EXPECT_CU(api_.MemFreeHost(pinned));
  EXPECT_EQ(CountSince(before).waits_of_host, 1u);
}

TEST_F(MemoryTest, FindsAccessesWithoutAnOrder) {
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  const CuPointer memory = MakeMemory();
  const CuPointer other = MakeMemory();
  Set(memory, 1, a);
  Copy(other, memory, b);
  ExpectViolation(ViolationKind::kUnordered, "cuMemcpyAsync of 64 bytes (no. 1",
                  "cuMemsetD8Async of 64 bytes (no. 1");
  RunAll();
  // Nothing but an event tells the host, and so what the host enqueues.
  Set(other, 1, a);
  ExpectViolation(ViolationKind::kUnordered,
                  "cuMemsetD8Async of 64 bytes (no. 2",
                  "cuMemcpyAsync of 64 bytes (no. 1");
  Synchronize(a);
  Synchronize(b);
  Set(other, 1, b);
  // Other bytes, and reads of the same.
  Copy(memory, other, a, 0);
  Set(memory, 1, a, 32);
  Set(memory + 32, 1, b, 32);
  Synchronize(a);
  Synchronize(b);
  Copy(other, memory, a, 16);
  Copy(other + 16, memory, b, 16);
  Synchronize(a);
  Synchronize(b);
  EXPECT_EQ(ViolationText(), "");
}

TEST_F(MemoryTest, FindsAccessesOfTheHostWithoutAnOrder) {
  const CuStream stream = MakeStream();
  const CuPointer memory = MakeMemory();
  void* pinned = nullptr;
  EXPECT_CU(api_.MemHostAlloc(&pinned, kBytes, 0));
  CheckHostAccess({pinned, kBytes, true}, "filling");
  Copy(memory, At(pinned), stream);
  CheckHostAccess({pinned, kBytes, false}, "looking");
  EXPECT_EQ(ViolationText(), "");
  CheckHostAccess({pinned, kBytes, true}, "filling");
  ExpectViolation(ViolationKind::kUnordered, "filling (by the host)",
                  "cuMemcpyAsync of 64 bytes (no. 1");
  Synchronize(stream);
  CheckHostAccess({pinned, kBytes, true}, "filling");
  EXPECT_CU(api_.MemFreeHost(pinned));
}

TEST_F(MemoryTest, FindsCopiesThatLeaveTheirAllocation) {
  const CuStream stream = MakeStream();
  const CuPointer memory = MakeMemory();
  const CuPointer other = MakeMemory(2 * kBytes);
  EXPECT_EQ(api_.MemcpyAsync(memory + 1, other, kBytes, stream),
            CuResult::kInvalidValue);
  ExpectViolation(ViolationKind::kOutOfBounds, "cuMemcpyAsync of 64 bytes",
                  "from byte 1 of 64");
  EXPECT_EQ(api_.MemsetD8Async(memory + kBytes, 0, 1, stream),
            CuResult::kInvalidValue);
  ExpectViolation(ViolationKind::kOutOfBounds, "cuMemsetD8Async",
                  "from byte 64 of 64");
  unsigned char host = 0;
  EXPECT_EQ(api_.MemsetD8Async(At(&host), 0, 1, stream),
            CuResult::kInvalidValue);
}

TEST_F(MemoryTest, FindsWhatIsWrittenBehindTheEnd) {
  CuPointer memory = 0;
  EXPECT_CU(api_.MemAlloc(&memory, kBytes));
  *reinterpret_cast<unsigned char*>(memory + kBytes + 3) = 1;
  EXPECT_CU(api_.MemFree(memory));
  ExpectViolation(ViolationKind::kOverrun, "64 bytes", "cuMemFree");
}

TEST_F(MemoryTest, FindsMemoryThatIsFreedWhileItIsUsed) {
  const CuStream stream = MakeStream();
  CuPointer memory = 0;
  EXPECT_CU(api_.MemAlloc(&memory, kBytes));
  Set(memory, 0, stream);
  EXPECT_CU(api_.MemFree(memory));
  ExpectViolation(ViolationKind::kUnordered, "cuMemFree (by the host)",
                  "cuMemsetD8Async of 64 bytes (no. 1");
  EXPECT_EQ(NumPending(), 0u);
  EXPECT_EQ(api_.MemFree(memory), CuResult::kInvalidValue);
  ExpectViolation(ViolationKind::kUseAfterFree, "freed again",
                  "cuMemFree (by the host)");
}

TEST_F(MemoryTest, FindsMemoryThatIsFreedWhileAnotherDeviceUsesIt) {
  TearDown();
  Options options;
  options.lazy = true;
  Begin(options);
  CuPointer memory = 0;
  EXPECT_CU(api_.MemAlloc(&memory, kBytes));
  CuContext other = nullptr;
  CuContext popped = nullptr;
  EXPECT_CU(api_.DevicePrimaryCtxRetain(&other, 1));
  EXPECT_CU(api_.CtxPushCurrent(other));
  CuStream stream = nullptr;
  EXPECT_CU(api_.StreamCreate(&stream, cuda::kStreamNonBlocking));
  Set(memory, 1, stream);
  EXPECT_CU(api_.MemFree(memory));
  ExpectViolation(ViolationKind::kUnordered, "cuMemFree (by the host)",
                  "of device 1");
  RunAll();
  EXPECT_CU(api_.StreamDestroy(stream));
  EXPECT_CU(api_.CtxPopCurrent(&popped));
  EXPECT_CU(api_.DevicePrimaryCtxRelease(1));
}

TEST_F(MemoryTest, AllocatesWithoutEnd) {
  // More than the system has mappings for.
  for (int i = 0; i < 40000; ++i) {
    CuPointer memory = 0;
    ASSERT_CU(api_.MemAlloc(&memory, kBytes)) << i;
    ASSERT_CU(api_.MemFree(memory));
  }
}

class PoolTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    const cuda::CuMemoryPoolProps props;
    ASSERT_CU(api_.MemPoolCreate(&pool_, &props));
  }
  void TearDown() override {
    EXPECT_CU(api_.MemPoolDestroy(pool_));
    DriverTest::TearDown();
  }

  CuPointer Allocate(CuStream stream) {
    CuPointer memory = 0;
    EXPECT_CU(api_.MemAllocFromPoolAsync(&memory, kBytes, pool_, stream));
    return memory;
  }

  cuda::CuMemoryPool pool_ = nullptr;
};

TEST_F(PoolTest, IsUsedInTheOrderOfAStream) {
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  const CuPointer memory = Allocate(a);
  EXPECT_CU(api_.StreamWaitEvent(b, Record(a), 0));
  Set(memory, 1, b);
  EXPECT_CU(api_.StreamWaitEvent(a, Record(b), 0));
  EXPECT_CU(api_.MemFreeAsync(memory, a));
  Synchronize(a);
  EXPECT_EQ(CountAlive().device_allocations, 0u);
}

TEST_F(PoolTest, KeepsWhatTheHostDoesNotKnowToBeFree) {
  const CuStream stream = MakeStream();
  size_t before = 0;
  size_t free = 0;
  size_t total = 0;
  EXPECT_CU(api_.MemGetInfo(&before, &total));
  const CuPointer memory = Allocate(stream);
  EXPECT_CU(api_.MemFreeAsync(memory, stream));
  RunAll();
  EXPECT_CU(api_.MemPoolTrimTo(pool_, 0));
  EXPECT_CU(api_.MemGetInfo(&free, &total));
  EXPECT_EQ(free, before - kBytes);
  // The pool has it for itself.
  EXPECT_CU(api_.MemFreeAsync(Allocate(stream), stream));
  EXPECT_CU(api_.MemGetInfo(&free, &total));
  EXPECT_EQ(free, before - kBytes);
  Synchronize(stream);
  EXPECT_CU(api_.MemGetInfo(&free, &total));
  EXPECT_EQ(free, before - kBytes);
  EXPECT_CU(api_.MemPoolTrimTo(pool_, 0));
  EXPECT_CU(api_.MemGetInfo(&free, &total));
  EXPECT_EQ(free, before);
}

TEST_F(PoolTest, FindsAnUseBeforeTheAllocation) {
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  const CuPointer memory = Allocate(a);
  Set(memory, 1, b);
  ExpectViolation(ViolationKind::kUnordered, "cuMemsetD8Async of 64 bytes",
                  "cuMemAllocFromPoolAsync (no. 1");
  Synchronize(b);
  EXPECT_CU(api_.MemFreeAsync(memory, a));
}

TEST_F(PoolTest, FindsAFreeThatIsNotOrderedAfterAUse) {
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  const CuPointer memory = Allocate(a);
  Synchronize(a);
  Pause();
  Set(memory, 1, b);
  EXPECT_CU(api_.MemFreeAsync(memory, b));
  EXPECT_EQ(ViolationText(), "");
  const CuPointer other = Allocate(a);
  EXPECT_CU(api_.StreamWaitEvent(b, Record(a), 0));
  Set(other, 1, b);
  EXPECT_CU(api_.StreamWaitEvent(a, Record(b), 0));
  Copy(other, other, b);
  EXPECT_CU(api_.MemFreeAsync(other, a));
  ExpectViolation(ViolationKind::kUnordered, "cuMemFreeAsync (no.",
                  "cuMemcpyAsync of 64 bytes (no.");
  Resume();
  Synchronize(a);
}

TEST_F(PoolTest, FindsAnUseAfterTheFree) {
  const CuStream stream = MakeStream();
  const CuPointer memory = Allocate(stream);
  EXPECT_CU(api_.MemFreeAsync(memory, stream));
  EXPECT_EQ(api_.MemsetD8Async(memory, 1, kBytes, stream),
            CuResult::kInvalidValue);
  ExpectViolation(ViolationKind::kUseAfterFree, "cuMemsetD8Async of 64 bytes",
                  "cuMemFreeAsync (no. 2");
}

TEST_F(MemoryTest, ADeviceMayHaveNoPools) {
  TearDown();
  Options options;
  options.memory_pools = false;
  Begin(options);
  int pools = -1;
  EXPECT_CU(api_.DeviceGetAttribute(
      &pools, CuDeviceAttribute::kMemoryPoolsSupported, 0));
  EXPECT_EQ(pools, 0);
  cuda::CuMemoryPool pool = nullptr;
  const cuda::CuMemoryPoolProps props;
  EXPECT_EQ(api_.MemPoolCreate(&pool, &props), CuResult::kNotSupported);
}

using GuardDeathTest = DriverTest;

TEST_F(GuardDeathTest, TheHostCannotReachGuardedMemory) {
  // The runtime of a sanitizer handles the signal in its own way.
  if (kSanitized) GTEST_SKIP() << "a sanitizer takes the signal";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  TearDown();
  Options options;
  options.guard = true;
  Begin(options);
  const CuStream stream = MakeStream();
  const CuPointer memory = MakeMemory();
  Set(memory, 7, stream);
  EXPECT_EQ(Read(memory, stream), 7);
  EXPECT_DEATH(*reinterpret_cast<volatile unsigned char*>(memory) = 1, "");
}

}  // namespace
}  // namespace shard::memory_test
