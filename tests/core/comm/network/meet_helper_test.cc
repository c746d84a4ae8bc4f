// SPDX-License-Identifier: Apache-2.0
//
// Ranks of one host meet their helper, a real program, and the error that every
// rank gets when they cannot meet.

#include "core/comm/network/meet_helper.h"

#include <sys/stat.h>

#include <array>
#include <thread>

#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/comm/network/local_helper.h"
#include "tests/ranks/shared.h"

namespace shard::testing::meet_helper_test {
namespace {

using network::HelperConnection;
using network::MeetHelper;
using network::MeetOptions;

// The rank and world size that a process claims.
struct Claim {
  int rank;
  int world_size;
  std::string options = "";
};

// Meets with one process per claim. The reports are "CODE: message".
std::vector<RankResult> Meet(const std::vector<Claim>& claims,
                             double seconds = 30) {
  const std::string key = UniqueName();
  return RunRanks(static_cast<int>(claims.size()), [&](const Rank& rank) {
    const Claim& claim = claims[static_cast<size_t>(rank.rank())];
    MeetOptions options =
        OptionsFor(key, claim.rank, claim.world_size, seconds);
    options.options += claim.options;
    const auto met = MeetHelper(options);
    rank.Report(met.status().ToString());
  });
}

void ExpectAllTold(const std::vector<RankResult>& results,
                   const std::string& part) {
  ExpectAllPassed(results);
  for (const RankResult& result : results) {
    EXPECT_TRUE(Contains(result.report, part)) << result.ToString();
  }
}

// Arrives in the first round of the block, and waits for the other ranks.
void MeetInBlock(const HelperConnection& met) {
  direct::RankSlot* const slots = met.block()->slots();
  slots[met.rank()].arrived = 1;
  EXPECT_TRUE(ComesTrue([&] {
    for (int r = 0; r < met.world().world_size; ++r) {
      if (slots[r].arrived != 1) return false;
    }
    return true;
  }));
}

TEST(MeetHelperTest, ManyMeetAtOnceAndLeaveNothing) {
  for (const int world_size : {1, 2, 8, 64}) {
    if (kSanitized && world_size > 8) continue;  // Fills the memory of shadows.
    const std::string key = UniqueName();
    const auto results = RunRanks(world_size, [&](const Rank& rank) {
      const int before = CountOpenFiles();
      {
        const auto met = MeetHelper(OptionsFor(key, rank.rank(), world_size));
        ASSERT_TRUE(met.ok()) << met.status().ToString();
        const network::World& world = (*met)->world();
        EXPECT_EQ(world.world_size, world_size);
        EXPECT_EQ(world.first_rank, 0);
        EXPECT_EQ(world.ranks, world_size);
        ASSERT_EQ(world.hosts.size(), 1u);
        EXPECT_EQ(world.hosts[0].ranks, world_size);
        EXPECT_EQ(world.hosts[0].name,
                  ReadProc("/proc/sys/kernel/hostname")
                      .substr(0, world.hosts[0].name.size()));
        EXPECT_FALSE(world.hosts[0].name.empty());
        MeetInBlock(**met);
        EXPECT_FALSE((*met)->HelperIsGone());
        rank.Report(StrCat((*met)->helper()));
      }
      EXPECT_EQ(CountOpenFiles(), before);
    });
    ExpectAllPassed(results);
    for (const RankResult& result : results) {
      EXPECT_EQ(result.report, results[0].report) << "two helpers";
    }
    const auto helper = ParseInt(results[0].report);
    ASSERT_TRUE(helper.has_value());
    EXPECT_TRUE(EndsSoon(static_cast<pid_t>(*helper)));
  }
}

TEST(MeetHelperTest, TheSameKeyAgainAtOnce) {
  const std::string key = UniqueName();
  ExpectAllPassed(RunRanks(3, [&](const Rank& rank) {
    for (int i = 0; i < 20; ++i) {
      const auto met = MeetHelper(OptionsFor(key, rank.rank(), 3));
      ASSERT_TRUE(met.ok()) << met.status().ToString();
      MeetInBlock(**met);
    }
  }));
}

// Ranks that meet once more after an error are not told of it again.
TEST(MeetHelperTest, TheSameKeyAgainAfterAnError) {
  const std::string key = UniqueName();
  const Shared<std::atomic<int>> told;
  ExpectAllPassed(RunRanks(3, [&](const Rank& rank) {
    for (int i = 0; i < 10; ++i) {
      const int wrong = rank.rank() == 2 ? 4 : 3;
      ExpectError(MeetHelper(OptionsFor(key, rank.rank(), wrong)),
                  StatusCode::kInvalidArgument, {"says world size"});
      // A rank that comes late must not meet those that are a round ahead.
      ++*told;
      EXPECT_TRUE(ComesTrue([&] { return *told >= 3 * (i + 1); }));
      const auto met = MeetHelper(OptionsFor(key, rank.rank(), 3));
      ASSERT_TRUE(met.ok()) << met.status().ToString();
      MeetInBlock(**met);
    }
  }));
}

TEST(MeetHelperTest, MissingRanksAreNamedOnAll) {
  const auto results = Meet({{0, 4}, {2, 4}}, 0.5);
  ExpectAllTold(results, "DEADLINE_EXCEEDED");
  ExpectAllTold(results, "2 of 4 ranks did not come to tcp:");
  ExpectAllTold(results, "missing [1, 3]");
}

TEST(MeetHelperTest, ADuplicateRankIsAnErrorOnAllRanks) {
  const auto results = Meet({{0, 3}, {1, 3}, {1, 3}});
  ExpectAllTold(results, "ALREADY_EXISTS: two processes say they are rank 1");
}

TEST(MeetHelperTest, DifferentWorldSizesAreErrorsOnAllRanks) {
  const auto results = Meet({{0, 2}, {1, 3}});
  ExpectAllTold(results, "INVALID_ARGUMENT: rank ");
  ExpectAllTold(results, " says world size ");
}

TEST(MeetHelperTest, DifferentOptionsAreErrorsOnAllRanks) {
  const auto results = Meet({{0, 2, "&restart=1"}, {1, 2, "&restart=2"}});
  ExpectAllTold(results, "INVALID_ARGUMENT: rank ");
  ExpectAllTold(results, "all ranks must open the same URL");
}

TEST(MeetHelperTest, RanksAreBelowTheWorldSize) {
  ExpectAllTold(Meet({{5, 2}}), "says it is rank 5 of 2");
  ExpectAllTold(Meet({{-1, 2}}), "says it is rank -1 of 2");
  ExpectAllTold(Meet({{0, 513}}), "at most 512 ranks");
}

TEST(MeetHelperTest, TooLongTextsAreRefused) {
  // The text ends with the id of the job. Unique names differ by some bytes.
  const size_t room = 2048 - OptionsFor(UniqueName(), 0, 1).options.size();
  ExpectAllTold(Meet({{0, 1, std::string(room - 8, 'o')}}), "OK");
  ExpectAllTold(Meet({{0, 1, std::string(room + 8, 'o')}}), "INVALID_ARGUMENT");
}

// --- the program ---

TEST(MeetHelperTest, AMissingProgramIsNamed) {
  const TempFolder folder;
  WriteText(folder / "text", "no program");
  WriteText(folder / "binary", std::string(100, '\0'));
  ASSERT_EQ(::chmod((folder / "binary").c_str(), 0755), 0);
  for (const std::string& path : {folder / "missing", folder / "text",
                                  folder / "binary", folder.path()}) {
    const int before = CountOpenFiles();
    MeetOptions options = OptionsFor(UniqueName(), 0, 1);
    options.program = path;
    const auto met = MeetHelper(options);
    ExpectError(met, StatusCode::kBackendUnavailable,
                {path, "SHARD_NETWORK_HELPER", "install the program"});
    EXPECT_EQ(CountOpenFiles(), before);
  }
}

// This program does not have the helper's code.
TEST(MeetHelperTest, AHelperInThisProcessIsForOtherPrograms) {
  network::MeetOptions options = OptionsFor(UniqueName(), 0, 1);
  options.isolate = false;
  ExpectError(MeetHelper(options), StatusCode::kBackendUnavailable,
              {"isolate=0 is for tests", "leave it out"});
}

TEST(MeetHelperTest, AProgramThatEndsAtOnceIsAnErrorOnAllRanks) {
  const std::string key = UniqueName();
  const auto results = RunRanks(4, [&](const Rank& rank) {
    MeetOptions options = OptionsFor(key, rank.rank(), 4);
    options.program = "/bin/true";
    rank.Report(MeetHelper(options).status().ToString());
  });
  ExpectAllTold(results, "BACKEND_UNAVAILABLE: the network helper /bin/true");
  ExpectAllTold(results, "ended before it answered");
  for (const RankResult& result : results) EXPECT_LT(result.seconds, 15);
}

TEST(MeetHelperTest, AProgramThatDoesNotAnswerIsAnErrorAtTheDeadline) {
  const TempFolder folder;
  const std::string path = folder / "silent";
  WriteText(path, "#!/bin/sh\nexec sleep 3\n");
  ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  const std::string key = UniqueName();
  const auto results = RunRanks(2, [&](const Rank& rank) {
    MeetOptions options = OptionsFor(key, rank.rank(), 2, 0.5);
    options.program = path;
    rank.Report(MeetHelper(options).status().ToString());
  });
  ExpectAllTold(results, "DEADLINE_EXCEEDED: the network helper ");
  EXPECT_TRUE(Contains(results[0].report + results[1].report,
                       "was started, but did not answer within 0.5 s"));
  EXPECT_LT(results[0].seconds, 15);
}

// --- deaths ---

TEST(MeetHelperTest, AHelperThatDiesWhileRanksWaitIsAnErrorAtOnce) {
  const std::string key = UniqueName();
  const auto results = RunRanks(3, [&](const Rank& rank) {
    if (rank.rank() == 2) {  // Comes never, and kills the helper.
      pid_t helper = 0;
      ASSERT_TRUE(ComesTrue([&] { return (helper = HelperOf(key)) != 0; }));
      ::poll(nullptr, 0, 200);  // The others say hello.
      EXPECT_EQ(::kill(helper, SIGKILL), 0);
      rank.Report("RANK_LOST died while the ranks met");
      return;
    }
    const auto met = MeetHelper(OptionsFor(key, rank.rank(), 3));
    EXPECT_EQ(met.status().rank(), rank.rank());
    rank.Report(met.status().ToString());
  });
  ExpectAllTold(results, "RANK_LOST");
  ExpectAllTold(results, "died while the ranks met");
  for (const RankResult& result : results) EXPECT_LT(result.seconds, 15);
}

TEST(MeetHelperTest, AHelperThatDiesLaterIsAnErrorOfEachCall) {
  ExpectAllPassed(RunRanks(1, [&](const Rank&) {
    const auto met = MeetHelper(OptionsFor(UniqueName(), 0, 1));
    ASSERT_TRUE(met.ok()) << met.status().ToString();
    ASSERT_EQ(::kill((*met)->helper(), SIGKILL), 0);
    EXPECT_TRUE(ComesTrue([&] { return (*met)->HelperIsGone(); }));
    ExpectError((*met)->RequestRegion("key", {}, 4096, Soon()),
                StatusCode::kRankLost, {"network helper", "died"});
    ExpectError((*met)->ReleaseRegion("key", Soon()), StatusCode::kRankLost,
                {"network helper", "died"});
  }));
}

TEST(MeetHelperTest, AHelperThatHangsIsAnErrorAtTheDeadline) {
  const std::string key = UniqueName();
  const auto results = RunRanks(2, [&](const Rank& rank) {
    if (rank.rank() == 1) {  // Comes never, and stops the helper.
      pid_t helper = 0;
      ASSERT_TRUE(ComesTrue([&] { return (helper = HelperOf(key)) != 0; }));
      ::poll(nullptr, 0, 200);
      EXPECT_EQ(::kill(helper, SIGSTOP), 0);
      ::poll(nullptr, 0, 2500);
      EXPECT_EQ(::kill(helper, SIGKILL), 0);
      return;
    }
    const auto begin = Deadline::Clock::now();
    ExpectError(MeetHelper(OptionsFor(key, 0, 2, 1)),
                StatusCode::kDeadlineExceeded,
                {"did not bring all ranks together within 1 s"});
    EXPECT_GT(Deadline::Clock::now() - begin, std::chrono::milliseconds(1400));
  });
  ExpectAllPassed(results);
}

// Kills the first rank that is greeted, once it comes to `phase`, or, where a
// phase comes before that, the first at that phase. The others say hello later.
// Returns the results of 3 ranks.
std::vector<RankResult> KillAt(const std::string& phase) {
  const std::string key = UniqueName();
  const Shared<std::atomic<int>> killed;
  const Shared<std::atomic<int>> greeted;
  return RunRanks(3, [&](const Rank& rank) {
    MeetOptions options = OptionsFor(key, rank.rank(), 3, 2);
    options.phase_hook = [&](std::string_view at) {
      if (phase == "hello" && at == "greeted" && greeted->fetch_add(1) > 0) {
        EXPECT_TRUE(ComesTrue([&] { return *killed == 1; }));
        ::poll(nullptr, 0, 100);
      }
      if (at == phase && killed->exchange(1) == 0) ::kill(::getpid(), SIGKILL);
    };
    const auto met = MeetHelper(options);
    rank.Report(met.status().ToString());
    if (!met.ok()) return;
    // The others hear of a rank that died after the meeting.
    EXPECT_TRUE(ComesTrue([&] {
      for (int r = 0; r < 3; ++r) {
        if ((*met)->block()->slots()[r].presence == direct::kDied) return true;
      }
      return false;
    }));
  });
}

TEST(MeetHelperTest, TheOthersGoOnOrGetAnErrorWhereverARankIsKilled) {
  for (const std::string phase :
       {"bound", "started", "greeted", "hello", "welcome"}) {
    int killed = 0;
    for (const RankResult& result : KillAt(phase)) {
      if (result.signal == SIGKILL) {
        ++killed;
        continue;
      }
      EXPECT_TRUE(result.passed()) << phase << ": " << result.ToString();
      EXPECT_LT(result.seconds, 20) << phase;
      // A rank that has said hello is lost; one that has not did never come.
      const std::string expected =
          phase == "welcome" ? "OK"
          : phase == "hello" ? "RANK_LOST"
                             : "DEADLINE_EXCEEDED: 1 of 3 ranks did not come";
      EXPECT_TRUE(Contains(result.report, expected))
          << phase << ": " << result.ToString();
    }
    EXPECT_EQ(killed, 1) << phase;
  }
}

// Process 3 binds the name and is killed before it starts the helper, when the
// others are in the queue of its socket.
TEST(MeetHelperTest, AnotherRankStartsTheHelperInPlaceOfOneThatDied) {
  const std::string key = UniqueName();
  const Shared<std::atomic<int>> bound;
  const auto results = RunRanks(4, [&](const Rank& rank) {
    MeetOptions options = OptionsFor(key, rank.rank() % 3, 3);
    if (rank.rank() == 3) {
      options.phase_hook = [&](std::string_view at) {
        if (at != "bound") return;
        *bound = 1;
        ::poll(nullptr, 0, 200);
        ::kill(::getpid(), SIGKILL);
      };
    } else {
      EXPECT_TRUE(ComesTrue([&] { return *bound == 1; }));
    }
    const auto met = MeetHelper(options);
    ASSERT_TRUE(met.ok()) << met.status().ToString();
    MeetInBlock(**met);
  });
  for (int r = 0; r < 3; ++r) {
    EXPECT_TRUE(results[static_cast<size_t>(r)].passed())
        << results[static_cast<size_t>(r)].ToString();
  }
  EXPECT_EQ(results[3].signal, SIGKILL);
}

// --- processes that are no helper of this version and user ---

Fd ListenAt(const std::string& key) {
  const network::LocalAddress where = network::LocalAddressOf(key);
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&where.address),
                   where.size),
            0);
  EXPECT_EQ(::listen(fd.get(), 10), 0);
  return fd;
}

