// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/channel.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/network/helper/listener.h"
#include "core/comm/network/helper/receive_buffer.h"
#include "tests/core/comm/network/helper/helper_testing.h"
#include "tests/ranks/ranks.h"

namespace shard::network::channel_test {
namespace {

Channel::Bytes BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// One end of a connection, and all that it was told.
struct End {
  std::unique_ptr<Channel> channel;
  bool opened = false;
  bool drained = false;
  std::string send_when_open;
  std::optional<Status> closed;
  std::vector<std::pair<uint32_t, std::string>> frames;

  Channel::Handlers Handlers(bool reads = true) {
    Channel::Handlers handlers;
    handlers.on_open = [this] { opened = true; };
    if (reads) {
      handlers.on_frame = [this](uint32_t kind, Channel::Bytes body) {
        frames.emplace_back(
            kind, std::string(reinterpret_cast<const char*>(body.data()),
                              body.size()));
      };
    }
    handlers.on_closed = [this](const Status& why) { closed = why; };
    handlers.on_drained = [this] { drained = true; };
    return handlers;
  }
};

struct Options {
  Identity connecting = MakeIdentity();
  Identity listening = MakeIdentity();
  ChannelOptions channel = {};
  bool listener_reads = true;
};

// The two ends of a connection, on one loop.
struct Connection {
  // `connecting_silence`: of the connecting end, where it differs.
  explicit Connection(Options options = {}, double connecting_silence = 0)
      : loop(MakeLoop()) {
    auto listening = ListenAt(Loopback());
    EXPECT_OK(listening);
    ChannelOptions channel = options.channel;
    channel.identity = Share(options.listening);
    channel.role = Role::kMaster;
    auto made = Listener::Create(
        loop.get(), *std::move(listening), {.channel = channel},
        [this, options](std::unique_ptr<Channel> opened) {
          b.channel = std::move(opened);
          b.opened = true;
          b.channel->SetHandlers(b.Handlers(options.listener_reads));
          if (!b.send_when_open.empty()) {
            EXPECT_OK(b.channel->Send(1, {BytesOf(b.send_when_open)}));
          }
        },
        [this](const Channel& refused, Refusal why, const Status& status) {
          EXPECT_EQ(refused.refusal(), why);
          refusal = why;
          b.closed = status;
        });
    EXPECT_OK(made);
    listener = *std::move(made);
    channel.identity = Share(options.connecting);
    channel.role = Role::kMember;
    channel.peer = listener->address().ToString();
    if (connecting_silence > 0) channel.silence_seconds = connecting_silence;
    auto connecting = Channel::Create(
        loop.get(), *ConnectTo(listener->address()), channel, a.Handlers());
    EXPECT_OK(connecting);
    a.channel = *std::move(connecting);
  }

  bool Open() {
    return RunUntil(loop.get(), [this] { return a.opened && b.opened; });
  }
  bool Closed() {
    return RunUntil(loop.get(), [this] { return a.closed && b.closed; });
  }

