// SPDX-License-Identifier: Apache-2.0
//
// The host's access to tensors, where tensors are memory of the host and where
// they are not.

#include "core/device/host_access.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/device/forwarding_device.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/gate.h"
#include "tests/core/device/guard_device.h"
#include "tests/core/device/guard_memory.h"
#include "tests/core/device/test_device.h"

namespace shard::host_access_test {
namespace {

Deadline Soon() { return Deadline::After(60); }

std::shared_ptr<Device> Guarded(const char* spec) {
  auto device = testing::OpenTestDevice(spec);
  EXPECT_OK(device);
  return testing::GuardTensors(*std::move(device));
}

std::unique_ptr<HostAccess> OpenNow(Device* device) {
  auto access = HostAccess::Open(device, Event(), Soon());
  EXPECT_OK(access);
  return *std::move(access);
}

std::vector<uint32_t> Numbers(size_t count, uint32_t first) {
  std::vector<uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

class HostAccessTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string spec = GetParam();
    if (spec.starts_with("guard ")) {
      device_ = Guarded(GetParam() + 6);
      return;
    }
    auto device = testing::OpenTestDevice(spec);
    ASSERT_OK(device);
    device_ = *std::move(device);
  }

  DeviceMemory Tensor(size_t bytes) {
    auto memory = device_->Allocate(bytes, "a tensor");
    EXPECT_OK(memory);
    return *std::move(memory);
  }

  std::unique_ptr<Stream> Create(StreamKind kind) {
    auto stream = device_->CreateStream(kind);
    EXPECT_OK(stream);
    return *std::move(stream);
  }

