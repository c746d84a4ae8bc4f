// SPDX-License-Identifier: Apache-2.0
//
// The helper's end of the connections to its ranks, in this process: strangers,
// garbage, limits, and what the listener is told.

#include "core/comm/network/helper/local_end.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstring>
#include <thread>

#include "core/comm/network/helper/loop.h"
#include "core/comm/network/meet_helper.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/comm/network/local_helper.h"

namespace shard::testing::local_end_test {
namespace {

using network::Goodbye;
using network::Greeting;
using network::Hello;
using network::LocalEnd;
using network::Loop;
using network::MakePacket;
using network::Parse;
using network::Release;
using network::Verdict;
using network::WireRegionRequest;

// Writes down what it is told.
class Diary : public LocalEnd::Listener {
 public:
  explicit Diary(Loop* loop) : loop_(loop) {}

  void OnRank(const LocalEnd::Rank& rank) override {
    Write(StrCat("rank ", rank.rank, " of ", rank.world_size, " '",
                 rank.options, "'"));
    last = rank;
  }
  void OnGone(int rank, LocalEnd::End how, const Status& why) override {
    Write(StrCat(rank, how == LocalEnd::End::kLeft ? " left" : " died"));
    EXPECT_EQ(why.code(), StatusCode::kRankLost);
    EXPECT_EQ(why.rank(), rank);
  }
  void OnRefused(const Status& why) override {
    Write(StrCat("refused: ", why.message()));
  }
  void OnRegionRequest(int rank, const LocalEnd::Request& request) override {
    Write(StrCat(rank, " asks for ", request.key, " ", request.bytes, " ",
                 request.layout.block));
    number = request.number;
  }
  void OnRelease(int rank, std::string_view key) override {
    Write(StrCat(rank, " releases ", key));
  }
  void OnEmpty() override { Write("empty"); }
  void OnWarning(std::string_view text) override {
    Write(StrCat("warning: ", text));
  }

  // Runs the loop until a line begins with `text`, and forgets all up to it.
  ::testing::AssertionResult Hears(const std::string& text) {
    const Deadline deadline = Soon();
    for (;;) {
      for (size_t i = 0; i < lines_.size(); ++i) {
        if (lines_[i].compare(0, text.size(), text) != 0) continue;
        lines_.erase(lines_.begin(),
                     lines_.begin() + static_cast<ptrdiff_t>(i) + 1);
        return ::testing::AssertionSuccess();
      }
      if (deadline.Expired()) break;
      EXPECT_OK(loop_->RunOnce(Deadline::After(0.05)));
    }
    auto failure = ::testing::AssertionFailure() << "no '" << text << "' in:";
    for (const std::string& line : lines_) failure << "\n  " << line;
    return failure;
  }

  // Runs the loop for a moment. Returns whether nothing was heard.
  ::testing::AssertionResult HearsNothing() {
    for (int i = 0; i < 5; ++i) {
      EXPECT_OK(loop_->RunOnce(Deadline::After(0.01)));
    }
    if (lines_.empty()) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << lines_[0];
  }

  std::optional<LocalEnd::Rank> last;
  uint64_t number = 0;

 private:
  void Write(std::string line) { lines_.push_back(std::move(line)); }