// Process 1 answers to rank 0 with `first` and then with `second`.
template <typename First, typename Second>
void ExpectAnswersAreRefused(const First& first, const Second& second,
                             std::string_view part) {
  const std::string key = UniqueName();
  const Shared<std::atomic<int>> listens;
  ExpectAllPassed(RunRanks(2, [&](const Rank& rank) {
    if (rank.rank() == 0) {
      EXPECT_TRUE(ComesTrue([&] { return *listens == 1; }));
      ExpectError(MeetHelper(OptionsFor(key, 0, 1)),
                  StatusCode::kFailedPrecondition, {part});
      return;
    }
    const Fd listening = ListenAt(key);
    *listens = 1;
    const Fd fd(::accept(listening.get(), nullptr, nullptr));
    EXPECT_OK(shm::Send(fd.get(), &first, sizeof(first), {}, Soon()));
    if (!shm::Receive(fd.get(), Soon()).ok()) return;  // No hello.
    EXPECT_OK(shm::Send(fd.get(), &second, sizeof(second), {}, Soon()));
  }));
}

TEST(MeetHelperTest, AHelperOfAnotherVersionIsNamed) {
  auto greeting = network::MakePacket<network::Greeting>();
  greeting.header.version = 99;
  auto verdict = network::MakeVerdict(Internal("in words of version 99"));
  verdict.header.version = 99;
  ExpectAnswersAreRefused(greeting, verdict, "speaks another version");
  ExpectAnswersAreRefused(std::array<char, 40>{}, verdict, "is none");
}

