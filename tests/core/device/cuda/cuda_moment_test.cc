// SPDX-License-Identifier: Apache-2.0
//
// When a device comes to a point of a stream's work, told by events of the
// driver: no work waits for the host to look, and none fails by it.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <memory>

#include "core/base/monotonic_time.h"
#include "core/device/cuda/context.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/device_clock.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/gate.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda {
namespace {

using testing::ComesTrue;
using testing::FakeCudaTest;
using testing::fake_cuda::Count;
using testing::fake_cuda::Counters;
using testing::fake_cuda::CountInChild;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::FailCall;
using testing::fake_cuda::Pause;
using testing::fake_cuda::Resume;
using testing::fake_cuda::RunAll;

Deadline Soon() { return Deadline::After(30); }

class CudaMomentTest : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    device_ = *OpenDevice("0");
    stream_ = *device_->CreateStream(StreamKind::kCommunication);
  }
  void TearDown() override {
    stream_.reset();
    device_.reset();
    FakeCudaTest::TearDown();
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(CudaMomentTest, HoldsNoWorkUp) {
  const DeviceMemory memory = *device_->Allocate(64, "a tensor");
  Pause();
  const Counters before = Count();
  const auto begin = stream_->Mark(nullptr);
  stream_->FillZeros(memory.data(), 64);
  const auto end = stream_->Mark(begin.get());
  EXPECT_EQ(CountSince(before).Calls("cuMemsetD8Async"), 1u);
  for (const auto& moment : {begin, end}) {
    EXPECT_FALSE(moment->time().has_value());
    EXPECT_FALSE(moment->is_dropped());
  }
  Resume();
  EXPECT_OK(stream_->Synchronize(Soon()));
  ASSERT_TRUE(begin->time().has_value());
  ASSERT_TRUE(end->time().has_value());
  EXPECT_LE(*begin->time(), *end->time());
  EXPECT_FALSE(end->is_dropped());
}

TEST_F(CudaMomentTest, HasTheTimeOfTheHostsClock) {
  Gate gate;
  const int64_t start = MonotonicTime();
  const auto first = stream_->Mark(nullptr);
  stream_->Call("wait", [&gate] { return gate.Pass(); });
  const auto second = stream_->Mark(first.get());
  ASSERT_TRUE(gate.AwaitArrival());
  const int64_t arrived = MonotonicTime();
  ASSERT_TRUE(ComesTrue([&] { return first->time().has_value(); }));
  // The device came to the clock's own event within this time.
  const int64_t slack = MonotonicTime() - start;
  EXPECT_FALSE(second->time().has_value());
  EXPECT_FALSE(second->is_dropped());
  const int64_t opened = MonotonicTime();
  gate.Open();
  ASSERT_OK(stream_->Synchronize(Soon()));
  ASSERT_TRUE(second->time().has_value());
  const int64_t end = MonotonicTime();
  constexpr int64_t kRounding = 1000;  // Milliseconds in a float.
  const int64_t between = *second->time() - *first->time();
  EXPECT_GE(between, opened - arrived - kRounding);
  EXPECT_LE(between, end - start + kRounding);
  EXPECT_GE(*second->time(), opened - slack);
  EXPECT_LE(*second->time(), end + slack);
}

TEST_F(CudaMomentTest, IsDroppedBehindAnError) {
  const auto before = stream_->Mark(nullptr);
  stream_->Call("fail", [] { return Internal("broken"); });
  const auto behind = stream_->Mark(nullptr);
  ExpectError(stream_->Synchronize(Soon()), StatusCode::kInternal, {"broken"});
  const auto later = stream_->Mark(nullptr);
  for (const auto& moment : {behind, later}) {
    EXPECT_FALSE(moment->time().has_value());
    EXPECT_TRUE(moment->is_dropped());
  }
  EXPECT_TRUE(ComesTrue([&] { return before->time().has_value(); }));
}

// The device may come to a moment without the work before it.
TEST_F(CudaMomentTest, IsDroppedWhereTheStreamIsFailed) {
  const auto moment = stream_->Mark(nullptr);
  RunAll();
  EXPECT_TRUE(moment->time().has_value());
  EXPECT_FALSE(moment->is_dropped());
  stream_->Fail(Cancelled("a rank is lost"));
  moment->time();
  EXPECT_TRUE(moment->is_dropped());
}

// A time that the driver does not tell is unknown, and work goes on.
TEST_F(CudaMomentTest, ThatCannotBeTakenIsDropped) {
  for (const char* const symbol :
       {"cuStreamCreate", "cuEventCreate", "cuEventRecord"}) {
    FailCall(symbol, 1, CuResult::kUnknown);
    const auto moment = stream_->Mark(nullptr);
    EXPECT_FALSE(moment->time().has_value()) << symbol;
    EXPECT_TRUE(moment->is_dropped()) << symbol;
  }
  // Behind a call, too.
  const auto first = stream_->Mark(nullptr);
  Gate gate;
  stream_->Call("wait", [&gate] { return gate.Pass(); });
  const auto behind = stream_->Mark(first.get());
  ASSERT_TRUE(gate.AwaitArrival());
  FailCall("cuEventRecord", 1, CuResult::kUnknown);
  gate.Open();
  EXPECT_OK(stream_->Synchronize(Soon()));
  EXPECT_FALSE(behind->time().has_value());
  EXPECT_TRUE(behind->is_dropped());
  RunAll();
  FailCall("cuEventElapsedTime", 1, CuResult::kUnknown);
  EXPECT_FALSE(first->time().has_value());
  EXPECT_TRUE(first->is_dropped());
  EXPECT_OK(stream_->Synchronize(Soon()));
}

// A child of fork asks neither the driver nor for a lock.
TEST_F(CudaMomentTest, IsUnknownInAChildOfFork) {
  Pause();
  const auto moment = stream_->Mark(nullptr);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(moment->time().has_value() ? 1 : 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(CountInChild(), 0u);
  Resume();
}

// Work that may still run keeps the context, whose clock ends all the same.
TEST(DeviceClockTest, EndsWithAnAbandonedContext) {
  testing::ResetWithKernels();
  auto context = *Context::Open(0);
  ASSERT_OK(context->Run([&] { return context->clock().Now().status(); }));
  context->Abandon();
  context.reset();
  testing::ResetWithKernels();
}

}  // namespace
}  // namespace shard::cuda