  std::shared_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(Devices, HostAccessTest,
                         ::testing::ValuesIn(testing::DeviceSpecs(
                             {"cpu", "cpu-async?max_delay=0.0005&seed=3",
                              "guard cpu",
                              "guard cpu-async?max_delay=0.0005&seed=3"})));

// Sizes around those of staging memory and of its halves, in bytes.
TEST_P(HostAccessTest, FetchesWhatWasStored) {
  constexpr size_t kStaging = HostAccess::kStagingBytes;
  const auto access = OpenNow(device_.get());
  for (const size_t bytes :
       {size_t{0}, size_t{4}, kStaging / 2, kStaging + kStaging / 2 + 12}) {
    const std::vector<uint32_t> from = Numbers(bytes / sizeof(uint32_t), 7);
    const DeviceMemory tensor = Tensor(bytes);
    std::vector<uint32_t> to(from.size());
    const HostCopy store = {tensor.data(), from.data(), bytes};
    ASSERT_OK(access->Store({&store, 1}, Soon()));
    const HostCopy fetch = {to.data(), tensor.data(), bytes};
    ASSERT_OK(access->Fetch({&fetch, 1}, Soon()));
    EXPECT_TRUE(to == from) << bytes << " bytes";
  }
}

TEST_P(HostAccessTest, ManyCopiesAtOnceKeepTheirPlaces) {
  // Together more than the staging memory; some are empty.
  constexpr size_t kCount = 1600;
  const std::vector<uint32_t> from = Numbers(kCount * (kCount - 1) / 2, 1);
  std::vector<uint32_t> to(from.size());
  const size_t bytes = from.size() * sizeof(uint32_t);
  ASSERT_GT(bytes, HostAccess::kStagingBytes);
  const DeviceMemory tensor = Tensor(bytes);
  std::vector<HostCopy> store;
  std::vector<HostCopy> fetch;
  // The tensor has the parts in the reverse order.
  size_t at = 0;
  for (size_t numel = 0; numel < kCount; ++numel) {
    const size_t part = numel * sizeof(uint32_t);
    std::byte* const place =
        tensor.data() + bytes - at * sizeof(uint32_t) - part;
    store.push_back({place, from.data() + at, part});
    fetch.push_back({to.data() + at, place, part});
    at += numel;
  }
  const auto access = OpenNow(device_.get());
  ASSERT_OK(access->Store(store, Soon()));
  ASSERT_OK(access->Fetch(fetch, Soon()));
  EXPECT_TRUE(to == from);
}

TEST_P(HostAccessTest, SeesWhatWasEnqueuedBeforeItWasOpened) {
  const std::vector<uint32_t> from = Numbers(100, 5);
  const size_t bytes = from.size() * sizeof(uint32_t);
  const DeviceMemory tensor = Tensor(bytes);
  const auto compute = Create(StreamKind::kCompute);
  for (int i = 0; i < 20; ++i) compute->FillZeros(tensor.data(), bytes);
  compute->Copy(tensor.data(), from.data(), bytes);
  auto access = HostAccess::Open(device_.get(), compute->Record(), Soon());
  ASSERT_OK(access);
  std::vector<uint32_t> to(from.size());
  const HostCopy fetch = {to.data(), tensor.data(), bytes};
  ASSERT_OK((*access)->Fetch({&fetch, 1}, Soon()));
  EXPECT_EQ(to, from);
}

TEST_P(HostAccessTest, ReturnsTheErrorOfWhatWasEnqueuedBefore) {
  const auto failed = Create(StreamKind::kCompute);
  failed->Call("badly", [] { return RankLost(3, "rank 3 died"); });
  ExpectError(HostAccess::Open(device_.get(), failed->Record(), Soon()),
              StatusCode::kRankLost, {"rank 3 died"});
  Gate gate;
  const auto held = Create(StreamKind::kCommunication);
  held->Call("held", gate.Passing());
  ASSERT_TRUE(gate.AwaitArrival());
  ExpectError(
      HostAccess::Open(device_.get(), held->Record(), Deadline::After(0)),
      StatusCode::kDeadlineExceeded, {"held"});
  gate.Open();
}

TEST_P(HostAccessTest, ServesSeveralThreads) {
  constexpr size_t kThreads = 4;
  constexpr size_t kNumel = size_t{1} << 16;
  const DeviceMemory tensor = Tensor(kThreads * kNumel * sizeof(uint32_t));
  const auto access = OpenNow(device_.get());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const std::vector<uint32_t> from =
          Numbers(kNumel, static_cast<uint32_t>(t * kNumel));
      std::vector<uint32_t> to(kNumel);
      std::byte* const part = tensor.data() + t * kNumel * sizeof(uint32_t);
      for (int i = 0; i < 3; ++i) {
        const HostCopy store = {part, from.data(), kNumel * sizeof(uint32_t)};
        EXPECT_OK(access->Store({&store, 1}, Soon()));
        const HostCopy fetch = {to.data(), part, kNumel * sizeof(uint32_t)};
        EXPECT_OK(access->Fetch({&fetch, 1}, Soon()));
        EXPECT_TRUE(to == from);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(HostAccessTest, GivesKernelsTheValuesOfTheHost) {
  const std::vector<float> values = {1.5f, -2.0f, 0.25f};
  const size_t bytes = values.size() * sizeof(float);
  const DeviceMemory halves = Tensor(values.size() * 2);
  const DeviceMemory wide = Tensor(bytes);
  const auto compute = Create(StreamKind::kCompute);
  auto access = OpenNow(device_.get());
  DeviceMemory copy;
  const auto from = access->ForKernels(values.data(), bytes, &copy, Soon());
  ASSERT_OK(from);
  EXPECT_EQ(*from == values.data(), device_->IsHostMemory());
  compute->Narrow(DType::kBF16, static_cast<const float*>(*from), halves.data(),
                  values.size(), nullptr);
  compute->Widen(DType::kBF16, halves.data(),
                 reinterpret_cast<float*>(wide.data()), values.size());
  access = *HostAccess::Open(device_.get(), compute->Record(), Soon());
  std::vector<float> to(values.size());
  const HostCopy fetch = {to.data(), wide.data(), bytes};
  ASSERT_OK(access->Fetch({&fetch, 1}, Soon()));
  EXPECT_EQ(to, values);
}

TEST_P(HostAccessTest, IsInPlaceOnlyWhereTensorsAreTheHosts) {
  const bool is_host = std::string(GetParam()).starts_with("cpu");
  EXPECT_EQ(OpenNow(device_.get())->in_place(), is_host);
}

// An error stays with the stream of a copy, so that stream must serve no other
// copy.
TEST(HostAccessErrorTest, AFailedCopyChangesNothingAndLeavesTheNextAlone) {
  for (const bool store : {false, true}) {
    auto cpu = OpenDevice("cpu-async?max_delay=0");
    ASSERT_OK(cpu);
    std::atomic<int> copies{0};
    const auto device = testing::GuardTensors(*cpu, [&copies] {
      return ++copies == 2 ? Internal("the second copy failed") : Status();
    });
    auto tensor = device->Allocate(8, "a tensor");
    ASSERT_OK(tensor);
    const auto values =
        reinterpret_cast<const uint32_t*>(testing::KernelView(tensor->data()));
    uint32_t host = 5;
    const auto access = OpenNow(device.get());
    const auto copy = [&](size_t index) {
      std::byte* const place = tensor->data() + index * sizeof(host);
      const HostCopy to_device = {place, &host, sizeof(host)};
      const HostCopy to_host = {&host, place, sizeof(host)};
      return store ? access->Store({&to_device, 1}, Soon())
                   : access->Fetch({&to_host, 1}, Soon());
    };
    ASSERT_OK(copy(0));
    const uint32_t before = host;
    ExpectError(copy(1), StatusCode::kInternal, {"the second copy failed"});
    EXPECT_EQ(values[1], 0u);
    EXPECT_EQ(host, before);
    EXPECT_OK(copy(1));
    EXPECT_EQ(values[1], store ? 5u : 0u);
    EXPECT_EQ(host, store ? 5u : 0u);
  }
}

// A processor whose staging memory is that of one lane.
class ScarceDevice : public ForwardingDevice {
 public:
  explicit ScarceDevice(std::shared_ptr<Device> cpu)
      : ForwardingDevice(std::move(cpu)) {}

  StatusOr<DeviceMemory> AllocateHost(size_t bytes,
                                      std::string_view what) override {
    {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      if (state_->is_used) {
        ++state_->num_refused;
        state_->refused.notify_all();
        return ResourceExhausted("there is no room for ", what);
      }
      state_->is_used = true;
    }
    auto memory = device().AllocateHost(bytes, what);
    EXPECT_OK(memory);
    std::byte* const data = memory->data();
    return DeviceMemory(data, bytes,
                        std::make_shared<Use>(*std::move(memory), state_));
  }

  // Waits until `count` allocations were refused.
  bool AwaitRefused(int count) {
    std::unique_lock<std::mutex> lock(state_->mutex);
    return state_->refused.wait_for(lock, std::chrono::seconds(60), [&] {
      return state_->num_refused >= count;
    });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable refused;
    bool is_used = false;
    int num_refused = 0;
  };
  struct Use {
    Use(DeviceMemory owned, std::shared_ptr<State> of)
        : memory(std::move(owned)), state(std::move(of)) {}
    ~Use() {
      memory = DeviceMemory();
      const std::lock_guard<std::mutex> lock(state->mutex);
      state->is_used = false;
    }
    DeviceMemory memory;
    const std::shared_ptr<State> state;
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// The copy fails that has the only lane, which other threads wait for: they
// have its memory one after the other.
TEST(HostAccessErrorTest, ThreadsThatWaitHaveTheMemoryOfALaneThatIsDropped) {
  constexpr int kWaiting = 3;
  auto cpu = OpenDevice("cpu-async?max_delay=0");
  ASSERT_OK(cpu);
  const auto scarce = std::make_shared<ScarceDevice>(*std::move(cpu));
  Gate gate;
  std::atomic<int> copies{0};
  const auto device = testing::GuardTensors(scarce, [&] {
    if (++copies > 1) return Status();
    const Status passed = gate.Pass();
    return passed.ok() ? Internal("the first copy failed") : passed;
  });
  auto tensor = device->Allocate(8, "a tensor");
  ASSERT_OK(tensor);
  const auto access = OpenNow(device.get());
  const auto fetch = [&] {
    uint32_t host = 5;
    const HostCopy copy = {&host, tensor->data(), sizeof(host)};
    return access->Fetch({&copy, 1}, Soon());
  };
  std::thread first([&] {
    ExpectError(fetch(), StatusCode::kInternal, {"the first copy failed"});
  });
  EXPECT_TRUE(gate.AwaitArrival());
  std::vector<std::thread> waiting;
  for (int t = 0; t < kWaiting; ++t) {
    waiting.emplace_back([&] { EXPECT_OK(fetch()); });
  }
  EXPECT_TRUE(scarce->AwaitRefused(kWaiting));
  gate.Open();
  first.join();
  for (std::thread& thread : waiting) thread.join();
}

// Nobody has memory that could become free.
TEST(HostAccessErrorTest, AThreadThatIsAloneDoesNotWaitForMemory) {
  auto cpu = OpenDevice("cpu-async?max_delay=0");
  ASSERT_OK(cpu);
  const auto scarce = std::make_shared<ScarceDevice>(*std::move(cpu));
  const auto device = testing::GuardTensors(scarce);
  const auto used = device->AllocateHost(8, "memory of the host's");
  ASSERT_OK(used);
  auto tensor = device->Allocate(8, "a tensor");
  ASSERT_OK(tensor);
  const auto access = OpenNow(device.get());
  uint32_t host = 5;
  const HostCopy copy = {&host, tensor->data(), sizeof(host)};
  const Deadline deadline = Soon();
  ExpectError(access->Fetch({&copy, 1}, deadline),
              StatusCode::kResourceExhausted, {"no room for staging memory"});
  EXPECT_FALSE(deadline.Expired());
}

}  // namespace
}  // namespace shard::host_access_test
