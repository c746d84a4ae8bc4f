// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/comm_queue.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/comm/host_waits.h"
#include "core/device/device.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/test_device.h"

namespace shard::comm_queue_test {
namespace {

class CommQueueTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    device_ = *testing::OpenTestDevice(GetParam());
    host_.emplace(*device_->WrapStream(nullptr));
    compute_ = *device_->CreateStream(StreamKind::kCompute);
    comm_ = *OpenCommunicator("local:", CommOptions());
    queue_ = std::make_unique<CommQueue>(
        comm_.get(), &*host_, compute_.get(),
        *device_->CreateStream(StreamKind::kCommunication),
        WorkOfRanks::kCounted, 10);
  }

  static Deadline Soon() { return Deadline::After(10); }

  // Runs work of `bytes` bytes.
  Event Run(std::string_view what, uint64_t bytes,
            std::function<Status()> work) {
    return RunOn(queue_.get(), what, bytes, std::move(work));
  }
  static Event RunOn(CommQueue* queue, std::string_view what, uint64_t bytes,
                     std::function<Status()> work) {
    return queue->Run(bytes, [&](Stream* stream) {
      stream->Call(what, std::move(work));
      return Status();
    });
  }

  // Waits as the host does.
  Status Wait(const Event& event) {
    return queue_->Wait(event, host_->get(), Soon());
  }

  std::shared_ptr<Communicator> comm_;
  std::shared_ptr<Device> device_;
  std::optional<HostStream> host_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<CommQueue> queue_;
};

