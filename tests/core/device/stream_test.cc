// SPDX-License-Identifier: Apache-2.0
//
// The rules that every stream keeps, whichever thread does its work.

#include "core/device/stream.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/gate.h"
#include "tests/core/device/test_device.h"

namespace shard::stream_test {
namespace {

Deadline Soon() { return Deadline::After(60); }

class StreamTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto device = testing::OpenTestDevice(GetParam());
    ASSERT_OK(device);
    device_ = *std::move(device);
    compute_ = Create(StreamKind::kCompute);
    communication_ = Create(StreamKind::kCommunication);
    auto host = device_->WrapStream(nullptr);
    ASSERT_OK(host);
    host_ = *std::move(host);
  }

  std::unique_ptr<Stream> Create(StreamKind kind) {
    auto stream = device_->CreateStream(kind);
    EXPECT_OK(stream);
    return *std::move(stream);
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> communication_;
  std::shared_ptr<Stream> host_;
};

INSTANTIATE_TEST_SUITE_P(Devices, StreamTest,
                         ::testing::ValuesIn(testing::DeviceSpecs(
                             {"cpu", "cpu-async?max_delay=0.0005&seed=3",
                              "cpu-async?max_delay=0",
                              "cpu-async?max_delay=0.0005&host=async"})));

TEST_P(StreamTest, RunsInOrder) {
  for (Stream* const stream :
       {compute_.get(), communication_.get(), host_.get()}) {
    std::vector<int> order;
    for (int i = 0; i < 50; ++i) {
      stream->Call("append", [&order, i] {
        order.push_back(i);
        return Status();
      });
    }
    ASSERT_OK(stream->Synchronize(Soon()));
    ASSERT_EQ(order.size(), 50u);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
}

TEST_P(StreamTest, FillsAndCopies) {
  // The host's memory that streams reach.
  auto memory = device_->AllocateHost(20, "text");
  ASSERT_OK(memory);
  char* const to_data = reinterpret_cast<char*>(memory->data());
  char* const from_data = to_data + 10;
  std::memcpy(to_data, "xxxxxxxxxx0123456789", 20);
  const std::string_view to(to_data, 10);
  compute_->FillZeros(to_data + 2, 3);
  compute_->Copy(to_data + 5, from_data, 4);
  compute_->Copy(nullptr, nullptr, 0);
  compute_->FillZeros(nullptr, 0);
  ASSERT_OK(compute_->Synchronize(Soon()));
  EXPECT_EQ(to, std::string_view("xx\0\0\0"
                                 "0123x",
                                 10));
  compute_->Fill({{to_data + 4, from_data + 7, 2},
                  {to_data + 8, nullptr, 1},
                  {nullptr, nullptr, 0},
                  {to_data, from_data, 1}});
  compute_->Fill({});
  ASSERT_OK(compute_->Synchronize(Soon()));
  EXPECT_EQ(to, std::string_view("0x\0\0"
                                 "7812\0x",
                                 10));
}

// Each stream doubles or adds in turn, so any other order gives another number.
TEST_P(StreamTest, WaitsOrderStreams) {
  int value = 1;
  for (int i = 0; i < 20; ++i) {
    communication_->Wait(compute_->Record(), Soon());
    communication_->Call("double", [&value] {
      value = (2 * value) % 10007;
      return Status();
    });
    compute_->Wait(communication_->Record(), Soon());
    compute_->Call("add", [&value] {
      value += 1;
      return Status();
    });
  }
  ASSERT_OK(compute_->Synchronize(Soon()));
  int expected = 1;
  for (int i = 0; i < 20; ++i) expected = (2 * expected) % 10007 + 1;
  EXPECT_EQ(value, expected);
}

TEST_P(StreamTest, AnEventIsOfWhatWasEnqueuedBeforeIt) {
  Gate first;
  Gate second;
  communication_->Call("first", first.Passing());
  const Event event = communication_->Record();
  communication_->Call("second", second.Passing());
  const Event later = communication_->Record();
  EXPECT_FALSE(event.IsDone());
  first.Open();
  EXPECT_OK(event.Synchronize(Soon()));
  EXPECT_TRUE(event.IsDone());
  EXPECT_FALSE(later.IsDone());
  second.Open();
  EXPECT_OK(later.Synchronize(Soon()));
  EXPECT_TRUE(later.IsDone());
}

TEST_P(StreamTest, AnErrorStaysAndDropsWhatComesAfter) {
  for (Stream* const stream :
       {compute_.get(), communication_.get(), host_.get()}) {
    int ran = 0;
    const auto count = [&ran] {
      ++ran;
      return Status();
    };
    stream->Call("well", count);
    EXPECT_OK(stream->status());
    const Event before = stream->Record();
    stream->Call("badly", [] { return RankLost(3, "rank 3 died"); });
    const Event after = stream->Record();
    stream->Call("dropped", count);
    stream->Call("badly again", [] { return Internal("another"); });
    char byte = 'x';
    stream->FillZeros(&byte, 1);
    const Event last = stream->Record();

    ExpectError(stream->Synchronize(Soon()), StatusCode::kRankLost,
                {"rank 3 died"});
    EXPECT_EQ(stream->Synchronize(Soon()).rank(), 3);
    ExpectError(stream->status(), StatusCode::kRankLost, {"rank 3 died"});
    EXPECT_EQ(ran, 1);
    EXPECT_EQ(byte, 'x');
    EXPECT_TRUE(last.IsDone());
    EXPECT_OK(before.Synchronize(Soon()));
    ExpectError(after.Synchronize(Soon()), StatusCode::kRankLost, {});
    ExpectError(last.Synchronize(Soon()), StatusCode::kRankLost, {});
    ExpectError(stream->Record().Synchronize(Soon()), StatusCode::kRankLost,
                {});
  }
}

TEST_P(StreamTest, ItsErrorIsReportedOnceBeforeAnyEventHasIt) {
  // By kind of failure: a function that fails, and a wait for a failed stream.
  const auto failed = Create(StreamKind::kCompute);
  failed->Call("badly", [] { return RankLost(2, "rank 2 died"); });
  const Event error = failed->Record();
  for (Stream* const stream : {compute_.get(), communication_.get()}) {
    std::vector<Status> reported;
    stream->OnError([&](const Status& status) { reported.push_back(status); });
    stream->Call("well", [] { return Status(); });
    ASSERT_OK(stream->Synchronize(Soon()));
    EXPECT_TRUE(reported.empty());
    if (stream == compute_.get()) {
      stream->Call("badly", [] { return RankLost(2, "rank 2 died"); });
    } else {
      stream->Wait(error, Soon());
    }
    stream->Call("dropped", [] { return Internal("another"); });
    ExpectError(stream->Synchronize(Soon()), StatusCode::kRankLost, {});
    ASSERT_EQ(reported.size(), 1u);
    ExpectError(reported[0], StatusCode::kRankLost, {"rank 2 died"});
  }
}

TEST_P(StreamTest, AnEndWithoutWorkLeftReportsNothing) {
  bool reported = false;
  for (const StreamKind kind :
       {StreamKind::kCompute, StreamKind::kCommunication}) {
    const auto stream = Create(kind);
    stream->OnError([&](const Status&) { reported = true; });
    stream->Call("well", [] { return Status(); });
    ASSERT_OK(stream->Synchronize(Soon()));
  }
  EXPECT_FALSE(reported);
}

TEST_P(StreamTest, WhoWaitsForAFailedStreamFails) {
  const auto other = Create(StreamKind::kCompute);
  int ran = 0;
  const auto count = [&ran] {
    ++ran;
    return Status();
  };
  const Event fine = communication_->Record();
  communication_->Call("badly", [] { return RankLost(1, "rank 1 died"); });
  const Event failed = communication_->Record();
  compute_->Wait(fine, Soon());
  compute_->Call("well", count);
  compute_->Wait(failed, Soon());
  compute_->Call("dropped", count);
  // The error goes from stream to stream, and stays after it was reported.
  EXPECT_EQ(compute_->Synchronize(Soon()).code(), StatusCode::kRankLost);
  other->Wait(compute_->Record(), Soon());
  other->Call("dropped", count);
  ExpectError(other->Synchronize(Soon()), StatusCode::kRankLost,
              {"rank 1 died"});
  EXPECT_EQ(ran, 1);
}

TEST_P(StreamTest, AnEventWithAnErrorDropsNoEarlierWork) {
  Gate gate;
  bool ran = false;
  communication_->Call("badly", [] { return RankLost(1, "rank 1 died"); });
  EXPECT_FALSE(communication_->Synchronize(Soon()).ok());
  const auto other = Create(StreamKind::kCommunication);
  other->Call("held up", gate.Passing());
  other->Call("well", [&ran] {
    ran = true;
    return Status();
  });
  ASSERT_TRUE(gate.AwaitArrival());
  other->Wait(communication_->Record(), Soon());
  gate.Open();
  ExpectError(other->Synchronize(Soon()), StatusCode::kRankLost,
              {"rank 1 died"});
  EXPECT_TRUE(ran);
}

TEST_P(StreamTest, ADeadlineSaysWhatTheStreamIsAt) {
  Gate gate;
  communication_->Call("all-gather of unit 3", gate.Passing());
  communication_->Call("not reached", [] { return Status(); });
  const Event event = communication_->Record();
  ASSERT_TRUE(gate.AwaitArrival());
  for (const Status& status :
       {communication_->Synchronize(Deadline::After(0.001)),
        event.Synchronize(Deadline::After(0.001))}) {
    ExpectError(
        status, StatusCode::kDeadlineExceeded,
        {"'shard-comm'", "'all-gather of unit 3'", "0.001 s", "the first of "});
  }
  gate.Open();
  // The work that was late is still done.
  EXPECT_OK(communication_->Synchronize(Soon()));
}

TEST_P(StreamTest, AWaitPastItsDeadlineFailsTheStream) {
  Gate gate;
  communication_->Call("reduce-scatter", gate.Passing());
  const Event event = communication_->Record();
  ASSERT_TRUE(gate.AwaitArrival());
  for (Stream* const stream : {compute_.get(), host_.get()}) {
    bool ran = false;
    stream->Wait(event, Deadline::After(0.001));
    stream->Call("dropped", [&ran] {
      ran = true;
      return Status();
    });
    ExpectError(stream->Synchronize(Soon()), StatusCode::kDeadlineExceeded,
                {"'shard-comm'", "'reduce-scatter'"});
    EXPECT_FALSE(ran);
  }
  gate.Open();
  EXPECT_OK(communication_->Synchronize(Soon()));
  // A wait for work that is done needs no time.
  const auto other = Create(StreamKind::kCompute);
  other->Wait(event, Deadline::After(0));
  EXPECT_OK(other->Synchronize(Soon()));
}

TEST_P(StreamTest, EventsOutliveTheirStreamAndAnyThreadWaits) {
  Gate gate;
  int value = 0;
  communication_->Call("set", [&] {
    const Status status = gate.Pass();
    value = 7;
    return status;
  });
  const Event event = communication_->Record();
  std::thread waiter([&] {
    EXPECT_OK(event.Synchronize(Soon()));
    EXPECT_EQ(value, 7);
  });
  ASSERT_TRUE(gate.AwaitArrival());
  gate.Open();
  waiter.join();
  communication_.reset();
  EXPECT_TRUE(event.IsDone());
  EXPECT_OK(event.Synchronize(Soon()));
}

}  // namespace
}  // namespace shard::stream_test