TEST(MeetHelperTest, AHelperOfAnotherUserIsNotTrusted) {
  const std::string key = UniqueName();
  const Shared<std::atomic<int>> listens;
  const auto results = RunRanks(2, [&](const Rank& rank) {
    if (rank.rank() == 0) {
      EXPECT_TRUE(ComesTrue([&] { return *listens != 0; }));
      if (*listens < 0) return;
      ExpectError(MeetHelper(OptionsFor(key, 0, 1)),
                  StatusCode::kPermissionDenied,
                  {"socket of the network helper is taken", "of user 65534"});
      return;
    }
    // The name has the user of rank 0.
    const network::LocalAddress where = network::LocalAddressOf(key);
    if (::setresuid(65534, 65534, 65534) != 0) {
      rank.Report("no other user");
      *listens = -1;
      return;
    }
    const Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(
        ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&where.address),
               where.size),
        0);
    EXPECT_EQ(::listen(fd.get(), 10), 0);
    *listens = 1;
    ::poll(nullptr, 0, 1000);
  });
  ExpectAllPassed(results);
  if (results[1].report == "no other user") {
    GTEST_SKIP() << "this sandbox has no other user";
  }
}

// A name is bound for a moment before its owner listens.
TEST(MeetHelperTest, ANameThatIsBoundIsWaitedFor) {
  const std::string key = UniqueName();
  const Shared<std::atomic<int>> bound;
  ExpectAllPassed(RunRanks(2, [&](const Rank& rank) {
    if (rank.rank() == 0) {
      EXPECT_TRUE(ComesTrue([&] { return *bound == 1; }));
      const auto met = MeetHelper(OptionsFor(key, 0, 1));
      EXPECT_TRUE(met.ok()) << met.status().ToString();
      ExpectError(MeetHelper(OptionsFor(StrCat(key, "?"), 0, 1, 0.3)),
                  StatusCode::kDeadlineExceeded, {"was not reached"});
      *bound = 2;
      return;
    }
    const auto bind_name = [](const std::string& name) {
      const network::LocalAddress where = network::LocalAddressOf(name);
      Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      EXPECT_EQ(
          ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&where.address),
                 where.size),
          0);
      return fd;
    };
    const Fd for_ever = bind_name(StrCat(key, "?"));
    Fd for_a_moment = bind_name(key);
    *bound = 1;
    ::poll(nullptr, 0, 200);
    for_a_moment.Reset();
    EXPECT_TRUE(ComesTrue([&] { return *bound == 2; }));
  }));
}

