// SPDX-License-Identifier: Apache-2.0
//
// A rendezvous to whose port strangers come: before the hosts, and while they
// meet. The hosts meet all the same.

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/network/helper/rendezvous.h"
#include "tests/core/comm/network/helper/hosts.h"
#include "tests/ranks/ranks.h"

namespace shard::network::strangers_test {
namespace {

// Runs three hosts. The last rank comes once `strangers`, which runs on a
// thread of its own with the master's address, has returned.
void ExpectMeetingDespite(
    const std::function<void(const SocketAddress&)>& strangers) {
  const uint16_t port = FreePort();
  std::atomic<bool> done = false;
  std::atomic<bool> up = false;
  std::thread thread([&] {
    EXPECT_TRUE(testing::ComesTrue([&] { return up.load(); }));
    strangers(Loopback(port));
    done = true;
  });
  const auto watches = [&](Meeting* meeting) {
    if (meeting->master() != nullptr) up = true;
    return false;
  };
  bool added = false;
  const auto adds = [&](Meeting* meeting) {
    if (done && !std::exchange(added, true)) meeting->AddRank(2);
    return false;
  };
  const auto outcomes = RunHosts(
      {{.ranks = {0}, .leaves = watches}, {{1}}, {.ranks = {}, .leaves = adds}},
      OptionsFor(port, 3, 0, 60));
  thread.join();
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.status);
    EXPECT_OK(*outcome.status);
  }
}

std::string Frame(uint32_t kind, std::string body) {
  const uint32_t header[] = {static_cast<uint32_t>(body.size()), kind};
  return std::string(reinterpret_cast<const char*>(header), sizeof(header)) +
         body;
}

TEST(StrangersTest, GarbageAndSilence) {
  // Silent ones and half of a Head, which stay until the end.
  std::vector<std::unique_ptr<Stranger>> stay;
  ExpectMeetingDespite([&](const SocketAddress& address) {
    for (int i = 0; i < 50; ++i) {
      stay.push_back(std::make_unique<Stranger>(address));
      if (i % 2 == 0) stay.back()->Send(Frame(0xFFFFFF01, "x").substr(0, 5));
      Stranger garbage(address);
      garbage.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
      Stranger large(address);
      large.Send(std::string(100'000, 'x'));
      Stranger frames(address);
      frames.Send(Frame(1, "hello") + Frame(7, "") + Frame(0xFFFFFF02, ""));
      Stranger reset(address);
      const linger now{1, 0};
      ::setsockopt(reset.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    }
  });
}

TEST(StrangersTest, AFloodOf2000Connections) {
  std::vector<std::unique_ptr<Stranger>> stay;
  const int files = testing::CountOpenFiles();
  ExpectMeetingDespite([&](const SocketAddress& address) {
    for (int i = 0; i < 2000; ++i) {
      stay.push_back(std::make_unique<Stranger>(address));
      ASSERT_TRUE(stay.back()->connected());
    }
  });
  stay.clear();
  EXPECT_LE(testing::CountOpenFiles(), files);
}

TEST(StrangersTest, OthersSecretsAndOtherJobs) {
  ExpectMeetingDespite([](const SocketAddress& address) {
    const auto loop = MakeLoop();
    for (const bool other_job : {false, true}) {
      for (int i = 0; i < 20; ++i) {
        Identity identity = MakeIdentity("guess");
        if (other_job) identity.job_id = "other";
        std::optional<Status> closed;
        auto channel = Channel::Create(
            loop.get(), *ConnectTo(address),
            {.identity = Share(identity), .role = Role::kMember},
            {.on_open = [] { FAIL() << "with a wrong secret"; },
             .on_closed = [&](const Status& why) { closed = why; }});
        ASSERT_OK(channel);
        ASSERT_TRUE(RunUntil(loop.get(), [&] { return closed.has_value(); }));
        EXPECT_EQ((*channel)->refusal(),
                  other_job ? Refusal::kJob : Refusal::kSecret);
      }
    }
  });
}

// The job's own secret does not make a wrong frame right; the error is named.
TEST(StrangersTest, AWrongFrameOfAMemberIsAnErrorOfAll) {
  const uint16_t port = FreePort();
  for (const auto& [kind, body, text] :
       {std::tuple(1u, "short", "sent a wrong Hello"),
        std::tuple(2u, "abc", "sent wrong ranks"),
        std::tuple(5u, "", "says at a wrong time that it is connected"),
        std::tuple(99u, "", "sent a frame of the wrong kind 99")}) {
    SCOPED_TRACE(kind);
    std::thread fake([&, kind = kind, body = std::string(body)] {
      const auto loop = MakeLoop();
      std::unique_ptr<Channel> channel;
      bool closed = true;
      bool opened = false;
      ASSERT_TRUE(RunUntil(loop.get(), [&] {
        if (opened && closed) return true;
        if (!closed) return false;
        closed = false;
        auto made = Channel::Create(
            loop.get(), *ConnectTo(Loopback(port)),
            {.identity = Share(MakeIdentity()), .role = Role::kMember},
            {.on_open =
                 [&] {
                   opened = true;
                   EXPECT_OK(channel->Send(
                       kind,
                       {std::as_bytes(std::span(body.data(), body.size()))}));
                 },
             .on_frame = [](uint32_t, Channel::Bytes) {},
             .on_closed = [&](const Status&) { closed = true; }});
        channel = *std::move(made);
        return false;
      }));
    });
    ExpectSameError(RunHosts({{{0}}, {{1}}}, OptionsFor(port, 3, 0, 30)),
                    StatusCode::kInternal, -1, {text});
    fake.join();
  }
}

}  // namespace
}  // namespace shard::network::strangers_test
