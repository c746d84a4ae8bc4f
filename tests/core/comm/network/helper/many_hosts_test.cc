// SPDX-License-Identifier: Apache-2.0
//
// A simulation of the master of a large job: the helpers of all hosts come to
// it, with a rank each, and get the table. Prints seconds and bytes. It has
// 16,384 hosts where SHARD_TEST_LONG is set, and descriptors for them: many
// more than there is room for in the rounds of a job, which a master refuses.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/base/fd.h"
#include "core/comm/network/helper/rendezvous.h"
#include "tests/core/comm/network/helper/helper_testing.h"
#include "tests/ranks/ranks.h"

namespace shard::network {
namespace {

constexpr int kProcesses = 4;  // Which hold the members.

int ChooseHosts() {
  if (std::getenv("SHARD_TEST_LONG") == nullptr) return 512;
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  const auto most = static_cast<int>(std::min<rlim_t>(files.rlim_cur, 1 << 20));
  return std::min(16'384, (most - 200) / kProcesses * kProcesses);
}

double SecondsSince(Deadline::Clock::time_point begin) {
  return std::chrono::duration<double>(Deadline::Clock::now() - begin).count();
}

long ResidentKib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// A member that greets, waits for the table, and says that it is connected.
struct Member {
  std::unique_ptr<Channel> channel;
  Loop::Timer retry;
  double wait = 0.01;
  bool done = false;
};

// Expects that each member gets a verdict that `is_right`.
void RunMembers(uint16_t port, int first, int count, int world_size,
                const std::function<bool(const Status& verdict)>& is_right) {
  const auto loop = MakeLoop();
  const auto identity = Share(MakeIdentity());
  const SocketAddress address = Loopback(port);
  std::vector<Member> members(static_cast<size_t>(count));
  int done = 0;
  std::function<void(int)> connect = [&](int i) {
    Member& member = members[static_cast<size_t>(i)];
    const auto again = [&, i](const Status&) {
      Member& mine = members[static_cast<size_t>(i)];
      if (mine.done) return;
      mine.retry = loop->At(Deadline::After(mine.wait), [&, i] { connect(i); });
      mine.wait = std::min(2 * mine.wait, 1.0);
    };
    auto channel = Channel::Create(
        loop.get(), *ConnectTo(address),
        {.identity = identity, .role = Role::kMember, .silence_seconds = 60},
        {.on_open =
             [&, i] {
               Channel* const mine =
                   members[static_cast<size_t>(i)].channel.get();
               const MemberHello hello{.world_size = world_size,
                                       .remaining_nanos = 600'000'000'000,
                                       .address = address,
                                       .name = StrCat("node-", first + i)};
               ASSERT_OK(mine->Send(1, {Write(hello).bytes()}));
               const int32_t rank = first + i;
               ASSERT_OK(mine->Send(2, {std::as_bytes(std::span(&rank, 1))}));
             },
         .on_frame =
             [&, i](uint32_t kind, Channel::Bytes body) {
               Member& mine = members[static_cast<size_t>(i)];
               if (kind == 4) {
                 int self = -1;
                 const auto table = ReadTable(body, &self);
                 ASSERT_TRUE(table);
                 ASSERT_EQ(self, first + i);
                 ASSERT_OK(mine.channel->Send(5, {}));
               } else if (kind == 7) {
                 const auto verdict = ReadStatus(body);
                 ASSERT_TRUE(verdict && is_right(*verdict))
                     << (verdict ? verdict->ToString() : "cut");
                 mine.done = true;
                 ++done;
               }
             },
         .on_closed = again});
    ASSERT_OK(channel);
    member.channel = *std::move(channel);
  };
  for (int i = 0; i < count; ++i) {
    connect(i);
    // Each helper is a process of its own, which answers while others begin.
    if (i % 16 == 0) {
      ASSERT_OK(loop->RunOnce(Deadline::After(0)));
    }
  }
  ASSERT_TRUE(RunUntil(
      loop.get(), [&] { return done == count; }, 500));
}

TEST(ManyHostsTest, TheMasterCollectsAndPublishes) {
  const int hosts = ChooseHosts();
  const uint16_t port = FreePort();
  const auto results = testing::RunRanks(
      1 + kProcesses,
      [&](const testing::Rank& process) {
        if (process.rank() > 0) {
          const int count = hosts / kProcesses;
          RunMembers(port, (process.rank() - 1) * count, count, hosts,
                     [](const Status& verdict) { return verdict.ok(); });
          return;
        }
        const auto loop = MakeLoop();
        auto master = Master::Create(loop.get(), *ListenAt(Loopback(port)),
                                     {.identity = Share(MakeIdentity()),
                                      .where = "tcp://here",
                                      .world_size = hosts,
                                      .deadline = Deadline::After(600),
                                      .silence_seconds = 60,
                                      .most_hosts = hosts});
        ASSERT_OK(master);
        const auto begin = Deadline::Clock::now();
        ASSERT_TRUE(RunUntil(
            loop.get(), [&] { return (*master)->roster().whole(); }, 500));
        const double collected = SecondsSince(begin);
        const uint64_t received = (*master)->bytes_received();
        // The members leave once they have the verdict.
        ASSERT_TRUE(RunUntil(
            loop.get(), [&] { return (*master)->members() == 0; }, 500));
        std::string line = StrCat(
            hosts, " hosts: collected in ", collected, " s with ",
            FormatBytes(received), " received; all in the table after ",
            SecondsSince(begin), " s with ",
            FormatBytes((*master)->bytes_sent()), " sent; ", ResidentKib(),
            " KiB resident; ", (*master)->listener().refused(), " refused\n");
        std::fputs(line.c_str(), stdout);
        EXPECT_LT(ResidentKib(), 1 << 20);
      },
      550);
  testing::ExpectAllPassed(results);
}

// The last hosts come once one too many has come: each is told of the error.
TEST(ManyHostsTest, TooManyHostsAreTheErrorOfAll) {
  constexpr int kLate = 3;
  constexpr int kHosts = direct::kMaxHosts + 1 + kLate;
  const uint16_t port = FreePort();
  int has_come[2];
  ASSERT_EQ(::pipe(has_come), 0);
  const Fd reads(has_come[0]);
  const Fd writes(has_come[1]);
  const auto results = testing::RunRanks(
      1 + kProcesses,
      [&](const testing::Rank& process) {
        const auto is_right = [](const Status& told) {
          return told.code() == StatusCode::kInvalidArgument &&
                 told.message() ==
                     "the 346 ranks of this job are on 346 hosts; libshard has "
                     "room for at most 342 hosts: start more ranks on each";
        };
        if (process.rank() == kProcesses) {
          char byte;
          ASSERT_EQ(::read(reads.get(), &byte, 1), 1);
          RunMembers(port, kHosts - kLate, kLate, kHosts, is_right);
          return;
        }
        if (process.rank() > 0) {
          const int others = kHosts - kLate;
          const int first = (process.rank() - 1) * others / (kProcesses - 1);
          const int end = process.rank() * others / (kProcesses - 1);
          RunMembers(port, first, end - first, kHosts, is_right);
          return;
        }
        const auto loop = MakeLoop();
        auto master = Master::Create(loop.get(), *ListenAt(Loopback(port)),
                                     {.identity = Share(MakeIdentity()),
                                      .where = "tcp://here",
                                      .world_size = kHosts,
                                      .deadline = Deadline::After(100),
                                      .silence_seconds = 60});
        ASSERT_OK(master);
        const auto& roster = (*master)->roster();
        ASSERT_TRUE(RunUntil(
            loop.get(), [&] { return roster.come() == kHosts - kLate; }, 90));
        ASSERT_EQ(::write(writes.get(), "", 1), 1);
        ASSERT_TRUE(RunUntil(
            loop.get(),
            [&] { return roster.whole() && (*master)->members() == 0; }, 90));
      },
      110);
  testing::ExpectAllPassed(results);
}

}  // namespace
}  // namespace shard::network
