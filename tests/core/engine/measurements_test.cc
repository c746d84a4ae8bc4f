// SPDX-License-Identifier: Apache-2.0
//
// Events of work that a device does, which marks its moments: these are set by
// the test. comm_queue_test has work of the host's threads.

#include "core/engine/transfer/measurements.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/device/forwarding_stream.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/observe/observing.h"
#include "tests/core/observe/trace_reader.h"

namespace shard::measurements_test {
namespace {

class SetMoment final : public Moment {
 public:
  std::optional<int64_t> time() const override { return when; }
  bool is_dropped() const override { return dropped; }

  std::optional<int64_t> when;
  bool dropped = false;
};

// A stream whose moments are set by the test.
class MarkedStream final : public ForwardingStream {
 public:
  explicit MarkedStream(std::shared_ptr<Stream> stream)
      : ForwardingStream(std::move(stream)) {}
  std::shared_ptr<const Moment> Mark(const Moment*) override {
    return moments.emplace_back(std::make_shared<SetMoment>());
  }
  void Come(size_t moment, int64_t when) { moments[moment]->when = when; }

  std::vector<std::shared_ptr<SetMoment>> moments;
};

constexpr int64_t kSecond = 1'000'000'000;

class MeasurementsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    comm_ = *OpenCommunicator("local:", CommOptions());
    const auto device = *OpenDevice("cpu");
    stream_.emplace(*device->CreateStream(StreamKind::kCompute));
    measurements_ = std::make_shared<Measurements>(comm_->observer());
  }

  // Measures work that cannot be enqueued, or can.
  void Measure(EventId event, bool is_transfer = true,
               const Status& status = Status()) {
    const Status measured =
        Measurements::Measure(measurements_, {event, {.bytes = 8}, is_transfer},
                              &*stream_, [&](Stream*) { return status; });
    EXPECT_EQ(measured.code(), status.code());
  }
  EventCounter Counted(EventId event) const {
    return comm_->observer()->counters().Get(event);
  }

  std::shared_ptr<Communicator> comm_;
  std::optional<MarkedStream> stream_;
  std::shared_ptr<Measurements> measurements_;
};

TEST_F(MeasurementsTest, AreRecordedOnceTheDeviceHasCome) {
  Measure(EventId::kGather);
  measurements_->Record();
  EXPECT_EQ(Counted(EventId::kGather).calls, 0u);
  stream_->Come(0, 5 * kSecond);
  measurements_->Record();
  EXPECT_EQ(Counted(EventId::kGather).calls, 0u);
  stream_->Come(1, 7 * kSecond);
  measurements_->Record();
  measurements_->Record();
  EXPECT_EQ(Counted(EventId::kGather).calls, 1u);
  EXPECT_EQ(Counted(EventId::kGather).bytes, 8u);
  EXPECT_EQ(Counted(EventId::kGather).errors, 0u);
  EXPECT_EQ(measurements_->TakeSeconds(), 2);
  EXPECT_EQ(measurements_->TakeSeconds(), 0);
}

TEST_F(MeasurementsTest, ComeInTheOrderOfTheWork) {
  Measure(EventId::kGather);
  Measure(EventId::kEagerUpdate, false);
  stream_->Come(2, kSecond);
  stream_->Come(3, 2 * kSecond);
  measurements_->Record();
  EXPECT_EQ(Counted(EventId::kEagerUpdate).calls, 0u);
  stream_->Come(0, kSecond);
  stream_->Come(1, kSecond);
  measurements_->Record();
  EXPECT_EQ(Counted(EventId::kGather).calls, 1u);
  EXPECT_EQ(Counted(EventId::kEagerUpdate).calls, 1u);
  // Only transfers count.
  EXPECT_EQ(measurements_->TakeSeconds(), 0);
}

// A clock that is not exact makes no event of a stream overlap the one before.
TEST_F(MeasurementsTest, OfAStreamDoNotOverlap) {
  const testing::TempFolder folder;
  const std::string path = folder / "trace.json";
  auto observer = testing::OpenObserver({.trace = path});
  measurements_ = std::make_shared<Measurements>(observer.get());
  Measure(EventId::kGather);
  Measure(EventId::kReduce);
  const int64_t times[] = {1, 3, 2, 5};
  for (size_t i = 0; i < 4; ++i) stream_->Come(i, times[i] * kSecond);
  measurements_->Record();
  EXPECT_EQ(measurements_->TakeSeconds(), 5);
  measurements_.reset();
  observer.reset();
  std::map<std::string, nlohmann::json> spans;
  for (const nlohmann::json& event : testing::ReadTrace(path)) {
    spans[event.at("name")] = event;
  }
  const nlohmann::json gather = spans.at("gather");
  const nlohmann::json reduce = spans.at("reduce");
  EXPECT_EQ(gather.at("tid"), reduce.at("tid"));
  EXPECT_GT(gather.at("tid").get<int64_t>(), ::gettid());
  const nlohmann::json thread = spans.at("thread_name");
  EXPECT_EQ(thread.at("tid"), gather.at("tid"));
  EXPECT_EQ(thread.at("args").at("name"), stream_->name());
  // Microseconds.
  EXPECT_EQ(gather.at("ts"), 1e6);
  EXPECT_EQ(gather.at("dur"), 2e6);
  EXPECT_EQ(reduce.at("ts"), 3e6);
  EXPECT_EQ(reduce.at("dur"), 3e6);
}

// A clock that is not exact makes no time negative.
TEST_F(MeasurementsTest, TakeNoNegativeTime) {
  Measure(EventId::kGather);
  stream_->Come(0, 3 * kSecond);
  stream_->Come(1, 2 * kSecond);
  measurements_->Record();
  EXPECT_EQ(Counted(EventId::kGather).calls, 1u);
  EXPECT_EQ(measurements_->TakeSeconds(), 0);
}

TEST_F(MeasurementsTest, WorkThatAStreamDropsIsAnErrorIfItHasBegun) {
  Measure(EventId::kGather);
  Measure(EventId::kReduce);
  Measure(EventId::kPublish, true, Internal("not enqueued"));
  stream_->Come(0, kSecond);
  for (const size_t moment : {1, 2, 3})
    stream_->moments[moment]->dropped = true;
  stream_->Come(4, kSecond);
  measurements_->Record();
  EXPECT_EQ(Counted(EventId::kGather).errors, 1u);
  EXPECT_EQ(Counted(EventId::kReduce).calls, 0u);
  EXPECT_EQ(Counted(EventId::kPublish).errors, 1u);
  EXPECT_EQ(measurements_->TakeSeconds(), 0);
}

// The device has come to the end without the work: the stream was failed.
TEST_F(MeasurementsTest, AnEndThatIsDroppedIsAnError) {
  Measure(EventId::kGather);
  stream_->Come(0, kSecond);
  stream_->Come(1, 2 * kSecond);
  stream_->moments[1]->dropped = true;
  measurements_->Record();
  EXPECT_EQ(Counted(EventId::kGather).errors, 1u);
  EXPECT_EQ(measurements_->TakeSeconds(), 0);
}

TEST_F(MeasurementsTest, WhatHasBegunIsCancelledAtTheEnd) {
  Measure(EventId::kGather);
  Measure(EventId::kReduce);
  stream_->Come(0, kSecond);
  measurements_.reset();
  EXPECT_EQ(Counted(EventId::kGather).errors, 1u);
  EXPECT_EQ(Counted(EventId::kReduce).calls, 0u);
}

}  // namespace
}  // namespace shard::measurements_test
