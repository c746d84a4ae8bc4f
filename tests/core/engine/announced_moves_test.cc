// SPDX-License-Identifier: Apache-2.0
//
// Ranks that announce the moves of units: a rank that is ahead waits for
// nobody, and ranks that propose different operations get the same error,
// though some have gone on.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/notices.h"
#include "core/engine/transfer/agreement.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_calls.h"

namespace shard::announced_moves_test {
namespace {

using testing::Form;
using testing::kForms;
using testing::NameOf;
using testing::UnitCallsTest;

Deadline Soon() { return Deadline::After(10); }

Proposal Move(Activity activity, int32_t unit) {
  Proposal proposal;
  proposal.activity = activity;
  proposal.unit = unit;
  return proposal;
}

Proposal Join() {
  Proposal proposal;
  proposal.activity = Activity::kJoin;
  proposal.active = 0;
  return proposal;
}

// Notices that cross, as those of two hosts may: each is compared one Post
// later.
class CrossedNotices final : public Notices {
 public:
  explicit CrossedNotices(std::unique_ptr<Notices> notices)
      : notices_(std::move(notices)) {}

  Status Post(const void* notice, const Compare& compare,
              const Deadline& deadline) override {
    const std::vector<Pair> late = std::move(pairs_);
    pairs_.clear();
    SHARD_RETURN_IF_ERROR(notices_->Post(notice, Keep(), deadline));
    for (const Pair& pair : late) {
      compare(pair.rank, pair.number, &pair.theirs, &pair.mine);
    }
    return Status();
  }
  Status Await(uint64_t number, const Compare& compare, void* recv,
               const Deadline& deadline) override {
    return notices_->Await(number, compare, recv, deadline);
  }
  Status Meet(const void* notice, const Compare& compare, void* recv,
              const Deadline& deadline) override {
    return notices_->Meet(notice, compare, recv, deadline);
  }
  Status Check(uint64_t number, std::string_view what,
               const Deadline& deadline) const override {
    return notices_->Check(number, what, deadline);
  }
  void Fail(const Status& error) override { notices_->Fail(error); }
  Status failure() const override { return notices_->failure(); }

 private:
  struct Pair {
    int rank;
    uint64_t number;
    Proposal theirs;
    Proposal mine;
  };
  Compare Keep() {
    return [this](int rank, uint64_t number, const void* theirs,
                  const void* mine) {
      Pair& pair = pairs_.emplace_back(Pair{rank, number, {}, {}});
      std::memcpy(&pair.theirs, theirs, sizeof(Proposal));
      std::memcpy(&pair.mine, mine, sizeof(Proposal));
    };
  }

