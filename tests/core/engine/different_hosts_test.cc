// SPDX-License-Identifier: Apache-2.0
//
// Ranks on several hosts that move different units, while what the hosts send
// each other crosses: all ranks get the same error, which names the same rank.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/notices.h"
#include "core/engine/transfer/agreement.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/comm/mirrored_hosts.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/six_blocks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::different_hosts_test {
namespace {

using testing::ComesTrue;
using testing::MirroredHosts;

Deadline Soon() { return Deadline::After(20); }

// Hosts of one rank each.
class LoneRanks {
 public:
  explicit LoneRanks(int count) : count_(count), hosts_(Begins(count)) {}

  // Calls body(communicator) on every rank.
  void Run(const std::function<void(std::shared_ptr<Communicator>)>& body,
           const std::function<void(std::string_view what)>& hook = {}) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count_; ++rank) {
      threads.emplace_back([&, rank] {
        body(hosts_.Open({.rank = rank,
                          .world_size = count_,
                          .timeout = 20,
                          .phase_hook = hook}));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void HoldAll() {
    ForEachLink([this](int from, int to) { hosts_.Hold(from, to); });
  }
  void LetAll() {
    ForEachLink([this](int from, int to) { hosts_.Let(from, to); });
  }
  void Let(int from, int to) { hosts_.Let(from, to); }

 private:
  static std::vector<int> Begins(int count) {
    std::vector<int> begins;
    for (int rank = 0; rank <= count; ++rank) begins.push_back(rank);
    return begins;
  }
  void ForEachLink(const std::function<void(int from, int to)>& call) const {
    for (int from = 0; from < count_; ++from) {
      for (int to = 0; to < count_; ++to) {
        if (from != to) call(from, to);
      }
    }
  }

  const int count_;
  MirroredHosts hosts_;
};

// --- the collective finds it ------------------------------------------------

// Runs `move` of different units on two ranks whose announcements cross: no
// message comes before both are in the collective whose name begins with
// `name`.
void ExpectDesyncInTheCollective(
    int stage, const std::string& name,
    const std::function<Status(Engine* engine, int32_t unit)>& move) {
  UnitTraining training = SixBlocks();
  training.plan.stage = stage;
  training.plan.world_size = 2;
  training.plan.prefetch = 0;  // One announcement.
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  ASSERT_TRUE(ShardsAsItsStage(**plan));
  LoneRanks ranks(2);
  std::atomic<bool> holds = false;
  std::atomic<int> in_collective = 0;
  std::barrier<> ready(2);
  std::array<std::string, 2> texts;
  ranks.Run(
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = CreateEngine(*plan, comm);
        ASSERT_OK(engine);
        ASSERT_OK((*engine)->BroadcastParams(0));
        const int rank = comm->rank();
        const int32_t unit = rank == 1 ? 2 : 5;
        if (stage < 3) {
          ASSERT_OK((*engine)->UnitAcquire(unit, Pass::kBackward, 0));
        }
        ready.arrive_and_wait();
        if (rank == 0) {
          ranks.HoldAll();
          holds = true;
        }
        ready.arrive_and_wait();
        const Status status = move(engine->get(), unit);
        ExpectError(
            status, StatusCode::kDesync,
            {StrCat("rank 0 called "), StrCat("'", name, " of unit 5'"),
             StrCat("rank 1 called "), StrCat("'", name, " of unit 2'")});
        EXPECT_EQ(status.rank(), 1);
        texts[static_cast<size_t>(rank)] = status.ToString();
        ExpectError((*engine)->ZeroGrad(), StatusCode::kDesync, {});
      },
      [&](std::string_view what) {
        if (holds && what.starts_with(name) && ++in_collective == 2) {
          ranks.LetAll();
        }
      });
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(DifferentUnitsTest, AGatherOfUnitsOfOneSizeIsADesync) {
  ExpectDesyncInTheCollective(
      3, "gather parameters", [](Engine* engine, int32_t unit) {
        return engine->UnitAcquire(unit, Pass::kForward, 0);
      });
}

TEST(DifferentUnitsTest, AReductionOfUnitsOfOneSizeIsADesync) {
  ExpectDesyncInTheCollective(
      2, "reduce gradients", [](Engine* engine, int32_t unit) {
        SHARD_RETURN_IF_ERROR(engine->MarkUnitGradsReady(unit));
        return engine->ZeroGrad();
      });
}

// Rank 1 goes on with another unit, while rank 0 waits for its first one.
TEST(DifferentUnitsTest,
     ARankThatAnnouncesAnotherUnitHasTheErrorOfOneThatWaits) {
  UnitTraining training = SixBlocks();
  training.plan.stage = 2;
  training.plan.world_size = 2;
  training.plan.prefetch = 1;  // Gradients of two units.
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  ASSERT_TRUE(ShardsAsItsStage(**plan));
  LoneRanks ranks(2);
  std::atomic<bool> holds = false;
  std::atomic<int> in_collective = 0;
  std::barrier<> ready(2);
  std::array<std::string, 2> texts;
  ranks.Run(
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = CreateEngine(*plan, comm);
        ASSERT_OK(engine);
        ASSERT_OK((*engine)->BroadcastParams(0));
        const auto family = OpenProposals(comm.get(), Soon());
        ASSERT_OK(family);
        const int rank = comm->rank();
        for (const int32_t unit : {5, 2}) {
          ASSERT_OK((*engine)->UnitAcquire(unit, Pass::kBackward, 0));
        }
        ready.arrive_and_wait();
        if (rank == 0) {
          ranks.HoldAll();
          holds = true;
        }
        ready.arrive_and_wait();
        ASSERT_OK((*engine)->MarkUnitGradsReady(rank == 1 ? 2 : 5));
        Status status;
        if (rank == 0) {
          status = (*engine)->ZeroGrad();
        } else {
          EXPECT_TRUE(ComesTrue([&] {
            return !(*family)->Check(1, "another", Deadline::After(1000)).ok();
          }));
          status = (*engine)->MarkUnitGradsReady(5);
        }
        ExpectError(status, StatusCode::kDesync,
                    {"rank 0 called ", "'reduce gradients of unit 5'",
                     "rank 1 called ", "'reduce gradients of unit 2'"});
        EXPECT_EQ(status.rank(), 1);
        texts[static_cast<size_t>(rank)] = status.ToString();
        ExpectError((*engine)->ZeroGrad(), StatusCode::kDesync, {});
      },
      [&](std::string_view what) {
        if (holds && what.starts_with("reduce gradients") &&
            ++in_collective == 2) {
          ranks.LetAll();
        }
      });
  EXPECT_EQ(texts[0], texts[1]);
}

// --- all ranks name the same rank -------------------------------------------

Proposal Gather(int32_t unit) {
  Proposal proposal;
  proposal.activity = Activity::kGather;
  proposal.unit = unit;
  return proposal;
}

// Tells when a rank waits for others.
class ToldNotices final : public Notices {
 public:
  ToldNotices(std::unique_ptr<Notices> notices, std::function<void()> on_await)
      : notices_(std::move(notices)), on_await_(std::move(on_await)) {}

  Status Post(const void* notice, const Compare& compare,
              const Deadline& deadline) override {
    return notices_->Post(notice, compare, deadline);
  }
  Status Await(uint64_t number, const Compare& compare, void* recv,
               const Deadline& deadline) override {
    on_await_();
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
  const std::unique_ptr<Notices> notices_;
  const std::function<void()> on_await_;
};

// Three ranks that announce moves.
class ThreeRanks {
 public:
  using Body = std::function<Status(Communicator* comm, Notices* notices,
                                    Agreement* agreement)>;

  LoneRanks& ranks() { return ranks_; }
  // Waits for the other two ranks, without a message.
  void Await() { barrier_.arrive_and_wait(); }

  // Calls `body` on each rank. Expects that it returns the same kDesync on all,
  // which names `odd`. `on_await`: when the rank waits for others.
  void ExpectDesyncOf(
      int odd, const Body& body,
      const std::function<void(int rank)>& on_await = [](int) {}) {
    std::array<std::string, 3> texts;
    ranks_.Run([&](const std::shared_ptr<Communicator>& comm) {
      const int rank = comm->rank();
      auto opened = OpenProposals(comm.get(), Soon());
      ASSERT_OK(opened);
      ToldNotices notices(*std::move(opened), [&] { on_await(rank); });
      Agreement agreement(comm.get(), &notices, false,
                          [](int32_t unit) { return StrCat("unit ", unit); });
      ASSERT_TRUE(agreement.announces());
      const Status status =
          agreement.CommonError(body(comm.get(), &notices, &agreement));
      EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
      EXPECT_EQ(status.rank(), odd) << status.ToString();
      texts[static_cast<size_t>(rank)] = status.ToString();
      Await();  // A rank that leaves is lost to the others.
    });
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_EQ(texts[0], texts[2]);
  }

 private:
  LoneRanks ranks_{3};
  std::barrier<> barrier_{3};
};

// No rank sees the first move of another one before it has announced its own;
// each of those that differ from another one then finds that by itself, because
// no error comes from another host.
TEST(ThreeHostsTest, ALateDifferenceNamesTheSameRank) {
  for (const int odd : {0, 1, 2}) {
    SCOPED_TRACE(odd);
    ThreeRanks three;
    three.ExpectDesyncOf(
        // The later one of two ranks that differ is named.
        std::max(odd, 1),
        [&](Communicator* comm, Notices*, Agreement* agreement) {
          const int rank = comm->rank();
          three.Await();
          if (rank == 0) three.ranks().HoldAll();
          three.Await();
          EXPECT_OK(agreement->Announce(Gather(rank == odd ? 4 : 3), Soon()));
          three.Await();
          if (rank == 0) three.ranks().LetAll();
          // All that a host has sent before has come then.
          EXPECT_OK(comm->Barrier("all have announced", Soon()));
          three.Await();
          if (rank == 0) three.ranks().HoldAll();
          three.Await();
          const Status found = agreement->Announce(Gather(5), Soon());
          three.Await();
          if (rank == 0) three.ranks().LetAll();
          return found;
        });
  }
}

// Rank 1 differs in the second move and rank 2 in the first, which ranks 0 and
// 1 do not see before they have found the other difference.
TEST(ThreeHostsTest, TheFirstDifferenceNamesTheRank) {
  ThreeRanks three;
  std::atomic<int> waiting = 0;
  three.ExpectDesyncOf(
      2,
      [&](Communicator* comm, Notices* notices, Agreement* agreement) {
        const int rank = comm->rank();
        three.Await();
        if (rank == 0) three.ranks().HoldAll();
        three.Await();
        EXPECT_OK(agreement->Announce(Gather(rank == 2 ? 4 : 3), Soon()));
        EXPECT_OK(agreement->Announce(Gather(rank == 1 ? 6 : 5), Soon()));
        three.Await();
        if (rank == 2) {
          return agreement->Agree(Proposal(), Status(), Arguments(), Soon())
              .status();
        }
        three.ranks().Let(1 - rank, rank);
        // Waits until rank 2 is the first whose moves are not here.
        EXPECT_TRUE(ComesTrue([&] {
          return notices->Check(2, "moves", Deadline::After(0)).rank() == 2;
        }));
        const Status found = agreement->Announce(Gather(7), Soon());
        three.ranks().Let(rank, 2);
        return found;
      },
      [&](int) {
        if (++waiting != 2) return;
        three.ranks().Let(2, 0);
        three.ranks().Let(2, 1);
      });
}

}  // namespace
}  // namespace shard::different_hosts_test
