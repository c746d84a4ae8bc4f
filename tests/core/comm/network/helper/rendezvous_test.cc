// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/rendezvous.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/core/comm/network/helper/hosts.h"
#include "tests/ranks/ranks.h"

namespace shard::network::rendezvous_test {
namespace {

// Returns hosts with 1, 2, 3, ... ranks.
std::vector<Plan> UnequalHosts(int hosts, int* world_size) {
  std::vector<Plan> plans(static_cast<size_t>(hosts));
  *world_size = 0;
  for (int i = 0; i < hosts; ++i) {
    for (int k = 0; k <= i; ++k) {
      plans[static_cast<size_t>(i)].ranks.push_back((*world_size)++);
    }
    std::reverse(plans[static_cast<size_t>(i)].ranks.begin(),
                 plans[static_cast<size_t>(i)].ranks.end());
  }
  // The order in which hosts start is not that of their ranks.
  std::reverse(plans.begin(), plans.end());
  return plans;
}

void ExpectMeeting(int hosts, const char* host) {
  SCOPED_TRACE(hosts);
  int world_size = 0;
  const std::vector<Plan> plans = UnequalHosts(hosts, &world_size);
  MeetingOptions base = OptionsFor(FreePort(host), world_size, 0, 30);
  base.host = host;
  const auto outcomes = RunHosts(plans, base, false);
  int masters = 0;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    ASSERT_TRUE(outcome.status && outcome.status->ok())
        << outcome.status->ToString();
    masters += outcome.was_master;
    const int self = hosts - 1 - static_cast<int>(i);
    EXPECT_EQ(outcome.self, self);
    ASSERT_EQ(outcome.hosts.size(), static_cast<size_t>(hosts));
    EXPECT_EQ(outcome.hosts[static_cast<size_t>(self)].name,
              StrCat("node-", i));
    for (int h = 0; h < hosts; ++h) {
      EXPECT_EQ(outcome.hosts[static_cast<size_t>(h)].first_rank,
                h * (h + 1) / 2);
      EXPECT_EQ(outcome.hosts[static_cast<size_t>(h)].ranks, h + 1);
    }
  }
  EXPECT_EQ(masters, 1);
}

TEST(MeetingTest, HostsWithUnequalRanksMeet) {
  for (const int hosts : {1, 2, 3, 4, 8}) ExpectMeeting(hosts, "127.0.0.1");
}

TEST(MeetingTest, HostsMeetOverIpv6) {
  if (!HasIpv6()) GTEST_SKIP() << "this machine has no IPv6 loopback";
  ExpectMeeting(3, "::1");
}

TEST(MeetingTest, FourHostsOf16RanksTakeLessThanTwoSeconds) {
  std::vector<Plan> plans(4);
  for (int rank = 0; rank < 64; ++rank) {
    plans[static_cast<size_t>(rank / 16)].ranks.push_back(rank);
  }
  for (const Outcome& outcome :
       RunHosts(plans, OptionsFor(FreePort(), 64, 0, 30), false)) {
    ASSERT_TRUE(outcome.status && outcome.status->ok());
    EXPECT_LT(outcome.seconds, 2);
  }
}

// Nobody can bind the address at first, and nobody listens there.
TEST(MeetingTest, TheMasterMayComeLater) {
  const Fd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address = Loopback();
  ASSERT_EQ(::bind(taken.get(), address.get(), address.size()), 0);
  address = *SocketAddress::OfSocket(taken.get());
  std::atomic<bool> freed = false;
  std::thread frees([&] {
    const auto loop = MakeLoop();
    RunFor(loop.get(), 0.2);
    freed = true;
    ::shutdown(taken.get(), SHUT_RDWR);
    const_cast<Fd&>(taken).Reset();
  });
  const auto outcomes =
      RunHosts({{{0}}, {{1}}}, OptionsFor(address.port(), 2, 0, 30), false);
  EXPECT_TRUE(freed);
  frees.join();
  for (const Outcome& outcome : outcomes) EXPECT_OK(*outcome.status);
}

TEST(MeetingTest, RanksMayComeOneByOne) {
  // Host 1 adds its second rank once the master knows the first three.
  std::atomic<bool> three = false;
  const auto watches = [&](Meeting* meeting) {
    if (meeting->master() != nullptr &&
        meeting->master()->roster().come() == 3) {
      three = true;
    }
    return false;
  };
  bool added = false;
  const auto adds = [&](Meeting* meeting) {
    if (three && !std::exchange(added, true)) meeting->AddRank(3);
    return false;
  };
  const auto outcomes = RunHosts(
      {{.ranks = {0, 1}, .leaves = watches}, {.ranks = {2}, .leaves = adds}},
      OptionsFor(FreePort(), 4, 0, 30));
  for (const Outcome& outcome : outcomes) EXPECT_OK(*outcome.status);
}

// --- errors of the job ---

TEST(MeetingErrorTest, ADuplicateRankNamesBothHosts) {
  ExpectSameError(
      RunHosts({{{0, 1}}, {{1, 2}}, {{}}}, OptionsFor(FreePort(), 4, 0, 30)),
      StatusCode::kAlreadyExists, 1,
      {"node-0 (127.0.0.1)", "node-1 (127.0.0.1)", "rank 1"});
}

TEST(MeetingErrorTest, AnotherWorldSize) {
  ExpectSameError(
      RunHosts({{{0}},
                {{}},
                {.ranks = {1},
                 .change =
                     [](MeetingOptions* options) { options->world_size = 5; }}},
               OptionsFor(FreePort(), 3, 0, 30)),
      StatusCode::kInvalidArgument, 1,
      {"rank 1 of host node-2 (127.0.0.1) says world size 5"});
}

TEST(MeetingErrorTest, ARankOutOfRange) {
  ExpectSameError(RunHosts({{{0}}, {{2}}}, OptionsFor(FreePort(), 2, 0, 30)),
                  StatusCode::kInvalidArgument, 2,
                  {"host node-1 (127.0.0.1) has rank 2"});
}

TEST(MeetingErrorTest, RanksThatAreNotContiguous) {
  ExpectSameError(
      RunHosts({{{0, 2}}, {{1, 3}}}, OptionsFor(FreePort(), 4, 0, 30)),
      StatusCode::kInvalidArgument, 2, {"must be contiguous"});
}

TEST(MeetingErrorTest, MissingRanksAreNamedOnAllHosts) {
  const auto outcomes =
      RunHosts({{{0}}, {{2, 3}}}, OptionsFor(FreePort(), 6, 0, 1));
  ExpectSameError(
      outcomes, StatusCode::kDeadlineExceeded, 1,
      {"3 of 6 ranks did not come to tcp://127.0.0.1:",
       "within 1 s: missing [1, 4, 5]", "127.0.0.1 is a loopback address"});
  for (const Outcome& outcome : outcomes) EXPECT_LT(outcome.seconds, 4);
}

// The rendezvous lasts as long as the shortest deadline.
TEST(MeetingErrorTest, TheShortestDeadlineIsThatOfAll) {
  const auto outcomes = RunHosts({{{0}},
                                  {.ranks = {1},
                                   .change =
                                       [](MeetingOptions* options) {
                                         options->deadline =
                                             Deadline::After(0.5);
                                       }}},
                                 OptionsFor(FreePort(), 3, 0, 60));
  ExpectSameError(outcomes, StatusCode::kDeadlineExceeded, 2, {"missing [2]"});
  for (const Outcome& outcome : outcomes) EXPECT_LT(outcome.seconds, 20);
}

TEST(MeetingErrorTest, AHostThatLeavesIsLost) {
  std::atomic<bool> came = false;
  const auto watches = [&](Meeting* meeting) {
    if (meeting->master() != nullptr &&
        meeting->master()->roster().come() == 4) {
      came = true;
    }
    return false;
  };
  const auto leaves = [&](Meeting*) { return came.load(); };
  const auto outcomes = RunHosts({{.ranks = {0}, .leaves = watches},
                                  {{1}},
                                  {.ranks = {3, 2}, .leaves = leaves}},
                                 OptionsFor(FreePort(), 5, 0, 60));
  EXPECT_FALSE(outcomes[2].status);
  ExpectSameError(outcomes, StatusCode::kRankLost, 2,
                  {"host node-2 (127.0.0.1) with rank 2 and 1 more left"});
  for (const Outcome& outcome : outcomes) EXPECT_LT(outcome.seconds, 20);
}

TEST(MeetingErrorTest, AnErrorOfOneHostIsThatOfAll) {
  for (const size_t failing : {0u, 1u}) {
    bool failed = false;
    std::vector<Plan> plans{{{0}}, {{1}}, {{2}}};
    plans[failing].leaves = [&](Meeting* meeting) {
      if (!std::exchange(failed, true)) {
        meeting->Fail(Status(StatusCode::kCorrupt, "a wrong disk", 7));
      }
      return false;
    };
    ExpectSameError(RunHosts(plans, OptionsFor(FreePort(), 4, 0, 60)),
                    StatusCode::kCorrupt, 7,
                    {StrCat("host node-", failing), ": a wrong disk"});
  }
}

TEST(MeetingErrorTest, AWrongAddressOfOneHostIsThatOfAll) {
  ExpectSameError(RunHosts({{{0}},
                            {.ranks = {1},
                             .change =
                                 [](MeetingOptions* options) {
                                   options->local.interface = "nope7";
                                 }}},
                           OptionsFor(FreePort(), 2, 0, 60)),
                  StatusCode::kNotFound, -1, {"no interface nope7"});
}

TEST(MeetingErrorTest, AHostWithoutRanksIsToldSo) {
  bool added = false;
  const auto adds = [&](Meeting* meeting) {
    if (meeting->master() != nullptr &&
        meeting->master()->roster().hosts() == 2 &&
        !std::exchange(added, true)) {
      meeting->AddRank(0);
    }
    return false;
  };
  const auto outcomes = RunHosts({{.ranks = {}, .leaves = adds}, {{}}},
                                 OptionsFor(FreePort(), 1, 0, 30));
  EXPECT_OK(*outcomes[0].status);
  ExpectInvalid(*outcomes[1].status,
                {"the job is complete without host node-1 (127.0.0.1)"});
}

// --- wrong peers ---

// Runs a job of two hosts, the second of which comes after a third one, changed
// by `change`, was refused. Expects the job to go on, and `code` of the third.
void ExpectRefused(const std::function<void(MeetingOptions*)>& change,
                   StatusCode code,
                   std::initializer_list<std::string_view> parts) {
  std::atomic<bool> refused = false;
  const auto watches = [&](Meeting* meeting) {
    if (meeting->master() != nullptr &&
        meeting->master()->listener().refused() > 0) {
      refused = true;
    }
    return false;
  };
  bool added = false;
  std::atomic<bool> ended = false;
  const auto adds = [&](Meeting* meeting) {
    if (refused && ended && !std::exchange(added, true)) meeting->AddRank(1);
    return false;
  };
  std::vector<Plan> plans{{.ranks = {0}, .leaves = watches},
                          {.ranks = {1}, .change = change},
                          {.ranks = {}, .leaves = adds}};
  plans[1].ends = [&] { ended = true; };
  const auto outcomes = RunHosts(plans, OptionsFor(FreePort(), 2, 0, 4));
  EXPECT_OK(*outcomes[0].status);
  ExpectError(*outcomes[1].status, code, parts);
  EXPECT_OK(*outcomes[2].status);
}

TEST(MeetingPeerTest, AnotherSecretIsRefusedAndTheJobGoesOn) {
  ExpectRefused(
      [](MeetingOptions* options) {
        options->identity.secret = *Secret::FromText("other");
      },
      StatusCode::kUnauthenticated, {"has another job secret"});
}

TEST(MeetingPeerTest, AnotherJobIsRefusedAndTheJobGoesOn) {
  ExpectRefused(
      [](MeetingOptions* options) { options->identity.job_id = "other"; },
      StatusCode::kAlreadyExists, {"belongs to another job"});
}

TEST(MeetingPeerTest, AnEarlierRestartIsRefusedAndTheJobGoesOn) {
  ExpectRefused([](MeetingOptions* options) { options->identity.restart = 2; },
                StatusCode::kFailedPrecondition,
                {"is of restart 3 of the job, this host of restart 2"});
}

TEST(MeetingPeerTest, TheMasterNamesWhomItRefused) {
  const auto outcomes = RunHosts({{{0}},
                                  {.ranks = {1},
                                   .change =
                                       [](MeetingOptions* options) {
                                         options->identity.secret = Secret();
                                       }}},
                                 OptionsFor(FreePort(), 2, 0, 1));
  ExpectError(*outcomes[0].status, StatusCode::kDeadlineExceeded,
              {"missing [1]", "1 connection was refused, the last: 127.0.0.1:",
               "has no job secret, and this host has one"});
  ExpectError(*outcomes[1].status, StatusCode::kUnauthenticated,
              {"has a job secret, and this host has none"});
}

TEST(MeetingPeerTest, AnotherVersionIsAnErrorOfAll) {
  ExpectSameError(RunHosts({{{0}},
                            {{2}},
                            {.ranks = {1},
                             .change =
                                 [](MeetingOptions* options) {
                                   options->identity.library_version = "9";
                                 }}},
                           OptionsFor(FreePort(), 4, 0, 60)),
                  StatusCode::kFailedPrecondition, -1,
                  {"has libshard ", "all hosts must load the same libshard"});
}

TEST(MeetingPeerTest, AnEarlierRestartMakesRoomForALaterOne) {
  const auto later = [](MeetingOptions* options) {
    options->identity.restart = 4;
  };
  const auto outcomes = RunHosts({{.ranks = {0}},
                                  {.ranks = {0}, .change = later},
                                  {.ranks = {1}, .change = later}},
                                 OptionsFor(FreePort(), 2, 0, 60));
  ExpectError(*outcomes[0].status, StatusCode::kFailedPrecondition,
              {"is of restart 4 of the job, this host of restart 3"});
  EXPECT_OK(*outcomes[1].status);
  EXPECT_OK(*outcomes[2].status);
}

TEST(MeetingPeerTest, AProgramThatIsNotLibshardIsNamed) {
  const Fd listening = *ListenAt(Loopback());
  const uint16_t port = SocketAddress::OfSocket(listening.get())->port();
  std::atomic<bool> done = false;
  std::thread program([&] {
    while (!done) {
      pollfd entry{listening.get(), POLLIN, 0};
      if (::poll(&entry, 1, 10) <= 0) continue;
      Stranger client(Fd(::accept(listening.get(), nullptr, nullptr)));
      client.Send("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n");
      // Read, so that the end of the connection does not overtake the text.
      client.Receive(128);
    }
  });
  const auto outcomes = RunHosts({{{0}}}, OptionsFor(port, 1, 0, 2), false);
  done = true;
  program.join();
  ExpectError(*outcomes[0].status, StatusCode::kAlreadyExists,
              {"is taken by a program that is not libshard", "ss -ltnp"});
}

TEST(MeetingPeerTest, NobodyAtTheAddressIsNamed) {
  // An address of this host that no host of the job can bind.
  const Fd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = Loopback();
  ASSERT_EQ(::bind(taken.get(), any.get(), any.size()), 0);
  const uint16_t port = SocketAddress::OfSocket(taken.get())->port();
  const auto outcomes = RunHosts({{{0}}}, OptionsFor(port, 1, 0, 0.5), false);
  ExpectError(*outcomes[0].status, StatusCode::kDeadlineExceeded,
              {"nobody of this job was reached at tcp://127.0.0.1:",
               "within 0.5 s", "Connection refused"});
}

TEST(MeetingPeerTest, ANameThatDoesNotResolveIsNamed) {
  const auto outcomes = RunHosts(
      {{.ranks = {0},
        .change =
            [](MeetingOptions* options) {
              options->host = "node-1";
              options->resolver = [](const std::string& host, uint16_t) {
                return Resolution::Addresses(
                    NotFound("the name ", host, " does not resolve"));
              };
            }}},
      OptionsFor(29500, 1, 0, 0.8), false);
  ExpectError(*outcomes[0].status, StatusCode::kNotFound,
              {"the name node-1 does not resolve"});
  EXPECT_LT(outcomes[0].seconds, 0.7);  // A quarter of the deadline.
}

// The name of a host is published once the host has started.
TEST(MeetingPeerTest, ANameThatResolvesLaterIsFound) {
  int calls = 0;
  const auto outcomes = RunHosts(
      {{.ranks = {0},
        .change =
            [&](MeetingOptions* options) {
              options->host = "node-1";
              options->resolver = [&](const std::string& host, uint16_t port) {
                if (++calls < 4) {
                  return Resolution::Addresses(NotFound(host));
                }
                return Resolution::Addresses(std::vector{Loopback(port)});
              };
            }}},
      OptionsFor(FreePort(), 1, 0, 30), false);
  EXPECT_OK(*outcomes[0].status);
}

TEST(TrustTest, WithoutASecretOnlyLoopbackIsBound) {
  const SocketAddress beyond = *SocketAddress::Parse("10.0.0.2", 0);
  EXPECT_OK(CheckTrust(Loopback(), false, false));
  EXPECT_OK(CheckTrust(beyond, true, false));
  EXPECT_OK(CheckTrust(beyond, false, true));
  ExpectError(
      CheckTrust(beyond, false, false), StatusCode::kPermissionDenied,
      {"10.0.0.2 without a job secret", "SHARD_TOKEN", "trust=network"});
}

TEST(MeetingTest, HostsOnLoopbackMeetWithoutASecret) {
  MeetingOptions base = OptionsFor(FreePort(), 2, 0, 30);
  base.identity = MakeIdentity("");
  for (const Outcome& outcome : RunHosts({{{0}}, {{1}}}, base)) {
    EXPECT_OK(*outcome.status);
  }
}

// --- a helper of the job that does not do its part ---

// A member that greets and names an address at which nobody listens.
TEST(MeetingErrorTest, AHostThatCannotBeReachedIsNamed) {
  const uint16_t port = FreePort();
  std::atomic<bool> done = false;
  std::thread fake([&] {
    const auto loop = MakeLoop();
    std::unique_ptr<Channel> channel;
    std::optional<Status> verdict;
    bool failed = false;
    while (!verdict && !done) {
      failed = false;
      auto made = Channel::Create(
          loop.get(), *ConnectTo(Loopback(port)),
          {.identity = Share(MakeIdentity()), .role = Role::kMember},
          {.on_open =
               [&] {
                 const MemberHello hello{.world_size = 2,
                                         .remaining_nanos = 60'000'000'000,
                                         .address = Loopback(FreePort()),
                                         .name = "fake"};
                 EXPECT_OK(channel->Send(1, {Write(hello).bytes()}));
                 const int32_t rank = 0;
                 EXPECT_OK(
                     channel->Send(2, {std::as_bytes(std::span(&rank, 1))}));
               },
           .on_frame =
               [&](uint32_t kind, Channel::Bytes body) {
                 if (kind == 7) verdict = ReadStatus(body);
               },
           .on_closed = [&](const Status&) { failed = true; }});
      channel = *std::move(made);
      RunUntil(loop.get(), [&] { return verdict || failed || done; });
    }
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->code(), StatusCode::kUnavailable);
  });
  const auto outcomes = RunHosts({{{1}}}, OptionsFor(port, 2, 0, 4));
  done = true;
  fake.join();
  ExpectSameError(outcomes, StatusCode::kUnavailable, 0,
                  {"connecting to host fake at 127.0.0.1:",
                   "Connection refused", "firewalls"});
}