TEST_P(CommQueueTest, RunsInOrder) {
  std::vector<int> order;
  Event second;
  for (int i = 0; i < 5; ++i) {
    const Event event = Run("work", 1, [&order, i] {
      order.push_back(i);
      return Status();
    });
    if (i == 1) second = event;
  }
  ASSERT_OK(Wait(second));
  ASSERT_OK(queue_->Drain(Soon()));
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST_P(CommQueueTest, RunsAfterEarlierComputation) {
  std::vector<unsigned char> data(4096, 7);
  for (int round = 0; round < 20; ++round) {
    data.assign(data.size(), 7);
    int sum = -1;
    compute_->FillZeros(data.data(), data.size());
    const Event event = Run("work", 1, [&] {
      sum = 0;
      for (const unsigned char c : data) sum += c;
      return Status();
    });
    ASSERT_OK(Wait(event));
    EXPECT_EQ(sum, 0);
  }
}

TEST_P(CommQueueTest, CountsOverlapOfOperationsDoneBeforeTheWait) {
  std::promise<void> gate;
  const std::shared_future<void> open = gate.get_future().share();
  const Event first = Run("first", 100, [] { return Status(); });
  ASSERT_OK(first.Synchronize(Soon()));
  constexpr double kSeconds = 0.002;
  const Event second = queue_->Run(20, [&](Stream* queue) {
    return queue_->Transfer(EventId::kReduce, {}, queue, [&](Stream* stream) {
      stream->Call("second", [&] {
        const Deadline until = Deadline::After(kSeconds);
        open.wait();
        while (!until.Expired()) std::this_thread::yield();
        return Status();
      });
      return Status();
    });
  });
  // The host waits while the second operation is in progress.
  std::future<Status> waited = std::async(std::launch::async, [&] {
    gate.set_value();
    return Status();
  });
  ASSERT_OK(Wait(first));
  ASSERT_OK(waited.get());
  ASSERT_OK(queue_->Drain(Soon()));
  const CommCounters counters = queue_->TakeCounters();
  EXPECT_EQ(counters.bytes, 120u);
  // The first operation certainly overlapped; the second only if it was done
  // before the host waited for it.
  EXPECT_GE(counters.bytes_overlapped, 100u);
  EXPECT_LE(counters.bytes_overlapped, 120u);
  EXPECT_GE(counters.seconds, kSeconds);
  EXPECT_EQ(comm_->observer()->counters().Get(EventId::kReduce).calls, 1u);

  const CommCounters fresh = queue_->TakeCounters();
  EXPECT_EQ(fresh.bytes, 0u);
  EXPECT_EQ(fresh.bytes_overlapped, 0u);
  EXPECT_EQ(fresh.seconds, 0);
  EXPECT_EQ(fresh.seconds_exposed, 0);
}

TEST_P(CommQueueTest, CountsTimeThatTheHostWaitsAsExposed) {
  std::promise<void> entered;
  std::promise<void> gate;
  const Event event = Run("work", 100, [&] {
    entered.set_value();
    gate.get_future().wait();
    return Status();
  });
  entered.get_future().wait();
  // The operation cannot finish before Wait has looked at it.
  ExpectError(queue_->Wait(event, host_->get(), Deadline::After(0.01)),
              StatusCode::kDeadlineExceeded, {"work"});
  gate.set_value();
  ASSERT_OK(event.Synchronize(Soon()));
  ASSERT_OK(queue_->Drain(Soon()));
  const CommCounters counters = queue_->TakeCounters();
  EXPECT_EQ(counters.bytes, 100u);
  EXPECT_GE(counters.seconds_exposed, 0.01);
}

TEST_P(CommQueueTest, AWaitIsPublishedWhereItBlocks) {
  const HostWait& published = comm_->host_waits()->shared();
  const HostCall::Scope call(&comm_->host_waits()->call(), "acquire");
  std::promise<void> gate;
  const Event event = Run("work", 1, [&gate] {
    gate.get_future().wait();
    return Status();
  });
  for (Stream* const stream : {host_->get(), compute_.get()}) {
    const uint64_t before = published.number;
    if (stream->IsInline()) {
      ExpectError(queue_->Wait(event, stream, Deadline::After(0.01)),
                  StatusCode::kDeadlineExceeded, {"work"});
      EXPECT_EQ(published.number, before + 2) << stream->name();
    } else {
      EXPECT_OK(queue_->Wait(event, stream, Soon()));
      EXPECT_EQ(published.number, before) << stream->name();
    }
  }
  gate.set_value();
  ASSERT_OK(event.Synchronize(Soon()));
}

TEST_P(CommQueueTest, TimeOfEarlierWorkDoesNotCount) {
  std::promise<void> gate;
  CommQueue hasty(comm_.get(), &*host_, compute_.get(),
                  *device_->CreateStream(StreamKind::kCommunication),
                  WorkOfRanks::kCounted, 0);
  RunOn(&hasty, "earlier", 1, [&gate] {
    gate.get_future().wait();
    return Status();
  });
  compute_->Call("compute", [] { return Status(); });
  bool ran = false;
  RunOn(&hasty, "later", 1, [&ran] {
    ran = true;
    return Status();
  });
  // The computation is done before the queue comes to it.
  const Status computed = compute_->Synchronize(Soon());
  gate.set_value();
  ASSERT_OK(computed);
  ASSERT_OK(hasty.Drain(Soon()));
  EXPECT_TRUE(ran);
}

TEST_P(CommQueueTest, AnErrorStays) {
  ASSERT_OK(Wait(Run("fine", 1, [] { return Status(); })));
  const Event failed = Run("fails", 1, [] { return Internal("broken"); });
  bool ran = false;
  const Event after = Run("after", 1, [&ran] {
    ran = true;
    return Status();
  });
  ExpectError(Wait(failed), StatusCode::kInternal, {"broken"});
  ExpectError(Wait(after), StatusCode::kInternal, {"broken"});
  ExpectError(queue_->Drain(Soon()), StatusCode::kInternal, {"broken"});
  EXPECT_FALSE(ran);
}

TEST_P(CommQueueTest, ATransferThatFailsIsAnErrorOfItsEvent) {
  const Event failed = queue_->Run(20, [&](Stream* queue) {
    return queue_->Transfer(EventId::kGather, {}, queue, [](Stream* stream) {
      stream->Call("fails", [] { return Internal("broken"); });
      return Status();
    });
  });
  ExpectError(Wait(failed), StatusCode::kInternal, {"broken"});
  const EventCounter gathers =
      comm_->observer()->counters().Get(EventId::kGather);
  EXPECT_EQ(gathers.calls, 1u);
  EXPECT_EQ(gathers.errors, 1u);
}

TEST_P(CommQueueTest, AnErrorBeforeAnythingIsEnqueuedFailsTheStream) {
  const Event failed = queue_->Run(
      20, [](Stream*) { return ResourceExhausted("no room for sums"); });
  ExpectError(Wait(failed), StatusCode::kResourceExhausted, {"no room"});
  ExpectError(queue_->Drain(Soon()), StatusCode::kResourceExhausted, {});
}

// The order of the queue's work and that of other streams, which may all have
// threads.
class CommQueueOrderTest : public CommQueueTest {};

TEST_P(CommQueueOrderTest, ComputationMayTakeUntilTheDeadlineOfTheStep) {
  CommQueue hasty(comm_.get(), &*host_, compute_.get(),
                  *device_->CreateStream(StreamKind::kCommunication),
                  WorkOfRanks::kCounted, 0.001);
  hasty.AllowUntil(Soon());
  const Deadline late = Deadline::After(0.05);
  compute_->Call("compute", [&late] {
    while (!late.Expired()) std::this_thread::yield();
    return Status();
  });
  bool ran = false;
  RunOn(&hasty, "work", 1, [&ran] {
    ran = true;
    return Status();
  });
  ASSERT_OK(hasty.Drain(Soon()));
  EXPECT_TRUE(ran);
}

TEST_P(CommQueueOrderTest, WorkComesAfterWhatTheHostAndComputeWereGiven) {
  for (int round = 0; round < 20; ++round) {
    int written = 0;
    for (Stream* const stream : {host_->get(), compute_.get()}) {
      stream->Call("write", [&written, round] {
        written = round;
        return Status();
      });
      int seen = -1;
      Run("work", 1, [&] {
        seen = std::exchange(written, -1);
        return Status();
      });
      ASSERT_OK(queue_->Drain(Soon()));
      EXPECT_EQ(seen, round);
    }
  }
}

TEST_P(CommQueueOrderTest, AStreamGoesOnAfterTheWorkThatItWaitsFor) {
  for (int round = 0; round < 20; ++round) {
    for (Stream* const stream : {host_->get(), compute_.get()}) {
      int written = -1;
      const Event event = Run("work", 1, [&written, round] {
        written = round;
        return Status();
      });
      ASSERT_OK(queue_->Wait(event, stream, Soon()));
      int seen = -1;
      stream->Call("read", [&] {
        seen = written;
        return Status();
      });
      ASSERT_OK(stream->Synchronize(Soon()));
      EXPECT_EQ(seen, round);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Devices, CommQueueOrderTest,
    ::testing::Values("cpu", "cpu-async?max_delay=0.0002",
                      "cpu-async?max_delay=0.0002&host=async"));

INSTANTIATE_TEST_SUITE_P(Devices, CommQueueTest,
                         ::testing::Values("cpu", "cpu-async?max_delay=0.0002"),
                         [](const auto& info) {
                           return info.index == 0 ? "cpu" : "async";
                         });

}  // namespace
}  // namespace shard::comm_queue_test