// --- regions ---

TEST(MeetHelperTest, RegionsOfOneKeyAreOneMemory) {
  const std::string key = UniqueName();
  ExpectAllPassed(RunRanks(3, [&](const Rank& rank) {
    const auto opened = MeetHelper(OptionsFor(key, rank.rank(), 3));
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    HelperConnection* const met = opened->get();
    const network::RegionLayout layout = {.kind = network::RegionKind::kBlock,
                                          .cells = 2,
                                          .payload_bytes = 100,
                                          .block = "work"};
    const auto region = met->RequestRegion("a", layout, 10000, Soon());
    ASSERT_TRUE(region.ok()) << region.status().ToString();
    EXPECT_EQ(region->size(), 10000u);
    auto* const counter =
        reinterpret_cast<std::atomic<int>*>(region->data() + 9996);
    counter->fetch_add(1);
    EXPECT_TRUE(ComesTrue([&] { return *counter == 3; }));
    MeetInBlock(*met);
    const auto other =
        met->RequestRegion(StrCat("rank", rank.rank()), {}, 1, Soon());
    ASSERT_TRUE(other.ok()) << other.status().ToString();

    // Others than those that the key has.
    network::RegionLayout wrong = layout;
    wrong.payload_bytes = 101;
    ExpectError(met->RequestRegion("a", wrong, 10000, Soon()),
                StatusCode::kDesync, {"'a'"});
    ExpectError(met->RequestRegion("a", layout, 10001, Soon()),
                StatusCode::kDesync, {"10001", "10000"});
    ExpectError(met->RequestRegion("none", layout, 0, Soon()),
                StatusCode::kInvalidArgument, {"0 bytes"});
    ExpectError(met->RequestRegion(std::string(129, 'k'), layout, 1, Soon()),
                StatusCode::kInvalidArgument, {"129 bytes"});
    const auto longest =
        met->RequestRegion(std::string(128, 'k'), layout, 10000, Soon());
    EXPECT_TRUE(longest.ok()) << longest.status().ToString();
  }));
}

