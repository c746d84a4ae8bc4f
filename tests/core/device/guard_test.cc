// SPDX-License-Identifier: Apache-2.0
//
// The guard device itself: what faults on it, and what does not.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/comm/communicator.h"
#include "core/comm/exchange.h"
#include "core/device/device.h"
#include "core/device/step_block.h"
#include "core/device/stream.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/guard_device.h"
#include "tests/core/device/guard_memory.h"

namespace shard::guard_test {
namespace {

using testing::GuardTensors;
using testing::KernelView;

Deadline Soon() { return Deadline::After(60); }

// Returns whether this process may read the byte: the kernel says so without a
// signal.
bool IsReadable(const std::byte* address) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const ssize_t written = ::write(ends[1], address, 1);
  const int error = errno;
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_TRUE(written == 1 || error == EFAULT);
  return written == 1;
}

class GuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto stream = device_->CreateStream(StreamKind::kCompute);
    ASSERT_OK(stream);
    stream_ = *std::move(stream);
  }

  DeviceMemory Tensor(size_t bytes) const {
    auto memory = device_->Allocate(bytes, "a tensor");
    EXPECT_OK(memory);
    return *std::move(memory);
  }

  const std::shared_ptr<Device> device_ = GuardTensors(*OpenDevice("cpu"));
  std::unique_ptr<Stream> stream_;
};

using GuardDeathTest = GuardTest;

TEST_F(GuardTest, TheHostReachesNoTensor) {
  DeviceMemory tensor = Tensor(5000);
  EXPECT_EQ(tensor.size(), 5000u);
  EXPECT_FALSE(device_->IsHostMemory());
  for (const size_t at : {size_t{0}, size_t{4096}, size_t{4999}}) {
    EXPECT_FALSE(IsReadable(tensor.data() + at));
    EXPECT_TRUE(IsReadable(KernelView(tensor.data() + at)));
  }
  auto pinned = device_->AllocateHost(8, "memory of the host");
  ASSERT_OK(pinned);
  EXPECT_TRUE(IsReadable(pinned->data()));
  EXPECT_EQ(KernelView(pinned->data()), pinned->data());
  // Freed addresses stand for nothing.
  const std::byte* const freed = tensor.data();
  tensor = DeviceMemory();
  EXPECT_EQ(KernelView(freed), freed);
}

TEST_F(GuardTest, KernelsAndCopiesReachTensors) {
  const DeviceMemory memory = Tensor(sizeof(float));
  const DeviceMemory half = Tensor(2);
  auto* const wide = reinterpret_cast<float*>(memory.data());
  const float from = 1.5f;
  stream_->Copy(wide, &from, sizeof(from));
  stream_->Narrow(DType::kBF16, wide, half.data(), 1, nullptr);
  stream_->FillZeros(wide, sizeof(from));
  stream_->Widen(DType::kBF16, half.data(), wide, 1);
  float to = 0;
  stream_->Copy(&to, wide, sizeof(to));
  ASSERT_OK(stream_->Synchronize(Soon()));
  EXPECT_EQ(to, from);
}

TEST_F(GuardTest, RanksReachEachOthersTensors) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([this, rank] {
      CommOptions options;
      options.rank = rank;
      auto opened = OpenCommunicator("threads:2?name=guard", options);
      ASSERT_OK(opened);
      const auto comm = GuardTensors(*std::move(opened));
      // Where they lie.
      auto shared =
          comm->Allocate("shared", 4, SymmetricKind::kPerRank, Soon());
      ASSERT_OK(shared);
      EXPECT_FALSE(IsReadable((*shared)->region(1 - rank)));
      *KernelView((*shared)->region(rank)) = std::byte(rank + 1);
      ASSERT_OK(comm->Barrier("written", Soon()));
      EXPECT_EQ(*KernelView((*shared)->region(1 - rank)), std::byte(2 - rank));
      auto one = comm->Allocate("one", 4, SymmetricKind::kPerHost, Soon());
      ASSERT_OK(one);
      EXPECT_EQ((*one)->region(0), (*one)->region(1));
      // By a collective, in an exchange of a communicator made from this one.
      auto duplicate = comm->Duplicate("own", /*direct=*/true, Soon());
      ASSERT_OK(duplicate);
      auto own = (*duplicate)->OpenExchange("tensors", Soon());
      ASSERT_OK(own);
      const DeviceMemory tensor = Tensor(1);
      *KernelView(tensor.data()) = std::byte(rank + 1);
      ASSERT_OK((*own)->Broadcast("send", 1, tensor.data(), 1, Soon()));
      EXPECT_EQ(*KernelView(tensor.data()), std::byte{2});
      ASSERT_OK(comm->Shutdown(Soon()));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(GuardDeathTest, AnAccessOfTheHostNamesTheTensor) {
  const DeviceMemory tensor = Tensor(8);
  volatile std::byte* const data = tensor.data();
  EXPECT_DEATH(data[5] = std::byte{1},
               "code of the host touched byte 5 of 'a tensor'");
}

TEST_F(GuardDeathTest, AKernelEndsTheProcessOnMemoryThatItDoesNotReach) {
  const DeviceMemory tensor = Tensor(4);
  const float host = 1;
  EXPECT_DEATH(stream_->Narrow(DType::kBF16, &host, tensor.data(), 1, nullptr),
               "memory of the host that it does not reach");
}

// A kernel reads the block of a step and the sums of a norm in many threads.
TEST_F(GuardDeathTest, AKernelEndsTheProcessOnABlockOrSumsOfTheHost) {
  const auto allocate = [&](bool on_host, size_t bytes) {
    auto memory = on_host ? device_->AllocateHost(bytes, "values")
                          : device_->Allocate(bytes, "values");
    EXPECT_OK(memory);
    return *std::move(memory);
  };
  for (const bool block_on_host : {false, true}) {
    const DeviceMemory block = allocate(block_on_host, sizeof(StepBlock));
    const DeviceMemory sums = allocate(!block_on_host, sizeof(NormSum));
    EXPECT_DEATH(
        stream_->FinishNorm(NormPass::kFirst,
                            reinterpret_cast<const NormSum*>(sums.data()), 1,
                            reinterpret_cast<StepBlock*>(block.data())),
        "memory of the host where it needs the device's own");
  }
}

}  // namespace
}  // namespace shard::guard_test
