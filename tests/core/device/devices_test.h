// SPDX-License-Identifier: Apache-2.0
//
// A fixture with the two streams of each device that hosts open.

#ifndef SHARD_TESTS_CORE_DEVICE_DEVICES_TEST_H_
#define SHARD_TESTS_CORE_DEVICE_DEVICES_TEST_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/gate.h"
#include "tests/core/device/kernel_inputs.h"
#include "tests/core/device/test_device.h"

namespace shard::testing {

class DevicesTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto device = OpenTestDevice(GetParam());
    ASSERT_OK(device);
    device_ = *std::move(device);
    for (const StreamKind kind :
         {StreamKind::kCompute, StreamKind::kCommunication}) {
      auto stream = device_->CreateStream(kind);
      ASSERT_OK(stream);
      streams_.push_back(*std::move(stream));
    }
  }

  bool RunsInline(const Stream& stream) const {
    return device_->name() == "cpu" && stream.name() == "shard-compute";
  }

  // Enqueues on `stream` with lists that are overwritten before anything runs.
  void Run(Stream* stream, Lists lists,
           const std::function<void(Lists*)>& enqueue) const {
    Gate gate;
    if (!RunsInline(*stream)) stream->Call("gate", gate.Passing());
    enqueue(&lists);
    lists.Spoil();
    gate.Open();
    ASSERT_OK(stream->Synchronize(Deadline::After(60)));
  }

  std::shared_ptr<Device> device_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_DEVICE_DEVICES_TEST_H_