TEST(MeetHelperTest, AReleasedRegionIsMadeAnew) {
  ExpectAllPassed(RunRanks(1, [&](const Rank&) {
    const auto met = MeetHelper(OptionsFor(UniqueName(), 0, 1));
    ASSERT_TRUE(met.ok()) << met.status().ToString();
    const auto first = (*met)->RequestRegion("a", {}, 4096, Soon());
    ASSERT_TRUE(first.ok()) << first.status().ToString();
    first->data()[0] = std::byte{7};
    const auto again = (*met)->RequestRegion("a", {}, 4096, Soon());
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(again->data()[0], std::byte{7});
    EXPECT_TRUE((*met)->ReleaseRegion("a", Soon()).ok());
    const auto anew = (*met)->RequestRegion("a", {}, 8192, Soon());
    ASSERT_TRUE(anew.ok()) << anew.status().ToString();
    EXPECT_EQ(anew->data()[0], std::byte{0});
    EXPECT_EQ(first->data()[0], std::byte{7});
  }));
}

// A rank that had memory which others lack would keep the helper's memory until
// that rank ends.
TEST(MeetHelperTest, ARegionThatOneRankIsRefusedIsRefusedToAll) {
  const std::string key = UniqueName();
  ExpectAllPassed(RunRanks(2, [&](const Rank& rank) {
    const auto opened = MeetHelper(OptionsFor(key, rank.rank(), 2));
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    HelperConnection* const met = opened->get();
    const auto shared = met->RequestRegion("turns", {}, 64, Soon());
    ASSERT_TRUE(shared.ok()) << shared.status().ToString();
    auto* const turns = reinterpret_cast<std::atomic<int>*>(shared->data());
    const auto await = [&](int turn) {
      return ComesTrue([&] { return *turns == turn; });
    };
    const network::RegionLayout right = {
        .kind = network::RegionKind::kBlock, .cells = 2, .payload_bytes = 100};
    network::RegionLayout wrong = right;
    wrong.cells = 1;
    ASSERT_TRUE(await(rank.rank()));
    ExpectError(met->RequestRegion("a", rank.rank() == 0 ? wrong : right, 10000,
                                   Soon()),
                StatusCode::kInvalidArgument, {"'a'", "with 1 cells"});
    EXPECT_TRUE(met->ReleaseRegion("a", Soon()).ok());
    ++*turns;
    // Both have released it. The helper reads what one rank sends in order, and
    // knows of rank 1's release when it has answered its next request.
    if (rank.rank() == 1) {
      EXPECT_TRUE(met->RequestRegion("b", {}, 1, Soon()).ok());
      ++*turns;
    }
    ASSERT_TRUE(await(3 + rank.rank()));
    const auto anew = met->RequestRegion("a", right, 10000, Soon());
    EXPECT_TRUE(anew.ok()) << anew.status().ToString();
    ++*turns;
    EXPECT_TRUE(ComesTrue([&] { return *turns == 5; }));
  }));
}