  const std::unique_ptr<Notices> notices_;
  std::vector<Pair> pairs_;
};

// Calls body(rank, agreement) on two ranks that share no memory. `cross`: their
// notices are CrossedNotices.
void OnTwoRanks(const std::function<void(int rank, Agreement*)>& body,
                bool cross = false) {
  RunThreadRanks(
      2,
      [&](const auto& comm) {
        auto opened = OpenProposals(comm.get(), Soon());
        ASSERT_OK(opened);
        std::unique_ptr<Notices> notices = *std::move(opened);
        if (cross) {
          notices = std::make_unique<CrossedNotices>(std::move(notices));
        }
        Agreement agreement(comm.get(), notices.get(), false,
                            [](int32_t unit) { return StrCat("unit ", unit); });
        ASSERT_TRUE(agreement.announces());
        body(comm->rank(), &agreement);
      },
      10, "direct=0");
}

TEST(AnnounceTest, ARankThatIsAheadWaitsForNobody) {
  std::promise<void> ahead;
  std::future<void> announced = ahead.get_future();
  OnTwoRanks([&](int rank, Agreement* agreement) {
    if (rank == 1) announced.wait();
    for (int32_t unit = 0; unit < 5; ++unit) {
      EXPECT_OK(agreement->Announce(Move(Activity::kReduce, unit), Soon()));
    }
    if (rank == 0) ahead.set_value();
    // They meet in a step.
    EXPECT_OK(agreement->Agree(Proposal(), Status(), Arguments(), Soon()));
  });
}

// Rank 1 finds the difference, and rank 0 learns of it where it next waits; on
// several hosts, where the announcement of rank 0 may still be on its way, so
// may rank 1.
TEST(AnnounceTest, DifferentMovesAreTheSameErrorOnBothRanks) {
  std::promise<void> ahead;
  std::future<void> announced = ahead.get_future();
  OnTwoRanks([&](int rank, Agreement* agreement) {
    if (rank == 1) announced.wait();
    Status status =
        agreement->Announce(Move(Activity::kGather, 3 + rank), Soon());
    if (rank == 0) {
      EXPECT_OK(status);
      ahead.set_value();
    }
    if (rank == 0 || (TestsAreOn("tcp") && status.ok())) {
      status =
          agreement->Agree(Proposal(), Status(), Arguments(), Soon()).status();
      status = agreement->CommonError(status);
    }
    ExpectError(status, StatusCode::kDesync,
                {"rank 0 gathers the parameters of unit 3",
                 "rank 1 gathers the parameters of unit 4"});
    EXPECT_EQ(status.rank(), 1);
  });
}

// Both ranks gather unit 3 twice in the end, so that the announcements that are
// compared late look like those of now.
TEST(AnnounceTest, ADifferenceThatIsFoundLateIsAnError) {
  OnTwoRanks(
      [](int rank, Agreement* agreement) {
        Status status =
            agreement->Announce(Move(Activity::kGather, 3 + rank), Soon());
        for (int i = 0; i < 2 && status.ok(); ++i) {
          status = agreement->Announce(Move(Activity::kGather, 3), Soon());
        }
        if (status.ok()) {
          status = agreement->Agree(Proposal(), Status(), Arguments(), Soon())
                       .status();
        }
        ExpectError(agreement->CommonError(status), StatusCode::kDesync,
                    {"rank 0 gathers the parameters of unit 3",
                     "rank 1 gathers the parameters of unit 4"});
      },
      /*cross=*/true);
}

TEST(AnnounceTest, AnotherPassOnOneRankAloneIsADesync) {
  OnTwoRanks([&](int rank, Agreement* agreement) {
    Proposal reduce = Move(Activity::kReduce, 3);
    reduce.more = rank == 1 ? 1 : 0;
    Status status = agreement->Announce(reduce, Soon());
    if (status.ok()) {
      status =
          agreement->Agree(Proposal(), Status(), Arguments(), Soon()).status();
      status = agreement->CommonError(status);
    }
    ExpectError(status, StatusCode::kDesync,
                {"rank 1 reduces the gradients of unit 3, and has another "
                 "backward pass"});
  });
}

// Rank 1 cannot do what rank 0 has announced, and has begun.
TEST(AnnounceTest, AnErrorOfOneRankIsTheErrorOfTheRankThatWentOn) {
  for (const bool late : {false, true}) {
    SCOPED_TRACE(late);
    std::promise<void> ahead;
    std::future<void> announced = ahead.get_future();
    OnTwoRanks([&](int rank, Agreement* agreement) {
      Status status;
      if (rank == 1) {
        if (late) announced.wait();
        status = agreement
                     ->Agree(Move(Activity::kReduce, -1),
                             InvalidArgument("wrong here"), Arguments(), Soon())
                     .status();
      } else {
        EXPECT_OK(agreement->Announce(Move(Activity::kReduce, 3), Soon()));
        ahead.set_value();
        status = agreement->Agree(Proposal(), Status(), Arguments(), Soon())
                     .status();
        status = agreement->CommonError(status);
      }
      ExpectInvalid(status, {"rank 1: wrong here"});
      EXPECT_EQ(status.rank(), 1);
    });
  }
}

// No rank has begun anything, so the ranks go on.
TEST(AnnounceTest, AnErrorOfAllRanksEndsNothing) {
  OnTwoRanks([&](int, Agreement* agreement) {
    ExpectInvalid(
        agreement->Agree(Move(Activity::kReduce, -1),
                         InvalidArgument("wrong here"), Arguments(), Soon()),
        {"rank 0: wrong here"});
    EXPECT_OK(agreement->Announce(Move(Activity::kReduce, 3), Soon()));
    EXPECT_OK(agreement->Agree(Proposal(), Status(), Arguments(), Soon()));
  });
}

// Rank 1 is in join, and takes part in all that rank 0 announces.
TEST(AnnounceTest, ARankInJoinFollows) {
  OnTwoRanks([&](int rank, Agreement* agreement) {
    for (int32_t unit = 0; unit < 5; ++unit) {
      if (rank == 0) {
        EXPECT_OK(agreement->Announce(Move(Activity::kReduce, unit), Soon()));
        continue;
      }
      const auto decision =
          agreement->Agree(Join(), Status(), Arguments(), Soon());
      ASSERT_OK(decision);
      EXPECT_EQ(decision->leader, 0);
      EXPECT_TRUE(decision->follows);
      EXPECT_EQ(agreement->proposals()[0].unit, unit);
    }
    EXPECT_OK(agreement->Agree(Join(), Status(), Arguments(), Soon()));
  });
}

class AnnouncedMovesTest : public UnitCallsTest {};

// Rank 0 declares gradients, and returns from all calls, before rank 1 declares
// any.
TEST_P(AnnouncedMovesTest, DeclaringGradientsWaitsForNobody) {
  std::promise<void> ahead;
  std::future<void> declared = ahead.get_future();
  OnRanks([&](Engine* engine) {
    const int rank = engine->comm()->rank();
    for (const int32_t unit : {5, 2}) {
      ASSERT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
    }
    if (rank == 1) declared.wait();
    for (const int32_t unit : {5, 2}) {
      EXPECT_OK(engine->MarkUnitGradsReady(unit));
    }
    if (rank == 0) ahead.set_value();
    for (const int32_t unit : {5, 2}) EXPECT_OK(engine->UnitRelease(unit));
    for (const int32_t unit : {0, 1, 3, 4, 6}) {
      EXPECT_OK(Ready(engine, unit));
    }
    EXPECT_OK(Step(engine));
  });
}

INSTANTIATE_TEST_SUITE_P(Forms, AnnouncedMovesTest, ::testing::ValuesIn(kForms),
                         NameOf);

}  // namespace
}  // namespace shard::announced_moves_test