// --- processes that are killed ---

// Runs three hosts as processes; `victim` is killed once the master knows a
// rank of each. Expects the others to name it.
void ExpectLost(int victim, int rank) {
  const uint16_t port = FreePort();
  int ends[2];  // Host 0 tells the victim.
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const Fd reads(ends[0]);
  const Fd writes(ends[1]);
  const auto results = testing::RunRanks(3, [&](const testing::Rank& process) {
    const int host = process.rank();
    const auto loop = MakeLoop();
    std::optional<StatusOr<Mesh>> result;
    if (host != 0) {
      // Until the master listens: a connection of a stranger that ends.
      ASSERT_TRUE(testing::ComesTrue(
          [&] { return Stranger(Loopback(port)).connected(); }));
    }
    Meeting meeting(loop.get(), OptionsFor(port, 7, host, 60),
                    [&](StatusOr<Mesh> mesh) { result = std::move(mesh); });
    // The master's own rank comes last: the members that are there are told.
    bool added = host != 0;
    if (added) meeting.AddRank(2 * host + 1);
    ASSERT_TRUE(RunUntil(loop.get(), [&] {
      if (!added && meeting.master() != nullptr &&
          meeting.master()->roster().come() == 2) {
        added = true;
        meeting.AddRank(1);
      }
      if (meeting.master() != nullptr &&
          meeting.master()->roster().come() == 3) {
        EXPECT_EQ(::write(writes.get(), "x", 1), 1);
      }
      char byte;
      if (host == victim && ::read(reads.get(), &byte, 1) == 1) {
        ::raise(SIGKILL);
      }
      return result.has_value();
    }));
    ExpectError(result->status(), StatusCode::kRankLost,
                {victim == 0 ? "the master has left" : "left while"});
    EXPECT_EQ(result->status().rank(), rank);
  });
  for (const auto& result : results) {
    if (result.rank == victim) {
      EXPECT_EQ(result.signal, SIGKILL);
      continue;
    }
    EXPECT_TRUE(result.passed()) << result.ToString();
    EXPECT_LT(result.seconds, 20);
  }
}

TEST(MeetingDeathTest, AKilledMemberIsNamed) { ExpectLost(2, 5); }

TEST(MeetingDeathTest, AKilledMasterIsNamed) { ExpectLost(0, 1); }

}  // namespace
}  // namespace shard::network::rendezvous_test
