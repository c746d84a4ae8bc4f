// SPDX-License-Identifier: Apache-2.0
//
// Streams that have a thread: the effects on the host, the end of the thread,
// and the pauses of cpu-async.

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/device/device.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/gate.h"

namespace shard::worker_test {
namespace {

Deadline Soon() { return Deadline::After(60); }

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

std::shared_ptr<Device> Open(const std::string& spec) {
  auto device = OpenDevice(spec);
  EXPECT_OK(device);
  return *std::move(device);
}

std::unique_ptr<Stream> Communication(const std::shared_ptr<Device>& device) {
  auto stream = device->CreateStream(StreamKind::kCommunication);
  EXPECT_OK(stream);
  return *std::move(stream);
}

TEST(WorkerTest, TheThreadHasANameAndBlocksSignals) {
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &before);
  const auto stream = Communication(Open("cpu"));
  sigset_t after;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &after);
  sigset_t mask;
  std::array<char, 16> name = {};
  pthread_t thread = ::pthread_self();
  stream->Call("look", [&] {
    thread = ::pthread_self();
    ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    ::pthread_getname_np(thread, name.data(), name.size());
    return Status();
  });
  ASSERT_OK(stream->Synchronize(Soon()));
  EXPECT_FALSE(::pthread_equal(thread, ::pthread_self()));
  EXPECT_EQ(std::string(name.data()), "shard-comm");
  for (int number = 1; number < 32; ++number) {
    if (number == SIGKILL || number == SIGSTOP) continue;
    EXPECT_EQ(::sigismember(&mask, number), 1) << number;
    // The host's own mask is unchanged.
    EXPECT_EQ(::sigismember(&after, number), ::sigismember(&before, number));
  }
}

TEST(WorkerTest, OnlyAsyncDevicesComputeElsewhere) {
  for (const char* const spec : {"cpu", "cpu-async"}) {
    auto stream = Open(spec)->CreateStream(StreamKind::kCompute);
    ASSERT_OK(stream);
    std::thread::id ran;
    (*stream)->Call("look", [&ran] {
      ran = std::this_thread::get_id();
      return Status();
    });
    ASSERT_OK((*stream)->Synchronize(Soon()));
    EXPECT_EQ(ran == std::this_thread::get_id(), std::string(spec) == "cpu");
  }
}

TEST(WorkerTest, ExceptionsFailTheStream) {
  const auto device = Open("cpu");
  const auto one = Communication(device);
  one->Call("allocate", []() -> Status { throw std::bad_alloc(); });
  ExpectError(one->Synchronize(Soon()), StatusCode::kResourceExhausted,
              {"'shard-comm'", "memory"});
  const auto two = Communication(device);
  two->Call("throw", []() -> Status { throw std::logic_error("no"); });
  ExpectError(two->Synchronize(Soon()), StatusCode::kInternal,
              {"'shard-comm'", "threw"});
}

TEST(WorkerTest, NoThreadIsAnError) {
  const auto device = Open("cpu");
  pthread_attr_t usual;
  ASSERT_EQ(::pthread_getattr_default_np(&usual), 0);
  pthread_attr_t huge;
  ASSERT_EQ(::pthread_attr_init(&huge), 0);
  // No machine has the addresses for such a stack.
  ASSERT_EQ(::pthread_attr_setstacksize(&huge, size_t{1} << 50), 0);
  ASSERT_EQ(::pthread_setattr_default_np(&huge), 0);
  const auto stream = device->CreateStream(StreamKind::kCommunication);
  ASSERT_EQ(::pthread_setattr_default_np(&usual), 0);
  ::pthread_attr_destroy(&huge);
  ::pthread_attr_destroy(&usual);
  ExpectError(stream, StatusCode::kResourceExhausted,
              {"'shard-comm'", "limit of threads"});
  // The device works as before.
  EXPECT_OK(Communication(device)->Synchronize(Soon()));
}

TEST(WorkerTest, RunningWorkIsFinishedWhenItsStreamIsDestroyed) {
  auto stream = Communication(Open("cpu"));
  Gate gate;
  bool finished = false;
  stream->Call("slow", [&] {
    const Status status = gate.Pass();
    finished = true;
    return status;
  });
  const Event running = stream->Record();
  stream->Call("behind", [] { return Status(); });
  const Event last = stream->Record();
  ASSERT_TRUE(gate.AwaitArrival());
  std::thread destroyer([&] { stream.reset(); });
  gate.Open();
  destroyer.join();
  EXPECT_TRUE(finished);
  EXPECT_OK(running.Synchronize(Deadline::After(0)));
  // The last work may have run or been dropped, but nobody waits for it.
  EXPECT_TRUE(last.IsDone());
}

// Returns a counter that uses the device when it is destroyed, as an object
// that a host function holds may do.
std::shared_ptr<int> Witness(Stream* stream) {
  return std::shared_ptr<int>(new int(0), [stream](const int* it) {
    (void)stream->Record();
    delete it;
  });
}

