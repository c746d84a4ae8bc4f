// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/loop.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "tests/core/comm/network/helper/helper_testing.h"

namespace shard::network::loop_test {
namespace {

struct Pair {
  Pair() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    a.Reset(ends[0]);
    b.Reset(ends[1]);
  }
  void Write() { EXPECT_EQ(::send(b.get(), "x", 1, MSG_NOSIGNAL), 1); }
  Fd a;
  Fd b;
};

TEST(LoopTest, CallsTheWatchOfADescriptorUntilItsHandleGoes) {
  const auto loop = MakeLoop();
  Pair pair;
  int calls = 0;
  auto watch = loop->Add(pair.a.get(), EPOLLIN, [&](uint32_t events) {
    EXPECT_EQ(events, uint32_t{EPOLLIN});
    ++calls;
  });
  ASSERT_OK(watch);
  ASSERT_OK(loop->RunOnce(Deadline::After(0)));
  EXPECT_EQ(calls, 0);
  pair.Write();
  ASSERT_OK(loop->RunOnce(Deadline::After(30)));
  EXPECT_EQ(calls, 1);
  ASSERT_OK(watch->SetEvents(0));
  ASSERT_OK(loop->RunOnce(Deadline::After(0)));
  EXPECT_EQ(calls, 1);
  ASSERT_OK(watch->SetEvents(EPOLLIN));
  ASSERT_OK(loop->RunOnce(Deadline::After(30)));
  EXPECT_EQ(calls, 2);
  watch->Reset();
  ASSERT_OK(loop->RunOnce(Deadline::After(0)));
  EXPECT_EQ(calls, 2);
}

TEST(LoopTest, RefusesADescriptorThatCannotBeWatched) {
  const auto loop = MakeLoop();
  ExpectError(loop->Add(-1, EPOLLIN, [](uint32_t) {}), StatusCode::kInternal,
              {"watching a descriptor"});
}

// Both descriptors are ready in one round; the first callback ends both
// watches.
TEST(LoopTest, AWatchThatEndsInARoundIsNotCalledInIt) {
  const auto loop = MakeLoop();
  Pair pairs[2];
  Loop::Watch watches[2];
  int calls = 0;
  for (int i = 0; i < 2; ++i) {
    auto watch = loop->Add(pairs[i].a.get(), EPOLLIN, [&](uint32_t) {
      ++calls;
      watches[0].Reset();
      watches[1].Reset();
    });
    ASSERT_OK(watch);
    watches[i] = *std::move(watch);
    pairs[i].Write();
  }
  ASSERT_OK(loop->RunOnce(Deadline::After(30)));
  EXPECT_EQ(calls, 1);
}

TEST(LoopTest, CallsTimersInTheirOrderAndOnce) {
  const auto loop = MakeLoop();
  std::vector<int> order;
  const Deadline base = Deadline::After(0.01);
  const auto late = loop->At(base.Later(std::chrono::milliseconds(5)),
                             [&] { order.push_back(2); });
  const auto early = loop->At(base, [&] { order.push_back(1); });
  auto never = loop->At(base, [&] { order.push_back(3); });
  never.Reset();
  EXPECT_TRUE(RunUntil(loop.get(), [&] { return order.size() == 2; }));
  RunFor(loop.get(), 0.02);
  EXPECT_EQ(order, (std::vector{1, 2}));
}

TEST(LoopTest, ATimerMayEndOthersAndSetItselfAgain) {
  const auto loop = MakeLoop();
  Pair pair;
  pair.Write();
  bool read = false;
  auto watch = loop->Add(pair.a.get(), EPOLLIN, [&](uint32_t) { read = true; });
  int runs = 0;
  Loop::Timer self;
  Loop::Timer other = loop->Soon([] { FAIL() << "it was ended"; });
  other.Reset();
  std::function<void()> again = [&] {
    if (++runs < 100) self = loop->Soon(again);
  };
  self = loop->Soon(again);
  // One run for each round: descriptors have their turn.
  ASSERT_OK(loop->RunOnce(Deadline::After(0)));
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(read);
  EXPECT_TRUE(RunUntil(loop.get(), [&] { return runs == 100; }));
}

TEST(LoopTest, PostedFunctionsRunInItsThreadInTheirOrder) {
  const auto loop = MakeLoop();
  std::vector<int> order;
  const auto here = std::this_thread::get_id();
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) {
      loop->Post([&order, i, here] {
        EXPECT_EQ(std::this_thread::get_id(), here);
        order.push_back(i);
      });
    }
    loop->Post([&loop] { loop->Stop(); });
  });
  ASSERT_OK(loop->Run());
  other.join();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(LoopTest, StopAndWakeOfAnotherThreadEndAWait) {
  const auto loop = MakeLoop();
  const Deadline deadline = Deadline::After(60);
  std::thread stopper([&] { loop->Stop(); });
  ASSERT_OK(loop->Run());
  stopper.join();
  std::thread waker([&] { loop->Wake(); });
  ASSERT_OK(loop->RunOnce(deadline));
  waker.join();
  EXPECT_FALSE(deadline.Expired());
}

}  // namespace
}  // namespace shard::network::loop_test
