// SPDX-License-Identifier: Apache-2.0
//
// Kernels of libraries that wait for more than streams.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tests/fake_cuda/driver_testing.h"

namespace shard::waiting_test {
namespace {

using namespace testing::fake_cuda;

class WaitingTest : public DriverTest {
 protected:
  // A kernel that waits for `is_open_`, and then sets `memory` to 7.
  WaitingKernel Make(const std::vector<CuStream>& streams, CuPointer memory) {
    WaitingKernel kernel;
    kernel.name = "waits";
    kernel.context = context_;
    kernel.streams = streams;
    kernel.accesses = {{reinterpret_cast<void*>(memory), 1, true}};
    kernel.begin = [this, memory] {
      ++begins_;
      return [this, memory, steps = std::make_shared<int>(0)] {
        if (!is_open_) return Progress::kWaits;
        if (++*steps < 3) return Progress::kMore;
        *reinterpret_cast<char*>(memory) = 7;
        return Progress::kDone;
      };
    };
    return kernel;
  }

  std::atomic<bool> is_open_ = false;
  int begins_ = 0;
};

TEST_F(WaitingTest, AKernelThatWaitsHoldsUpItsStreamAlone) {
  const CuStream stream = MakeStream();
  const CuStream other = MakeStream();
  const CuPointer memory = MakeMemory();
  const CuPointer free = MakeMemory();
  EXPECT_CU(LaunchWaiting(Make({stream}, memory)));
  const CuEvent event = Record(stream);
  for (int i = 1; i <= 5; ++i) {
    Set(free, static_cast<unsigned char>(i), other);
    EXPECT_EQ(Read(free, other), i);
    EXPECT_EQ(api_.EventQuery(event), CuResult::kNotReady);
  }
  is_open_ = true;
  EXPECT_CU(Await(event));
  EXPECT_EQ(Read(memory, stream), 7);
  EXPECT_EQ(begins_, 1);
}

TEST_F(WaitingTest, AKernelIsInTheOrderOfAllItsStreams) {
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  const CuPointer memory = MakeMemory();
  const CuPointer other = MakeMemory();
  is_open_ = true;
  Set(memory, 1, b);  // Before, by its second stream.
  Set(other, 1, a);
  EXPECT_CU(LaunchWaiting(Make({a, b}, memory)));
  Set(other, 2, b);  // After what is before the kernel.
  EXPECT_EQ(Read(memory, b), 7);
  Synchronize(a);
  EXPECT_EQ(ViolationText(), "");
}

TEST_F(WaitingTest, AKernelNeedsAnOrder) {
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  const CuPointer memory = MakeMemory();
  is_open_ = true;
  EXPECT_CU(LaunchWaiting(Make({a}, memory)));
  Set(memory, 1, b);
  ExpectViolation(ViolationKind::kUnordered, "cuMemsetD8Async", "waits");
  Synchronize(a);
}

// A lazy device does what others may wait for, once something waits.
TEST_F(WaitingTest, ALazyDeviceComesToKernelsThatOthersNeed) {
  TearDown();
  Options options;
  options.lazy = true;
  Begin(options);
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  const CuPointer memory = MakeMemory();
  EXPECT_CU(LaunchWaiting(Make({a}, memory)));
  WaitingKernel opens = Make({b}, MakeMemory());
  opens.begin = [this] {
    return [this] {
      is_open_ = true;
      return Progress::kDone;
    };
  };
  EXPECT_CU(LaunchWaiting(opens));  // Nobody waits for it.
  Synchronize(a);
}

TEST_F(WaitingTest, ADestroyedStreamGoesOnWaiting) {
  CuStream stream = nullptr;
  EXPECT_CU(api_.StreamCreate(&stream, cuda::kStreamNonBlocking));
  const CuPointer memory = MakeMemory();
  EXPECT_CU(LaunchWaiting(Make({stream}, memory)));
  const CuEvent event = Record(stream);
  EXPECT_CU(api_.StreamDestroy(stream));
  EXPECT_EQ(api_.EventQuery(event), CuResult::kNotReady);
  is_open_ = true;
  EXPECT_CU(Await(event));
}

TEST_F(WaitingTest, ALostDeviceDropsAKernelThatWaits) {
  const CuStream stream = MakeStream();
  const CuPointer memory = MakeMemory();
  EXPECT_CU(LaunchWaiting(Make({stream}, memory)));
  LoseAtCall("", 1);
  EXPECT_EQ(LaunchWaiting(Make({stream}, memory)), CuResult::kIllegalAddress);
  EXPECT_EQ(NumPending(), 0u);
}

TEST_F(WaitingTest, MemoryAndContextsAreFound) {
  const CuPointer memory = MakeMemory();
  Memory found = {};
  EXPECT_TRUE(FindMemory(reinterpret_cast<char*>(memory) + 1, &found));
  EXPECT_EQ(At(found.begin), memory);
  EXPECT_EQ(found.bytes, kBytes);
  EXPECT_EQ(found.device, 0);
  EXPECT_FALSE(found.is_pinned);
  EXPECT_FALSE(FindMemory(&found, &found));
  int device = -1;
  EXPECT_EQ(CurrentContext(&device), context_);
  EXPECT_EQ(device, 0);
  CuContext popped = nullptr;
  EXPECT_CU(api_.CtxPopCurrent(&popped));
  EXPECT_EQ(CurrentContext(&device), nullptr);
  EXPECT_EQ(LaunchWaiting({}), CuResult::kInvalidValue);
  EXPECT_CU(api_.CtxPushCurrent(context_));
}

}  // namespace
}  // namespace shard::waiting_test