// The stream is at a wait that nothing ends except the end of the stream.
TEST(WorkerTest, QueuedWorkIsDroppedWhenItsStreamIsDestroyed) {
  const auto device = Open("cpu");
  Gate gate;
  const auto held = Communication(device);
  held->Call("held", gate.Passing());
  auto stream = Communication(device);
  std::vector<Status> reported;
  stream->OnError([&](const Status& status) { reported.push_back(status); });
  const Event before = stream->Record();
  stream->Wait(held->Record(), Soon());
  std::shared_ptr<int> ran = std::make_shared<int>(0);
  stream->Call("queued", [ran, witness = Witness(held.get())] {
    ++*ran;
    return Status();
  });
  const Event after = stream->Record();
  const auto follower = Communication(device);
  follower->Wait(after, Soon());
  bool followed = false;
  follower->Call("after it", [&followed] {
    followed = true;
    return Status();
  });
  std::thread waiter([&after] {
    ExpectError(after.Synchronize(Soon()), StatusCode::kCancelled,
                {"'shard-comm'", "destroyed"});
  });
  const Deadline deadline = Soon();
  std::string at;
  while (at.find("it is at 'wait for 'shard-comm''") == std::string::npos) {
    ASSERT_FALSE(deadline.Expired()) << at;
    at = stream->Synchronize(Deadline::After(0.001)).message();
  }

  stream.reset();
  ASSERT_EQ(reported.size(), 1u);
  ExpectError(reported[0], StatusCode::kCancelled, {"destroyed"});
  EXPECT_EQ(*ran, 0);
  EXPECT_EQ(ran.use_count(), 1);
  EXPECT_OK(before.Synchronize(Soon()));
  waiter.join();
  ExpectError(follower->Synchronize(Soon()), StatusCode::kCancelled, {});
  EXPECT_FALSE(followed);
  gate.Open();
  EXPECT_OK(held->Synchronize(Soon()));
}

// The stream that is waited for goes on, and wakes nobody.
TEST(WorkerTest, AWaitForAnotherStreamEndsWithItsOwn) {
  const auto device = Open("cpu");
  const auto busy = Communication(device);
  auto waiting = Communication(device);
  Gate gate;
  busy->Call("busy", gate.Passing());
  waiting->Wait(busy->Record(), Soon());
  const Event after = waiting->Record();
  ASSERT_TRUE(gate.AwaitArrival());
  const Deadline deadline = Soon();
  std::string at;
  while (at.find("it is at 'wait for 'shard-comm''") == std::string::npos) {
    ASSERT_FALSE(deadline.Expired()) << at;
    at = after.Synchronize(Deadline::After(0)).message();
  }
  const auto start = std::chrono::steady_clock::now();
  waiting.reset();
  EXPECT_LT(SecondsSince(start), 30);
  ExpectError(after.Synchronize(Deadline::After(0)), StatusCode::kCancelled,
              {"'shard-comm'", "destroyed"});
  gate.Open();
  EXPECT_OK(busy->Synchronize(Soon()));
}

// The work ends well, and what is behind it is dropped.
TEST(WorkerTest, DroppedWorkBehindWorkThatRunsIsReported) {
  auto stream = Communication(Open("cpu"));
  std::vector<Status> reported;
  stream->OnError([&](const Status& status) { reported.push_back(status); });
  Gate gate;
  std::thread destroyer;
  stream->Call("slow", gate.Passing());
  bool ran = false;
  stream->Call("behind", [&ran] {
    ran = true;
    return Status();
  });
  ASSERT_TRUE(gate.AwaitArrival());
  destroyer = std::thread([&] { stream.reset(); });
  gate.Open();
  destroyer.join();
  // The stream may have come to the second work before its end.
  ASSERT_EQ(reported.size(), ran ? 0u : 1u);
  if (!ran) ExpectError(reported[0], StatusCode::kCancelled, {"destroyed"});
}

// The handler tells others, who fail the stream before the work is completed,
// as the others of a group do that has ended.
TEST(WorkerTest, TheErrorThatIsReportedIsThatOfTheEvents) {
  const auto stream = Communication(Open("cpu"));
  std::vector<Status> reported;
  std::thread other;
  stream->OnError([&](const Status& status) {
    reported.push_back(status);
    other = std::thread([&] { stream->Fail(Cancelled("by others")); });
  });
  std::shared_ptr<int> held(new int(0), [&other](const int* it) {
    other.join();
    delete it;
  });
  stream->Call("break",
               [held = std::move(held)] { return Internal("broken"); });
  ExpectError(stream->Record().Synchronize(Soon()), StatusCode::kInternal,
              {"broken"});
  ExpectError(stream->status(), StatusCode::kInternal, {"broken"});
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].code(), StatusCode::kInternal);
}

