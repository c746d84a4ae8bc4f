// SPDX-License-Identifier: Apache-2.0
//
// The guard device itself: what faults on it, and what does not.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "core/comm/communicator.h"
#include "core/device/device.h"
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

std::shared_ptr<Device> OpenGuard() {
  auto cpu = OpenDevice("cpu");
  EXPECT_OK(cpu);
  return GuardTensors(*std::move(cpu));
}

TEST(GuardTest, TheHostReachesNoTensor) {
  const auto device = OpenGuard();
  auto tensor = device->Allocate(5000, "a tensor");
  ASSERT_OK(tensor);
  EXPECT_EQ(tensor->size(), 5000u);
  EXPECT_FALSE(device->IsHostMemory());
  for (const size_t at : {size_t{0}, size_t{4096}, size_t{4999}}) {
    EXPECT_FALSE(IsReadable(tensor->data() + at));
    EXPECT_TRUE(IsReadable(KernelView(tensor->data() + at)));
  }
  auto pinned = device->AllocateHost(8, "memory of the host");
  ASSERT_OK(pinned);
  EXPECT_TRUE(IsReadable(pinned->data()));
  EXPECT_EQ(KernelView(pinned->data()), pinned->data());
  // Freed addresses stand for nothing.
  const std::byte* const freed = tensor->data();
  *tensor = DeviceMemory();
  EXPECT_EQ(KernelView(freed), freed);
}

TEST(GuardTest, KernelsAndCopiesReachTensors) {
  const auto device = OpenGuard();
  auto stream = device->CreateStream(StreamKind::kCompute);
  ASSERT_OK(stream);
  auto wide = device->Allocate(4, "fp32");
  ASSERT_OK(wide);
  auto half = device->Allocate(2, "bf16");
  ASSERT_OK(half);
  const float from = 1.5f;
  (*stream)->Copy(wide->data(), &from, sizeof(from));
  (*stream)->Narrow(DType::kBF16, reinterpret_cast<const float*>(wide->data()),
                    half->data(), 1, nullptr);
  (*stream)->FillZeros(wide->data(), sizeof(from));
  (*stream)->Widen(DType::kBF16, half->data(),
                   reinterpret_cast<float*>(wide->data()), 1);
  float to = 0;
  (*stream)->Copy(&to, wide->data(), sizeof(to));
  ASSERT_OK((*stream)->Synchronize(Soon()));
  EXPECT_EQ(to, from);
}

TEST(GuardTest, RanksReachEachOthersTensors) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([rank] {
      CommOptions options;
      options.rank = rank;
      auto opened = OpenCommunicator("threads:2?name=guard", options);
      ASSERT_OK(opened);
      const auto comm = GuardTensors(*std::move(opened));
      const auto device = OpenGuard();
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
      // By a collective, of a communicator made from this one.
      auto own = comm->Duplicate("own", Soon());
      ASSERT_OK(own);
      auto tensor = device->Allocate(1, "a tensor");
      ASSERT_OK(tensor);
      *KernelView(tensor->data()) = std::byte(rank + 1);
      ASSERT_OK((*own)->Broadcast("send", 1, tensor->data(), 1, Soon()));
      EXPECT_EQ(*KernelView(tensor->data()), std::byte{2});
      ASSERT_OK(comm->Shutdown(Soon()));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GuardDeathTest, AnAccessOfTheHostNamesTheTensor) {
  const auto device = OpenGuard();
  auto tensor = device->Allocate(8, "a tensor");
  ASSERT_OK(tensor);
  volatile std::byte* const data = tensor->data();
  EXPECT_DEATH(data[5] = std::byte{1},
               "code of the host touched byte 5 of 'a tensor'");
}

TEST(GuardDeathTest, AKernelEndsTheProcessOnMemoryThatItDoesNotReach) {
  const auto device = OpenGuard();
  auto stream = device->CreateStream(StreamKind::kCompute);
  ASSERT_OK(stream);
  auto tensor = device->Allocate(4, "a tensor");
  ASSERT_OK(tensor);
  const float host = 1;
  EXPECT_DEATH(
      (*stream)->Narrow(DType::kBF16, &host, tensor->data(), 1, nullptr),
      "memory of the host that it does not reach");
}

}  // namespace
}  // namespace shard::guard_test