  std::unique_ptr<Loop> loop;
  End a;  // Connects.
  End b;  // Listens.
  Refusal refusal = Refusal::kNone;
  std::unique_ptr<Listener> listener;
};

TEST(ChannelTest, CarriesFramesBothWaysInTheirOrder) {
  Connection c;
  ASSERT_TRUE(c.Open());
  const std::string large(5'000'000, 'x');
  ASSERT_OK(c.a.channel->Send(1, {BytesOf("one"), {}, BytesOf(" frame")}));
  ASSERT_OK(c.a.channel->Send(2, {}));
  ASSERT_OK(c.a.channel->Send(3, {BytesOf(large), BytesOf("end")}));
  ASSERT_OK(c.b.channel->Send(4, {BytesOf(large)}));
  for (uint32_t i = 0; i < 1000; ++i) {
    ASSERT_OK(c.a.channel->Send(5, {BytesOf(StrCat("frame ", i))}));
  }
  ASSERT_TRUE(RunUntil(c.loop.get(), [&] {
    return c.b.frames.size() == 1003 && c.a.frames.size() == 1;
  }));
  EXPECT_EQ(c.b.frames[0], std::pair(1u, std::string("one frame")));
  EXPECT_EQ(c.b.frames[1], std::pair(2u, std::string()));
  EXPECT_TRUE(c.b.frames[2] == std::pair(3u, large + "end"));
  EXPECT_TRUE(c.a.frames[0] == std::pair(4u, large));
  for (uint32_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(c.b.frames[3 + i].second, StrCat("frame ", i));
  }
  EXPECT_TRUE(c.a.drained);
  EXPECT_EQ(c.a.channel->queued_bytes(), 0u);
  EXPECT_GT(c.a.channel->bytes_sent(), large.size());
  RunUntil(c.loop.get(), [&] {
    return c.a.channel->bytes_sent() == c.b.channel->bytes_received();
  });
  EXPECT_EQ(c.a.channel->bytes_sent(), c.b.channel->bytes_received());
  EXPECT_FALSE(c.a.closed || c.b.closed);
}

TEST(ChannelTest, TheQueueIsBounded) {
  Connection c(
      {.channel = {.max_queued_bytes = 1 << 20}, .listener_reads = false});
  ASSERT_TRUE(c.Open());
  const std::string block(100'000, 'x');
  size_t sent = 0;
  Status status;
  for (; sent < 10'000 && status.ok(); ++sent) {
    status = c.a.channel->Send(1, {BytesOf(block)});
  }
  ExpectError(status, StatusCode::kResourceExhausted,
              {"a frame of 97.7 KiB more has no room; at most 1.0 MiB"});
  EXPECT_LE(c.a.channel->queued_bytes(), size_t{1} << 20);
  c.b.channel->SetHandlers(c.b.Handlers());
  ASSERT_TRUE(
      RunUntil(c.loop.get(), [&] { return c.b.frames.size() == sent - 1; }));
  EXPECT_TRUE(c.a.drained);
  EXPECT_OK(c.a.channel->Send(1, {BytesOf(block)}));
}

TEST(ChannelTest, ADestroyedPeerIsNoticedAndNamed) {
  Connection c;
  ASSERT_TRUE(c.Open());
  c.b.channel->set_peer("host node-7");
  c.a.channel = nullptr;
  ASSERT_TRUE(RunUntil(c.loop.get(), [&] { return c.b.closed.has_value(); }));
  ExpectError(*c.b.closed, StatusCode::kUnavailable,
              {"host node-7: closed the connection"});
  ExpectError(c.b.channel->Send(1, {}), StatusCode::kUnavailable,
              {"has ended"});
}

// The last frames of a peer come before its end, also to a new owner.
TEST(ChannelTest, APausedChannelLosesNoFrame) {
  Connection c({.listener_reads = false});
  ASSERT_TRUE(c.Open());
  for (int i = 0; i < 100; ++i) {
    ASSERT_OK(c.a.channel->Send(7, {BytesOf(StrCat(i))}));
  }
  c.a.channel = nullptr;
  RunFor(c.loop.get(), 0.05);
  EXPECT_TRUE(c.b.frames.empty());
  // Nor does a paused channel keep its loop awake.
  const auto begin = Deadline::Clock::now();
  ASSERT_OK(c.loop->RunOnce(Deadline::After(0.05)));
  EXPECT_GE(Deadline::Clock::now() - begin, std::chrono::milliseconds(50));
  EXPECT_FALSE(c.b.closed);
  c.b.channel->SetHandlers(c.b.Handlers());
  ASSERT_TRUE(RunUntil(c.loop.get(), [&] { return c.b.closed.has_value(); }));
  EXPECT_EQ(c.b.frames.size(), 100u);
}

// Frames that come in one piece with the end of the greeting.
TEST(ChannelTest, FramesBehindTheGreetingWaitForAHandler) {
  Connection c;
  c.b.send_when_open = "early";
  c.a.channel->SetHandlers(c.a.Handlers(false));
  ASSERT_TRUE(c.Open());
  RunFor(c.loop.get(), 0.05);
  EXPECT_TRUE(c.a.frames.empty());
  c.a.channel->SetHandlers(c.a.Handlers());
  ASSERT_TRUE(RunUntil(c.loop.get(), [&] { return c.a.frames.size() == 1; }));
  EXPECT_EQ(c.a.frames[0].second, "early");
  EXPECT_FALSE(c.a.closed || c.b.closed);
}

TEST(ChannelTest, AHandlerMayFreeOrReplace) {
  Connection c;
  ASSERT_TRUE(c.Open());
  int calls = 0;
  Channel::Handlers handlers = c.b.Handlers();
  handlers.on_frame = [&, big = std::string(1000, 'y')](uint32_t kind,
                                                        Channel::Bytes) {
    ++calls;
    Channel::Handlers next = c.b.Handlers();
    next.on_frame = [&](uint32_t, Channel::Bytes) {
      ++calls;
      c.b.channel = nullptr;
    };
    c.b.channel->SetHandlers(next);
    EXPECT_EQ(kind, 1u);  // The function that runs is there still.
    EXPECT_EQ(big.size(), 1000u);
  };
  c.b.channel->SetHandlers(handlers);
  for (const uint32_t kind : {1u, 2u, 3u}) {
    ASSERT_OK(c.a.channel->Send(kind, {}));
  }
  ASSERT_TRUE(RunUntil(c.loop.get(), [&] { return c.a.closed.has_value(); }));
  EXPECT_EQ(calls, 2);
}

TEST(ChannelTest, AFrameThatIsTooLargeEndsTheConnection) {
  Connection c({.channel = {.max_frame_bytes = 1000}});
  ASSERT_TRUE(c.Open());
  ASSERT_OK(c.a.channel->Send(1, {BytesOf(std::string(1000, 'x'))}));
  ASSERT_OK(c.a.channel->Send(1, {BytesOf(std::string(1001, 'x'))}));
  ASSERT_TRUE(c.Closed());
  EXPECT_EQ(c.b.frames.size(), 1u);
  ExpectError(*c.b.closed, StatusCode::kInternal,
              {"sent a frame of 1001 bytes; at most 1000"});
}

TEST(ChannelTest, AnIdleConnectionStaysOpen) {
  Connection c({.channel = {.greeting_seconds = 0.3, .silence_seconds = 0.2}});
  ASSERT_TRUE(c.Open());
  const uint64_t before = c.a.channel->bytes_sent();
  RunFor(c.loop.get(), 0.7);
  EXPECT_FALSE(c.a.closed || c.b.closed);
  EXPECT_GT(c.a.channel->bytes_sent(), before);
  EXPECT_TRUE(c.b.frames.empty());
}

// An end that would wait for long sends heartbeats as its peer needs them.
TEST(ChannelTest, TheShorterSilenceIsThatOfBothEnds) {
  for (const bool listener_is_short : {false, true}) {
    Connection c({.channel = {.silence_seconds = listener_is_short ? 0.2 : 60}},
                 listener_is_short ? 60 : 0.2);
    ASSERT_TRUE(c.Open());
    RunFor(c.loop.get(), 0.5);
    EXPECT_FALSE(c.a.closed || c.b.closed);
  }
}

TEST(ChannelTest, AConnectionThatNobodyTakesIsAnError) {
  const auto loop = MakeLoop();
  End a;
  auto channel = Channel::Create(
      loop.get(), *ConnectTo(Loopback(FreePort())),
      {.identity = Share(MakeIdentity()), .role = Role::kMember, .peer = "x:1"},
      a.Handlers());
  ASSERT_OK(channel);
  ASSERT_TRUE(RunUntil(loop.get(), [&] { return a.closed.has_value(); }));
  ExpectError(*a.closed, StatusCode::kUnavailable,
              {"x:1: connecting failed: Connection refused"});
}

// A socket that TCP has connected to itself greets itself.
TEST(ChannelTest, ASocketIsNotItsOwnPeer) {
  const auto loop = MakeLoop();
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = Loopback();
  ASSERT_EQ(::bind(socket.get(), any.get(), any.size()), 0);
  const SocketAddress mine = *SocketAddress::OfSocket(socket.get());
  ASSERT_EQ(::connect(socket.get(), mine.get(), mine.size()), 0);
  End a;
  auto channel = Channel::Create(
      loop.get(), std::move(socket),
      {.identity = Share(MakeIdentity()), .role = Role::kMember}, a.Handlers());
  ASSERT_OK(channel);
  ASSERT_TRUE(RunUntil(loop.get(), [&] { return a.closed.has_value(); }));
  ExpectError(*a.closed, StatusCode::kUnavailable, {"nobody listens there"});
  EXPECT_EQ((*channel)->refusal(), Refusal::kNone);
}

// --- what differs ---

struct Difference {
  const char* name;
  std::function<void(Options*)> make;
  Refusal refusal;
  StatusCode code;
  const char* at_connecting;
  const char* at_listening;
};

const Difference kDifferences[] = {
    {"job", [](Options* o) { o->connecting.job_id = "other"; }, Refusal::kJob,
     StatusCode::kAlreadyExists, "another job", "another job"},
    {"secret",
     [](Options* o) { o->connecting.secret = *Secret::FromText("other"); },
     Refusal::kSecret, StatusCode::kUnauthenticated, "has another job secret",
     "has another job secret"},
    {"no secret", [](Options* o) { o->connecting.secret = Secret(); },
     Refusal::kSecret, StatusCode::kUnauthenticated,
     "has a job secret, and this host has none",
     "has no job secret, and this host has one"},
    {"restart", [](Options* o) { o->connecting.restart = 4; },
     Refusal::kRestart, StatusCode::kFailedPrecondition,
     "is of restart 3 of the job, this host of restart 4",
     "is of restart 4 of the job, this host of restart 3"},
    {"library", [](Options* o) { o->connecting.library_version = "1.3.0"; },
     Refusal::kLibrary, StatusCode::kFailedPrecondition,
     "has libshard 1.2.3, this host 1.3.0",
     "has libshard 1.3.0, this host 1.2.3"},
};

TEST(GreetingTest, BothEndsNameWhatDiffers) {
  for (const Difference& difference : kDifferences) {
    SCOPED_TRACE(difference.name);
    Options options;
    difference.make(&options);
    Connection c(options);
    ASSERT_TRUE(c.Closed());
    EXPECT_FALSE(c.a.opened || c.b.opened);
    EXPECT_EQ(c.a.channel->refusal(), difference.refusal);
    EXPECT_EQ(c.refusal, difference.refusal);
    ExpectError(*c.a.closed, difference.code, {difference.at_connecting});
    ExpectError(*c.b.closed, difference.code, {difference.at_listening});
  }
}

// --- strangers ---

TEST(GreetingTest, GarbageIsRefusedAtOnce) {
  Connection c;
  ASSERT_TRUE(c.Open());
  // Long enough that the end of the connection is not its deadline.
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(2000, '\0'),
        std::string("\x01\x02\0\0\0\0\0\0", 8), std::string(8, '\xFF')}) {
    c.b.closed.reset();
    Stranger stranger(c.listener->address());
    ASSERT_TRUE(stranger.Send(bytes));
    ASSERT_TRUE(RunUntil(
        c.loop.get(), [&] { return c.b.closed.has_value(); }, 5));
    EXPECT_EQ(c.refusal, Refusal::kStranger);
    ExpectError(*c.b.closed, StatusCode::kUnavailable,
                {"127.0.0.1:", "does not speak libshard's network protocol"});
  }
  EXPECT_EQ(c.listener->strangers(), 0u);
}

// A stranger that sends a byte now and then does not gain time by it.
TEST(GreetingTest, SlowAndSilentStrangersEndAtTheDeadline) {
  Connection c({.channel = {.greeting_seconds = 0.3}});
  ASSERT_TRUE(c.Open());
  Stranger silent(c.listener->address());
  Stranger slow(c.listener->address());
  std::string head("\x80\0\0\0\x01\xFF\xFF\xFF", 8);
  head.resize(136, 'x');
  size_t sent = 0;
  const Deadline deadline = Deadline::After(5);
  bool slow_ended = false;
  while (!deadline.Expired() && !(slow_ended = slow.Ended())) {
    if (sent < 128) slow.Send(head.substr(sent++, 1));
    RunFor(c.loop.get(), 0.01);
  }
  EXPECT_TRUE(slow_ended);
  EXPECT_TRUE(silent.Ended());
  EXPECT_LT(sent, 128u);
  ASSERT_TRUE(c.b.closed);
  ExpectError(*c.b.closed, StatusCode::kUnavailable,
              {"did not finish its greeting within 0.3 s"});
  EXPECT_FALSE(c.a.closed);
}

// The Head and the Proof of an honest end, recorded, and sent by another.
TEST(GreetingTest, AReplayedGreetingIsRefused) {
  const auto loop = MakeLoop();
  const auto identity = Share(MakeIdentity());
  auto listening = ListenAt(Loopback());
  ASSERT_OK(listening);
  End a;
  auto channel = Channel::Create(
      loop.get(), *ConnectTo(*SocketAddress::OfSocket(listening->get())),
      {.identity = identity, .role = Role::kMember}, a.Handlers());
  ASSERT_OK(channel);
  pollfd entry{listening->get(), POLLIN, 0};
  ASSERT_EQ(::poll(&entry, 1, 30'000), 1);
  Stranger recorder(Fd(::accept(listening->get(), nullptr, nullptr)));
  Handshake master(identity.get(), Role::kMaster);
  const uint32_t header[] = {sizeof(Handshake::Head), 0xFFFFFF01};
  std::string answer(reinterpret_cast<const char*>(header), sizeof(header));
  answer.append(reinterpret_cast<const char*>(&master.head()),
                sizeof(Handshake::Head));
  ASSERT_TRUE(recorder.Send(answer));
  std::string record;
  ASSERT_TRUE(RunUntil(loop.get(), [&] {
    char bytes[512];
    const ssize_t size =
        ::recv(recorder.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (size > 0) record.append(bytes, static_cast<size_t>(size));
    return record.size() == 136 + 40;
  }));
  // The record is a right one: the end that was recorded finds no fault in it.
  ASSERT_EQ(master.TakeHead(BytesOf(record).subspan(8, 128)), Refusal::kNone);
  ASSERT_EQ(master.TakeProof(BytesOf(record).subspan(144)), Refusal::kNone);

  Connection c;
  ASSERT_TRUE(c.Open());
  Stranger replay(c.listener->address());
  ASSERT_TRUE(replay.Send(record));
  ASSERT_TRUE(RunUntil(c.loop.get(), [&] { return c.b.closed.has_value(); }));
  EXPECT_EQ(c.refusal, Refusal::kSecret);
}

TEST(ListenerTest, AFloodIsBoundedAndTheOldestGoes) {
  Connection c;
  ASSERT_TRUE(c.Open());
  const int files = testing::CountOpenFiles();
  constexpr size_t kFlood = 2000;
  std::vector<std::unique_ptr<Stranger>> flood;
  for (size_t i = 0; i < kFlood; ++i) {
    flood.push_back(std::make_unique<Stranger>(c.listener->address()));
    ASSERT_TRUE(flood.back()->connected());
    ASSERT_OK(c.loop->RunOnce(Deadline::After(0)));
  }
  ASSERT_TRUE(RunUntil(c.loop.get(),
                       [&] { return c.listener->refused() == kFlood - 1024; }));
  EXPECT_EQ(c.listener->strangers(), 1024u);
  EXPECT_LE(testing::CountOpenFiles(), files + int{kFlood} + 1024);
  EXPECT_TRUE(flood.front()->Ended());
  EXPECT_FALSE(flood.back()->Ended());
  // An honest end is let in.
  End late;
  auto channel = Channel::Create(
      c.loop.get(), *ConnectTo(c.listener->address()),
      {.identity = Share(MakeIdentity()), .role = Role::kMember},
      late.Handlers());
  ASSERT_OK(channel);
  EXPECT_TRUE(RunUntil(c.loop.get(), [&] { return late.opened; }));
}

// More honest ends at once than may be unauthenticated: each has its time.
TEST(ListenerTest, HonestEndsDoNotDriveEachOtherOut) {
  const auto loop = MakeLoop();
  std::vector<std::unique_ptr<Channel>> opened;
  const auto identity = Share(MakeIdentity());
  auto listener = Listener::Create(
      loop.get(), *ListenAt(Loopback()),
      {.channel = {.identity = identity, .role = Role::kMaster},
       .max_strangers = 4},
      [&](std::unique_ptr<Channel> channel) {
        opened.push_back(std::move(channel));
      });
  ASSERT_OK(listener);
  std::vector<std::unique_ptr<Channel>> honest;
  for (int i = 0; i < 200; ++i) {
    auto channel =
        Channel::Create(loop.get(), *ConnectTo((*listener)->address()),
                        {.identity = identity, .role = Role::kMember}, {});
    ASSERT_OK(channel);
    honest.push_back(*std::move(channel));
  }
  EXPECT_TRUE(RunUntil(loop.get(), [&] { return opened.size() == 200; }));
  EXPECT_EQ((*listener)->refused(), 0u);
}

TEST(ListenerTest, StrangersAreLoggedRarely) {
  const auto loop = MakeLoop();
  std::vector<std::string> lines;
  auto listener = Listener::Create(
      loop.get(), *ListenAt(Loopback()),
      {.channel = {.identity = Share(MakeIdentity()), .role = Role::kMaster},
       .warn = [&](const std::string& line) { lines.push_back(line); }},
      [](std::unique_ptr<Channel>) { FAIL(); });
  ASSERT_OK(listener);
  for (uint64_t i = 1; i <= 100; ++i) {
    Stranger stranger((*listener)->address());
    ASSERT_TRUE(stranger.Send("GET / HTTP/1.1\r\n\r\n"));
    ASSERT_TRUE(
        RunUntil(loop.get(), [&] { return (*listener)->refused() == i; }));
  }
  ASSERT_EQ(lines.size(), 7u);  // 1, 2, 4, ... 64.
  EXPECT_NE(lines[0].find(": refused 1 connection: 127.0.0.1:"),
            std::string::npos)
      << lines[0];
  EXPECT_NE(lines[6].find(": refused 64 connections, the last: "),
            std::string::npos)
      << lines[6];
}

TEST(ReceiveBufferTest, GrowsWhileReadsFillItAndShrinks) {
  ReceiveBuffer buffer;
  EXPECT_EQ(buffer.Room(8).size(), ReceiveBuffer::kSmallest);
  buffer.Commit(100);
  buffer.Consume(60);
  EXPECT_EQ(buffer.data().size(), 40u);
  EXPECT_EQ(buffer.Room(8).size(), ReceiveBuffer::kSmallest - 40);
  for (int i = 0; i < 20; ++i) {
    const auto room = buffer.Room(8);
    std::fill(room.begin(), room.end(), std::byte{static_cast<uint8_t>(i)});
    buffer.Commit(room.size());
    buffer.Consume(buffer.data().size() - 1);
    ASSERT_EQ(buffer.data()[0], std::byte{static_cast<uint8_t>(i)});
  }
  EXPECT_EQ(buffer.capacity(), ReceiveBuffer::kLargestIdle);
  buffer.Room(10'000'000);
  EXPECT_EQ(buffer.data()[0], std::byte{19});
  buffer.Commit(1);
  buffer.Consume(2);
  EXPECT_EQ(buffer.capacity(), 0u);
}

// --- the ends of processes ---

// Runs two processes with a connection; `end` ends that of rank 1. Expects rank
// 0 to notice within `seconds`.
void ExpectNoticed(const std::function<void()>& end, double silence,
                   double seconds, const char* why) {
  const uint16_t port = FreePort();
  const auto results = testing::RunRanks(2, [&](const testing::Rank& rank) {
    const auto loop = MakeLoop();
    End mine;
    ChannelOptions options{.identity = Share(MakeIdentity()),
                           .role = Role::kMaster,
                           .silence_seconds = silence};
    if (rank.rank() == 1) {
      options.role = Role::kMember;
      const Deadline deadline = Deadline::After(30);
      while (!mine.opened) {
        ASSERT_FALSE(deadline.Expired());
        mine.closed.reset();
        auto channel = Channel::Create(loop.get(), *ConnectTo(Loopback(port)),
                                       options, mine.Handlers());
        ASSERT_OK(channel);
        mine.channel = *std::move(channel);
        RunUntil(loop.get(), [&] { return mine.opened || mine.closed; });
      }
      const pid_t pid = ::getpid();
      ASSERT_OK(mine.channel->Send(9, {std::as_bytes(std::span(&pid, 1))}));
      end();
      return;
    }
    auto listener = Listener::Create(
        loop.get(), *ListenAt(Loopback(port)), {.channel = options},
        [&](std::unique_ptr<Channel> channel) {
          mine.channel = std::move(channel);
          mine.channel->SetHandlers(mine.Handlers());
        });
    ASSERT_OK(listener);
    ASSERT_TRUE(RunUntil(loop.get(), [&] { return !mine.frames.empty(); }));
    const auto begin = Deadline::Clock::now();
    pid_t pid = 0;
    std::memcpy(&pid, mine.frames[0].second.data(), sizeof(pid));
    ASSERT_TRUE(RunUntil(loop.get(), [&] { return mine.closed.has_value(); }));
    const double took =
        std::chrono::duration<double>(Deadline::Clock::now() - begin).count();
    ::kill(pid, SIGKILL);
    EXPECT_LT(took, seconds);
    ExpectError(*mine.closed, StatusCode::kUnavailable, {why});
  });
  EXPECT_TRUE(results[0].passed()) << results[0].ToString();
}

TEST(DeathTest, AKilledProcessIsNoticedAtOnce) {
  ExpectNoticed([] { ::raise(SIGKILL); }, 30, 5, "closed the connection");
}

TEST(DeathTest, AStoppedProcessIsNoticedAfterTheBound) {
  ExpectNoticed([] { ::raise(SIGSTOP); }, 0.5, 5, "sent nothing for 0.5 s");
}

}  // namespace
}  // namespace shard::network::channel_test