TEST(WorkerTest, AHandlerThatThrowsChangesNothing) {
  const auto stream = Communication(Open("cpu"));
  stream->OnError([](const Status&) { throw std::bad_alloc(); });
  stream->Call("badly", [] { return Internal("broken"); });
  ExpectError(stream->Synchronize(Soon()), StatusCode::kInternal, {"broken"});
}

TEST(WorkerTest, TheCapturesOfACallAreGoneWhenItsEventIsDone) {
  const auto device = Open("cpu");
  const auto stream = Communication(device);
  const auto other = Communication(device);
  for (int i = 0; i < 100; ++i) {
    std::shared_ptr<int> held = Witness(other.get());
    const std::weak_ptr<int> seen = held;
    stream->Call("hold", [held = std::move(held)] { return Status(); });
    ASSERT_OK(stream->Synchronize(Soon()));
    ASSERT_TRUE(seen.expired());
  }
}

// The child has none of the threads, and finds the locks as they happened to
// be. An alarm kills it if it hangs.
TEST(WorkerTest, AChildOfForkDestroysAndDoesNotHang) {
  for (const char* const spec : {"cpu", "cpu-async"}) {
    auto device = Open(spec);
    auto idle = Communication(device);
    ASSERT_OK(idle->Synchronize(Soon()));
    auto busy = Communication(device);
    Gate gate;
    busy->Call("busy", gate.Passing());
    busy->Call("queued", [] { return Status(); });
    auto waiting = Communication(device);
    waiting->Wait(busy->Record(), Soon());
    Event event = waiting->Record();
    ASSERT_TRUE(gate.AwaitArrival());
    auto other_device = Open(spec);
    auto other_stream = Communication(other_device);
    ASSERT_OK(other_stream->Synchronize(Soon()));

    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(30);
      event = Event();
      idle.reset();
      busy.reset();
      waiting.reset();
      device.reset();
      // Everything that the idle thread of this stream waits on is destroyed,
      // too.
      other_stream.reset();
      other_device.reset();
      ::_exit(7);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 7);
    // The parent's streams are unchanged.
    gate.Open();
    EXPECT_OK(event.Synchronize(Soon()));
    EXPECT_OK(busy->Synchronize(Soon()));
  }
}

// Many streams wait for each other, on several threads.
TEST(WorkerTest, StreamsOfOneDeviceInManyThreads) {
  const auto device = Open("cpu-async?max_delay=0.00005");
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&device] {
      const auto one = Communication(device);
      const auto two = Communication(device);
      int value = 0;
      for (int i = 0; i < 100; ++i) {
        one->Call("add", [&value] {
          ++value;
          return Status();
        });
        two->Wait(one->Record(), Soon());
        two->Call("add", [&value] {
          ++value;
          return Status();
        });
        one->Wait(two->Record(), Soon());
      }
      EXPECT_OK(one->Synchronize(Soon()));
      EXPECT_EQ(value, 200);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// About half of 100 pieces of work are delayed, for 1 ms on average.
TEST(PausesTest, TakeTheirTime) {
  for (const int seed : {0, 1, 2}) {
    const auto stream =
        Communication(Open(StrCat("cpu-async?max_delay=0.002&seed=", seed)));
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 100; ++i) {
      stream->Call("nothing", [] { return Status(); });
    }
    ASSERT_OK(stream->Synchronize(Soon()));
    EXPECT_GT(SecondsSince(start), 0.025);
  }
}

// Pauses show a missing wait: two streams that do not wait run in either order.
TEST(PausesTest, AMissingWaitShows) {
  const auto device = Open("cpu-async?max_delay=0.001");
  const auto one = Communication(device);
  const auto two = Communication(device);
  bool one_first = false;
  bool two_first = false;
  for (int i = 0; i < 5000 && !(one_first && two_first); ++i) {
    std::atomic<int> order = 0;
    int place_of_one = 0;
    one->Call("one", [&] {
      place_of_one = order++;
      return Status();
    });
    two->Call("two", [&] {
      ++order;
      return Status();
    });
    ASSERT_OK(one->Synchronize(Soon()));
    ASSERT_OK(two->Synchronize(Soon()));
    (place_of_one == 0 ? one_first : two_first) = true;
  }
  EXPECT_TRUE(one_first);
  EXPECT_TRUE(two_first);
}

// A stream that is destroyed does not wait for its pauses to end.
TEST(PausesTest, EndWithTheStream) {
  const auto start = std::chrono::steady_clock::now();
  // The pauses of all work add up to minutes.
  auto stream = Communication(Open("cpu-async?max_delay=1"));
  for (int i = 0; i < 500; ++i) {
    stream->Call("nothing", [] { return Status(); });
  }
  const Event last = stream->Record();
  stream.reset();
  EXPECT_LT(SecondsSince(start), 30);
  ExpectError(last.Synchronize(Soon()), StatusCode::kCancelled, {});
}

}  // namespace
}  // namespace shard::worker_test
