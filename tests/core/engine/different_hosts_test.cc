// SPDX-License-Identifier: Apache-2.0
//
// Ranks on several hosts that move different units, while what the hosts send
// each other crosses: all ranks get the same error, which names the same rank.

#include <gtest/gtest.h>

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
#include "tests/core/base/expect_status.h"
#include "tests/core/comm/mirrored_hosts.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/six_blocks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::different_hosts_test {
namespace {

using testing::MirroredHosts;

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
        for (const int32_t unit : {2, 5}) {
          if (stage == 3) break;
          ASSERT_OK((*engine)->UnitAcquire(unit, Pass::kBackward, 0));
        }
        const int rank = comm->rank();
        ready.arrive_and_wait();
        if (rank == 0) {
          ranks.HoldAll();
          holds = true;
        }
        ready.arrive_and_wait();
        const Status status = move(engine->get(), rank == 1 ? 2 : 5);
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

}  // namespace
}  // namespace shard::different_hosts_test
