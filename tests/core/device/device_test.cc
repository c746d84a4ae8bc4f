// SPDX-License-Identifier: Apache-2.0

#include "core/device/device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tests/core/base/expect_status.h"
#include "tests/core/device/gate.h"
#include "tests/core/device/test_device.h"

namespace shard::device_test {
namespace {

TEST(OpenDeviceTest, Names) {
  for (const auto& [spec, name] :
       {std::pair("", "cpu"), std::pair("cpu", "cpu"),
        std::pair("cpu-async", "cpu-async?max_delay=2e-04&seed=0"),
        std::pair("cpu-async?seed=-7&max_delay=0",
                  "cpu-async?max_delay=0&seed=-7")}) {
    const auto device = OpenDevice(spec);
    ASSERT_OK(device);
    EXPECT_EQ((*device)->name(), name);
    // The name is a spec of the same device.
    const auto again = OpenDevice((*device)->name());
    ASSERT_OK(again);
    EXPECT_EQ((*again)->name(), name);
  }
}

TEST(OpenDeviceTest, RefusesWhatItDoesNotKnow) {
  ExpectInvalid(OpenDevice("gpu"),
                {"'gpu'", "known: cpu, cpu-async", "cuda:N"});
  ExpectInvalid(OpenDevice("CPU"), {"'CPU'", "known: cpu"});
  ExpectInvalid(OpenDevice("cpu:0"), {"'cpu:0'"});
  ExpectInvalid(OpenDevice("cpu-async:0"), {"'cpu-async:0'"});
  ExpectInvalid(OpenDevice("cpu?seed=1"), {"'seed'", "none"});
  ExpectInvalid(OpenDevice("cpu-async?delay=1"),
                {"'delay'", "max_delay, seed"});
  ExpectInvalid(OpenDevice("cpu-async?max_delay=2"), {"max_delay=2", "0 to 1"});
  ExpectInvalid(OpenDevice("cpu-async?max_delay=-1"), {"max_delay=-1"});
  ExpectInvalid(OpenDevice("cpu-async?seed=x"), {"seed='x'"});
  // OpenTestDevice alone knows it.
  ExpectInvalid(OpenDevice("cpu-async?host=async"),
                {"'host'", "max_delay, seed"});
}

class DeviceTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto device = testing::OpenTestDevice(GetParam());
    ASSERT_OK(device);
    device_ = *std::move(device);
  }