TEST(MeetHelperTest, ThreadsOfARankShareItsConnection) {
  ExpectAllPassed(RunRanks(1, [&](const Rank&) {
    const auto met = MeetHelper(OptionsFor(UniqueName(), 0, 1));
    ASSERT_TRUE(met.ok()) << met.status().ToString();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) {
          const std::string key = StrCat(t, "-", i);
          const size_t bytes = static_cast<size_t>(1000 * t + i + 1);
          const auto region = (*met)->RequestRegion(key, {}, bytes, Soon());
          ASSERT_TRUE(region.ok()) << region.status().ToString();
          EXPECT_EQ(region->size(), bytes);
          EXPECT_TRUE((*met)->ReleaseRegion(key, Soon()).ok());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }));
}

// An answer that comes after its deadline is not taken for that of the next
// request.
TEST(MeetHelperTest, AnAnswerThatComesLateIsSkipped) {
  ExpectAllPassed(RunRanks(1, [&](const Rank&) {
    const auto met = MeetHelper(OptionsFor(UniqueName(), 0, 1));
    ASSERT_TRUE(met.ok()) << met.status().ToString();
    ASSERT_EQ(::kill((*met)->helper(), SIGSTOP), 0);
    ExpectError((*met)->RequestRegion("a", {}, 4096, Deadline::After(0.1)),
                StatusCode::kDeadlineExceeded, {"did not answer", "0.1 s"});
    ASSERT_EQ(::kill((*met)->helper(), SIGCONT), 0);
    const auto region = (*met)->RequestRegion("b", {}, 8192, Soon());
    ASSERT_TRUE(region.ok()) << region.status().ToString();
    EXPECT_EQ(region->size(), 8192u);
  }));
}

}  // namespace
}  // namespace shard::testing::meet_helper_test