  Loop* const loop_;
  std::vector<std::string> lines_;
};

class LocalEndTest : public ::testing::Test {
 protected:
  // Longer than a test, so that no stranger is closed for its silence.
  explicit LocalEndTest(double hello_seconds = 1000) {
    auto loop = Loop::Create();
    EXPECT_OK(loop.status());
    loop_ = *std::move(loop);
    diary_ = std::make_unique<Diary>(loop_.get());
    const network::LocalAddress where = network::LocalAddressOf(key_);
    Fd listening(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(
        ::bind(listening.get(),
               reinterpret_cast<const sockaddr*>(&where.address), where.size),
        0);
    EXPECT_EQ(::listen(listening.get(), 4096), 0);
    // So that the end is not empty before the test begins.
    first_ = ConnectTo(key_);
    auto end = LocalEnd::Create(std::move(listening), loop_.get(), diary_.get(),
                                hello_seconds);
    EXPECT_OK(end.status());
    end_ = *std::move(end);
  }

  // A packet of the helper, other than the greeting. Runs the loop.
  std::string Receive(const Fd& fd) {
    const Deadline deadline = Soon();
    while (!deadline.Expired()) {
      const auto packet = shm::ReceiveNow(fd.get());
      if (packet.ok() && Parse<Greeting>(packet->bytes)) continue;
      if (packet.ok()) return packet->bytes;
      if (packet.status().code() == StatusCode::kUnavailable) return "closed";
      EXPECT_OK(loop_->RunOnce(Deadline::After(0.01)));
    }
    return "nothing";
  }

  Status ReceiveVerdict(const Fd& fd) {
    const auto verdict = Parse<Verdict>(Receive(fd));
    return verdict ? network::StatusOf(*verdict) : Status();
  }

  static Hello HelloOf(int rank, int world_size) {
    Hello hello = MakePacket<Hello>();
    hello.rank = rank;
    hello.world_size = world_size;
    hello.remaining_nanos = 5'000'000'000;
    hello.options.Set("a=1");
    return hello;
  }

  template <typename T>
  static void Send(const Fd& fd, const T& packet,
                   const std::vector<int>& fds = {}) {
    EXPECT_OK(shm::Send(fd.get(), &packet, sizeof(packet), fds, Soon()));
  }

  Fd Join(int rank, int world_size) {
    Fd fd = ConnectTo(key_);
    EXPECT_TRUE(fd.valid());
    Send(fd, HelloOf(rank, world_size));
    EXPECT_TRUE(diary_->Hears(StrCat("rank ", rank, " of ", world_size)));
    return fd;
  }

  const std::string key_ = UniqueName();
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Diary> diary_;
  Fd first_;
  std::unique_ptr<LocalEnd> end_;
};

TEST_F(LocalEndTest, RanksComeAskAndLeave) {
  Fd rank = Join(1, 2);
  EXPECT_EQ(diary_->last->process, ::getpid());
  EXPECT_EQ(diary_->last->options, "a=1");
  EXPECT_GT(diary_->last->deadline.Remaining().count(), 1'000'000'000);
  EXPECT_LE(diary_->last->deadline.Remaining().count(), 5'000'000'000);
  EXPECT_EQ(end_->ranks(), std::vector<int>{1});

  WireRegionRequest request = MakePacket<WireRegionRequest>();
  request.number = 7;
  request.bytes = 100;
  request.key.Set("key");
  request.layout.block.Set("work");
  Send(rank, request);
  EXPECT_TRUE(diary_->Hears("1 asks for key 100 work"));
  end_->RefuseRegion(1, diary_->number, InvalidArgument("no"));
  const auto refused = Parse<Verdict>(Receive(rank));
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->number, 7u);
  end_->SendRegion(1, 8, 100, rank.get());
  const auto region = Parse<network::Region>(Receive(rank));
  ASSERT_TRUE(region.has_value());
  EXPECT_EQ(region->number, 8u);

  Release release = MakePacket<Release>();
  release.key.Set("key");
  Send(rank, release);
  EXPECT_TRUE(diary_->Hears("1 releases key"));
  Send(rank, MakePacket<Goodbye>());
  rank.Reset();
  EXPECT_TRUE(diary_->Hears("1 left"));
  EXPECT_TRUE(end_->ranks().empty());
  EXPECT_TRUE(diary_->HearsNothing());  // `first_` may become a rank.
  first_.Reset();
  EXPECT_TRUE(diary_->Hears("empty"));
  EXPECT_FALSE(ConnectTo(key_).valid());
}

// The connection of a rank says goodbye; that of a process that dies does not.
TEST_F(LocalEndTest, AConnectionSaysGoodbye) {
  std::make_unique<network::HelperConnection>(Join(0, 2), 0, ::getpid(),
                                              network::World(), nullptr, Fd())
      .reset();
  EXPECT_TRUE(diary_->Hears("0 left"));
}

// 100 hosts in several packets, which wait for a rank that does not read.
TEST_F(LocalEndTest, TheTableOfManyHostsComesWhole) {
  const Fd rank = Join(0, 512);
  network::World world = {.world_size = 512, .first_rank = 0, .ranks = 5};
  for (int h = 0; h < 100; ++h) {
    world.hosts.push_back({StrCat("host-", h, std::string(70, '.')), 5 * h, 5});
  }
  constexpr int kTimes = 50;  // More than a socket holds.
  for (int i = 0; i < kTimes; ++i)
    end_->SendWelcome(0, world, rank.get(), rank.get());
  for (int i = 0; i < kTimes; ++i) {
    const auto welcome = Parse<network::Welcome>(Receive(rank));
    ASSERT_TRUE(welcome.has_value()) << i;
    EXPECT_EQ(welcome->hosts, 100);
    for (uint32_t h = 0; h < 100;) {
      const auto hosts = Parse<network::WireHosts>(Receive(rank));
      ASSERT_TRUE(hosts.has_value()) << i << " " << h;
      ASSERT_EQ(hosts->first, h);
      for (uint32_t j = 0; j < hosts->count; ++j, ++h) {
        EXPECT_EQ(hosts->hosts[j].first_rank, static_cast<int>(5 * h));
        EXPECT_EQ(hosts->hosts[j].name.Get(),
                  world.hosts[h].name.substr(0, 64));
      }
    }
    EXPECT_TRUE(Parse<network::WireBell>(Receive(rank)).has_value()) << i;
  }
}

TEST_F(LocalEndTest, AnEndWithoutGoodbyeIsADeath) {
  Join(0, 2).Reset();
  EXPECT_TRUE(diary_->Hears("0 died"));
}

// A child has the connection too, so that only the pidfd tells the end.
TEST_F(LocalEndTest, APidfdTellsTheEndOfAProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::poll(nullptr, 0, 60000);
    ::_exit(0);
  }
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  ASSERT_GE(pidfd, 0);
  const Fd rank = ConnectTo(key_);
  Send(rank, HelloOf(0, 2), {pidfd});
  ::close(pidfd);
  EXPECT_TRUE(diary_->Hears("rank 0 of 2"));
  EXPECT_TRUE(diary_->HearsNothing());
  ::kill(child, SIGKILL);
  EXPECT_TRUE(diary_->Hears("0 died"));
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(Receive(rank), "closed");
}

// A descriptor that is no pidfd does no harm.
TEST_F(LocalEndTest, AnyDescriptorMayComeForAPidfd) {
  const Fd file(::open("/etc/passwd", O_RDONLY | O_CLOEXEC));
  Fd rank = ConnectTo(key_);
  Send(rank, HelloOf(0, 2), {file.get()});
  EXPECT_TRUE(diary_->Hears("rank 0 of 2"));
  EXPECT_TRUE(diary_->HearsNothing());
  rank.Reset();
  EXPECT_TRUE(diary_->Hears("0 died"));
}

TEST_F(LocalEndTest, OthersAreRefusedByName) {
  const Fd rank = Join(1, 3);
  const auto refuse = [&](const Hello& hello, StatusCode code,
                          std::initializer_list<std::string_view> parts) {
    const Fd fd = ConnectTo(key_);
    Send(fd, hello);
    EXPECT_TRUE(diary_->Hears("refused: "));
    ExpectError(ReceiveVerdict(fd), code, parts);
    EXPECT_EQ(Receive(fd), "closed");
  };
  refuse(HelloOf(1, 3), StatusCode::kAlreadyExists, {"say they are rank 1"});
  refuse(HelloOf(0, 4), StatusCode::kInvalidArgument,
         {"rank 0 says world size 4, rank 1 says 3"});
  refuse(HelloOf(3, 3), StatusCode::kInvalidArgument, {"rank 3 of 3"});
  refuse(HelloOf(0, -1), StatusCode::kInvalidArgument, {"rank 0 of -1"});
  Hello other = HelloOf(0, 3);
  other.options.Set("a=2");
  refuse(other, StatusCode::kInvalidArgument, {"'a=2'", "'a=1'"});
  other.header.version = 99;
  refuse(other, StatusCode::kFailedPrecondition, {"speaks version 99"});
  EXPECT_EQ(end_->ranks(), std::vector<int>{1});
}

// A process in place of one whose end is not seen yet is no duplicate.
TEST_F(LocalEndTest, ARankMayComeAgain) {
  Fd rank = Join(0, 2);
  const Fd again = ConnectTo(key_);
  EXPECT_OK(loop_->RunOnce(Deadline::After(0.1)));  // Accepts it.
  Send(again, HelloOf(0, 2));
  rank.Reset();
  EXPECT_TRUE(diary_->Hears("0 died"));
  EXPECT_TRUE(diary_->Hears("rank 0 of 2"));
}

TEST_F(LocalEndTest, AMeetingThatFailsIsToldToAllThatComeLater) {
  const Fd rank = Join(0, 3);
  end_->FailMeeting(RankLost(2, "rank 2 died"));
  end_->FailMeeting(InvalidArgument("a later error"));
  const Status told = ReceiveVerdict(rank);
  ExpectError(told, StatusCode::kRankLost, {"rank 2 died"});
  EXPECT_EQ(told.rank(), 2);
  const Fd late = ConnectTo(key_);
  Send(late, HelloOf(1, 3));
  ExpectError(ReceiveVerdict(late), StatusCode::kRankLost, {"rank 2 died"});
  EXPECT_EQ(Receive(late), "closed");
  // Once more: the meeting is over.
  const Fd again = ConnectTo(key_);
  Send(again, HelloOf(1, 3));
  ExpectError(ReceiveVerdict(again), StatusCode::kUnavailable, {});
  EXPECT_FALSE(ConnectTo(key_).valid());
}

// Once more: a rank that was lost itself begins another meeting, too.
TEST_F(LocalEndTest, ARankThatWasLostComesAgain) {
  Join(0, 3).Reset();
  EXPECT_TRUE(diary_->Hears("0 died"));
  end_->FailMeeting(RankLost(0, "rank 0 died"));
  const Fd late = ConnectTo(key_);
  Send(late, HelloOf(1, 3));
  ExpectError(ReceiveVerdict(late), StatusCode::kRankLost, {"rank 0 died"});
  const Fd again = ConnectTo(key_);
  Send(again, HelloOf(0, 3));
  ExpectError(ReceiveVerdict(again), StatusCode::kUnavailable, {});
}

// A failed meeting without ranks waits half a second for late ones.
TEST_F(LocalEndTest, LateRanksAreToldAlsoWhenAllOthersHaveLeft) {
  Fd rank = Join(0, 3);
  end_->FailMeeting(RankLost(2, "rank 2 died"));
  rank.Reset();
  first_.Reset();
  EXPECT_TRUE(diary_->Hears("0 died"));
  EXPECT_TRUE(diary_->HearsNothing());
  const Fd late = ConnectTo(key_);
  ASSERT_TRUE(late.valid());
  Send(late, HelloOf(1, 3));
  ExpectError(ReceiveVerdict(late), StatusCode::kRankLost, {"rank 2 died"});
  EXPECT_TRUE(diary_->Hears("empty"));
}

TEST_F(LocalEndTest, AWelcomeEndsTheMeeting) {
  const Fd rank = Join(0, 1);
  const Fd late = ConnectTo(key_);
  EXPECT_OK(loop_->RunOnce(Deadline::After(0.1)));  // Accepts it.
  end_->SendWelcome(0, {.world_size = 1, .hosts = {{"host", 0, 1}}}, rank.get(),
                    rank.get());
  EXPECT_FALSE(ConnectTo(key_).valid());
  Send(late, HelloOf(0, 1));
  ExpectError(ReceiveVerdict(late), StatusCode::kUnavailable, {});
  EXPECT_TRUE(diary_->HearsNothing());
}

TEST_F(LocalEndTest, GarbageDoesNotDisturb) {
  const Fd rank = Join(0, 2);
  for (const size_t size : {1, 15, 16, 24, 2000, 4000, 9000}) {
    const Fd fd = ConnectTo(key_);
    const std::string garbage(size, '\xA5');
    EXPECT_OK(shm::Send(fd.get(), garbage.data(), size, {0, 1}, Soon()));
    EXPECT_EQ(Receive(fd), "closed");
  }
  // The wrong magic; the right one, and the wrong kind or size.
  Hello stranger = HelloOf(1, 2);
  ++stranger.header.magic;
  const Fd other = ConnectTo(key_);
  Send(other, stranger);
  EXPECT_EQ(Receive(other), "closed");
  const Fd fd = ConnectTo(key_);
  Send(fd, MakePacket<WireRegionRequest>());
  EXPECT_EQ(Receive(fd), "closed");
  const Fd empty = ConnectTo(key_);
  Send(empty, network::LocalHeader::Of(Hello::kKind));
  ExpectError(ReceiveVerdict(empty), StatusCode::kFailedPrecondition, {});
  EXPECT_TRUE(diary_->Hears("warning: ignored 8 connections"));
  EXPECT_EQ(end_->ranks(), std::vector<int>{0});

  // A rank that sends garbage is none any more.
  Hello hello = HelloOf(0, 2);
  Send(rank, hello);
  EXPECT_TRUE(diary_->Hears("warning: rank 0 sent a wrong packet"));
  EXPECT_TRUE(diary_->Hears("0 died"));
  EXPECT_EQ(Receive(rank), "closed");
}

TEST_F(LocalEndTest, AnotherUserIsIgnored) {
  const pid_t child = ::fork();
  if (child == 0) {
    const network::LocalAddress where = network::LocalAddressOf(key_);
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    const Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&where.address),
                  where.size) != 0) {
      ::_exit(3);
    }
    // Closed without a word.
    ::_exit(shm::Receive(fd.get(), Soon()).status().code() ==
                    StatusCode::kUnavailable
                ? 0
                : 1);
  }
  int status = 0;
  EXPECT_TRUE(ComesTrue([&] {
    EXPECT_OK(loop_->RunOnce(Deadline::After(0.01)));
    return ::waitpid(child, &status, WNOHANG) == child;
  }));
  if (WEXITSTATUS(status) == 2) {
    GTEST_SKIP() << "this sandbox has no other user";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(diary_->Hears("warning: ignored 1 connection: process "));
}

// The lengths of texts are a peer's, and may be any.
TEST_F(LocalEndTest, LengthsOfTextsAreNotTrusted) {
  Hello hello = HelloOf(0, 2);
  std::memset(hello.options.text, 'x', sizeof(hello.options.text));
  hello.options.bytes = 0xFFFFFFFF;
  const Fd rank = ConnectTo(key_);
  Send(rank, hello);
  EXPECT_TRUE(diary_->Hears("rank 0 of 2 'xxx"));
  EXPECT_EQ(diary_->last->options.size(), network::kMaxOptionsBytes);
  WireRegionRequest request = MakePacket<WireRegionRequest>();
  request.bytes = 1;
  request.key.bytes = 0x80000000;
  Send(rank, request);
  EXPECT_TRUE(diary_->Hears("0 asks for "));
}

TEST_F(LocalEndTest, TheOldestStrangerMakesPlaceForTheNewest) {
  std::vector<Fd> strangers;
  for (size_t i = 0; i < LocalEnd::kMaxStrangers + 10; ++i) {
    strangers.push_back(ConnectTo(key_));
    ASSERT_TRUE(strangers.back().valid()) << i;
    if (i % 100 == 0) {
      EXPECT_OK(loop_->RunOnce(Deadline::After(0)));
    }
  }
  EXPECT_TRUE(diary_->Hears("warning: ignored 8 connections"));
  EXPECT_EQ(Receive(first_), "closed");
  EXPECT_EQ(Receive(strangers[8]), "closed");
  const Fd rank = Join(0, 2);
  Send(strangers.back(), HelloOf(1, 2));
  EXPECT_TRUE(diary_->Hears("rank 1 of 2"));
}

// With no descriptor left, ranks wait until there is one.
TEST_F(LocalEndTest, NoDescriptorIsLeft) {
  const Fd first = Join(3, 4);  // Has no need of the event.
  std::vector<Fd> ranks;
  for (int r = 0; r < 3; ++r) ranks.push_back(ConnectTo(key_));
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low = {static_cast<rlim_t>(ranks[0].get()), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_TRUE(diary_->Hears("warning: accepting the connection of a rank"));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  for (int r = 0; r < 3; ++r) {
    Send(ranks[static_cast<size_t>(r)], HelloOf(r, 4));
    EXPECT_TRUE(diary_->Hears(StrCat("rank ", r, " of 4")));
  }
}

class SilenceTest : public LocalEndTest {
 protected:
  SilenceTest() : LocalEndTest(0.3) {}
};

// A stranger that says nothing keeps the helper for some time, and no longer.
TEST_F(SilenceTest, ASilentStrangerIsClosed) {
  const auto begin = Deadline::Clock::now();
  EXPECT_TRUE(diary_->Hears("warning: ignored 1 connection"));
  EXPECT_TRUE(diary_->Hears("empty"));
  EXPECT_GT(Deadline::Clock::now() - begin, std::chrono::milliseconds(250));
  EXPECT_EQ(Receive(first_), "closed");
}

// Each of them has the time from its own coming on.
TEST_F(SilenceTest, EachStrangerHasItsTime) {
  EXPECT_OK(loop_->RunOnce(Deadline::After(0.1)));
  ::poll(nullptr, 0, 150);
  const Fd second = ConnectTo(key_);
  EXPECT_TRUE(diary_->Hears("warning: ignored 1 connection"));
  Send(second, HelloOf(0, 2));
  EXPECT_TRUE(diary_->Hears("rank 0 of 2"));
}

TEST(LocalEndCreateTest, OtherDescriptorsAreRefused) {
  auto loop = Loop::Create();
  ASSERT_OK(loop.status());
  Diary diary(loop->get());
  ExpectError(
      LocalEnd::Create(Fd(::open("/dev/null", O_RDONLY)), loop->get(), &diary),
      StatusCode::kInvalidArgument, {"no listening socket"});
  ExpectError(LocalEnd::Create(Fd(::socket(AF_UNIX, SOCK_SEQPACKET, 0)),
                               loop->get(), &diary),
              StatusCode::kInvalidArgument, {"no listening socket"});
}

}  // namespace
}  // namespace shard::testing::local_end_test