  std::shared_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(
    Devices, DeviceTest,
    ::testing::ValuesIn(testing::DeviceSpecs({"cpu", "cpu-async"})));

TEST_P(DeviceTest, MemoryIsZeroAlignedAndMoves) {
  for (const bool host : {false, true}) {
    auto made = host ? device_->AllocateHost(5000, "results")
                     : device_->Allocate(5000, "states");
    ASSERT_OK(made);
    DeviceMemory one = *std::move(made);
    ASSERT_EQ(one.size(), 5000u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(one.data()) % 4096, 0u);
    for (size_t i = 0; i < one.size(); ++i) {
      ASSERT_EQ(one.data()[i], std::byte{0});
    }
    std::byte* const data = one.data();
    DeviceMemory two = std::move(one);
    EXPECT_EQ(one.data(), nullptr);
    EXPECT_EQ(one.size(), 0u);
    EXPECT_EQ(two.data(), data);
    one = std::move(two);
    EXPECT_EQ(two.data(), nullptr);
    EXPECT_EQ(one.data(), data);
    // The memory is still mapped.
    one.data()[4999] = std::byte{1};
  }
}

TEST_P(DeviceTest, MemoryOutlivesTheDevice) {
  auto memory = device_->Allocate(4096, "states");
  ASSERT_OK(memory);
  device_.reset();
  memory->data()[4095] = std::byte{1};
}

TEST_P(DeviceTest, NothingIsNoMemory) {
  const auto memory = device_->Allocate(0, "an empty range");
  ASSERT_OK(memory);
  EXPECT_EQ(memory->data(), nullptr);
  EXPECT_EQ(memory->size(), 0u);
}

TEST_P(DeviceTest, TooMuchSaysWhatFor) {
  ExpectError(device_->Allocate(size_t{1} << 60, "gradients"),
              StatusCode::kResourceExhausted, {"gradients", "1"});
}

TEST_P(DeviceTest, TheHostsThreadIsItsStream) {
  const auto host = device_->WrapStream(nullptr);
  ASSERT_OK(host);
  EXPECT_EQ((*host)->name(), "shard-host");
  // The thread is done with whatever it has written.
  EXPECT_TRUE((*host)->Record().IsDone());
  const auto other = device_->CreateStream(StreamKind::kCommunication);
  ASSERT_OK(other);
  int value = 0;
  (*other)->Call("write", [&value] {
    value = 7;
    return Status();
  });
  (*host)->Wait((*other)->Record(), Deadline::After(60));
  EXPECT_OK((*host)->status());
  // The thread itself has waited.
  EXPECT_EQ(value, 7);
}

TEST_P(DeviceTest, StreamsThatTheHostMadeAreUnknown) {
  int stream = 0;
  ExpectInvalid(device_->WrapStream(&stream), {device_->name(), "null"});
}

TEST(AsyncHostTest, TheHostsStreamHasAThread) {
  const auto device = testing::OpenTestDevice("cpu-async?host=async");
  ASSERT_OK(device);
  const auto host = (*device)->WrapStream(nullptr);
  const auto other = (*device)->CreateStream(StreamKind::kCommunication);
  ASSERT_OK(host);
  ASSERT_OK(other);
  Gate gate;
  int value = 0;
  (*other)->Call("write", [&] {
    const Status status = gate.Pass();
    value = 7;
    return status;
  });
  int seen = 0;
  (*host)->Wait((*other)->Record(), Deadline::After(60));
  (*host)->Call("read", [&] {
    seen = value;
    return Status();
  });
  const Event read = (*host)->Record();
  EXPECT_FALSE(read.IsDone());
  gate.Open();
  EXPECT_OK(read.Synchronize(Deadline::After(60)));
  EXPECT_EQ(seen, 7);
}

TEST(AsyncHostTest, TheHostsStreamsAreThoseThatItMade) {
  const auto opened = OpenDevice("cpu-async?max_delay=0");
  ASSERT_OK(opened);
  testing::AsyncHostDevice device(*opened);
  testing::AsyncHostDevice other(*opened);
  const auto made = device.MakeHostStream();
  ASSERT_OK(made);
  const auto wrapped = device.WrapStream(*made);
  ASSERT_OK(wrapped);
  EXPECT_EQ(wrapped->get(), *made);
  ExpectInvalid(other.WrapStream(*made), {other.name(), "did not make"});
  // There is one usual stream, so what was enqueued on it stays in order.
  const auto usual = device.WrapStream(nullptr);
  ASSERT_OK(usual);
  const auto again = device.WrapStream(nullptr);
  ASSERT_OK(again);
  EXPECT_EQ(*usual, *again);
  EXPECT_NE(*usual, *wrapped);
}

TEST_P(DeviceTest, StreamsOutliveTheDeviceAndHaveNames) {
  auto compute = device_->CreateStream(StreamKind::kCompute);
  auto communication = device_->CreateStream(StreamKind::kCommunication);
  ASSERT_OK(compute);
  ASSERT_OK(communication);
  device_.reset();
  EXPECT_EQ((*compute)->name(), "shard-compute");
  EXPECT_EQ((*communication)->name(), "shard-comm");
  int ran = 0;
  (*communication)->Call("one", [&ran] {
    ++ran;
    return Status();
  });
  (*compute)->Wait((*communication)->Record(), Deadline::After(60));
  (*compute)->Call("two", [&ran] {
    ++ran;
    return Status();
  });
  EXPECT_OK((*compute)->Synchronize(Deadline::After(60)));
  EXPECT_EQ(ran, 2);
}

}  // namespace
}  // namespace shard::device_test
