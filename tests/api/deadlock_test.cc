// SPDX-License-Identifier: Apache-2.0
//
// Two ranks that wait for each other in different calls: one on the
// communicator, the other one on its engine. Both get DESYNC with both names,
// long before their deadlines.

#include <functional>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"
#include "tests/api/sharded_plans.h"
#include "tests/core/base/temp_folder.h"

namespace shard_api_testing::deadlock_test {
namespace {

struct Host {
  shard_comm* comm;
  shard_engine* engine;
  std::string folder;
};

struct Call {
  const char* name;
  std::function<shard_error*(const Host&)> make;
};

std::vector<Call> CallsOnTheCommunicator() {
  return {
      {"shard_comm_sum",
       [](const Host& host) {
         double value = 1;
         return shard_comm_sum(host.comm, &value, 1, 0);
       }},
      {"shard_comm_broadcast",
       [](const Host& host) {
         double value = 1;
         return shard_comm_broadcast(host.comm, &value, sizeof(value), 0, 0);
       }},
      {"shard_comm_barrier",
       [](const Host& host) { return shard_comm_barrier(host.comm, 0); }},
      {"shard_comm_shutdown",
       [](const Host& host) { return shard_comm_shutdown(host.comm, 0); }},
  };
}

std::vector<Call> CallsOnTheEngine(bool gathers) {
  std::vector<Call> calls = {
      {"shard_engine_step",
       [](const Host& host) {
         return shard_engine_step(host.engine, nullptr, nullptr);
       }},
      {"shard_checkpoint_save",
       [](const Host& host) {
         return shard_checkpoint_save(host.engine, host.folder.c_str(), nullptr,
                                      nullptr);
       }},
      {"shard_checkpoint_load",
       [](const Host& host) {
         return shard_checkpoint_load(host.engine, host.folder.c_str(), nullptr,
                                      nullptr);
       }},
      {"shard_engine_join",
       [](const Host& host) {
         return shard_engine_join(host.engine, 0, nullptr);
       }},
      {"shard_engine_summon",
       [](const Host& host) {
         return shard_engine_summon(host.engine, 0, -1, 0);
       }},
  };
  if (gathers) {
    // The engine's own thread gathers the unit, and the host waits for it.
    calls.push_back({"shard_engine_unit_acquire", [](const Host& host) {
                       return shard_engine_unit_acquire(host.engine, 1,
                                                        SHARD_PASS_FORWARD, 0);
                     }});
  }
  return calls;
}

Engine MakeBlocksEngine(shard_comm* comm, int32_t stage) {
  const Model model = EmptyModel();
  AddBlocks(model.get());
  shard_plan_options options = PlanOptions(2);
  options.stage = stage;
  options.wrap = "class?names=Block";
  Engine engine = MakeEngine(MakePlan(model.get(), options).get(), comm);
  EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
  return engine;
}

// Makes `first` on rank 0 and `second` on rank 1.
void ExpectDeadlock(const Call& first, const Call& second, int32_t stage,
                    const std::string& query) {
  SCOPED_TRACE(std::string(first.name) + ", " + second.name + " " + query);
  const shard::testing::TempFolder folder;
  std::string messages[2];
  RunRanks(
      2,
      [&](int rank, shard_comm* comm) {
        const Engine engine = MakeBlocksEngine(comm, stage);
        const Call& call = rank == 0 ? first : second;
        const Outcome outcome =
            Take(call.make({comm, engine.get(), folder.path()}));
        ExpectError(outcome, SHARD_DESYNC,
                    {"the ranks wait for each other in different calls: "
                     "rank 0 waits in " +
                         std::string(first.name) + " (",
                     ", rank 1 in " + std::string(second.name) + " ("});
        EXPECT_EQ(outcome.rank, 1);
        messages[rank] = outcome.message;
      },
      query);
  EXPECT_EQ(messages[0], messages[1]);
}

class DeadlockTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DeadlockTest, BothRanksGetBothNames) {
  const std::string query = GetParam();
  const bool gathers = !query.empty();
  const std::vector<Call> on_comm = CallsOnTheCommunicator();
  for (const Call& on_engine : CallsOnTheEngine(gathers)) {
    ExpectDeadlock(on_comm[0], on_engine, gathers ? 3 : 1, query);
    ExpectDeadlock(on_engine, on_comm[0], gathers ? 3 : 1, query);
  }
  const Call step = CallsOnTheEngine(false)[0];
  for (const Call& other : on_comm) {
    ExpectDeadlock(other, step, 1, query);
  }
}

INSTANTIATE_TEST_SUITE_P(Links, DeadlockTest, ::testing::Values("", "direct=0"),
                         [](const auto& info) {
                           return *info.param == '\0' ? "direct" : "apart";
                         });

// Two calls on one engine meet, and are compared at once.
TEST(DeadlockOfEnginesTest, AStepMeetsASave) {
  const shard::testing::TempFolder folder;
  RunRanks(2, [&](int rank, shard_comm* comm) {
    const Engine engine = MakeBlocksEngine(comm, 1);
    ExpectError(
        Take(rank == 0
                 ? shard_engine_step(engine.get(), nullptr, nullptr)
                 : shard_checkpoint_save(engine.get(), folder.path().c_str(),
                                         nullptr, nullptr)),
        SHARD_DESYNC, {"rank 0 steps, rank 1 saves a checkpoint"});
  });
}

// An engine finishes its transfers before it is freed.
TEST(DeadlockOfEnginesTest, AFreeThatWaitsIsNamed) {
  RunRanks(2, [&](int rank, shard_comm* comm) {
    Engine engine = MakeBlocksEngine(comm, 2);
    if (rank == 1) {
      EXPECT_OK(
          shard_engine_unit_acquire(engine.get(), 1, SHARD_PASS_BACKWARD, 0));
      EXPECT_OK(shard_engine_mark_unit_grads_ready(engine.get(), 1));
      engine.reset();
      return;
    }
    double value = 1;
    ExpectError(Take(shard_comm_sum(comm, &value, 1, 0)), SHARD_DESYNC,
                {"rank 0 waits in shard_comm_sum (",
                 ", rank 1 in shard_engine_free ("});
  });
}

// A rank without the engine still tells its peers where its host waits.
TEST(DeadlockOfEnginesTest, AStepMissesARankThatFreedTheEngine) {
  RunRanks(2, [&](int rank, shard_comm* comm) {
    Engine engine = MakeBlocksEngine(comm, 1);
    double value = 1;
    if (rank == 1) engine.reset();
    ExpectError(
        Take(rank == 0 ? shard_engine_step(engine.get(), nullptr, nullptr)
                       : shard_comm_sum(comm, &value, 1, 0)),
        SHARD_DESYNC,
        {"rank 0 waits in shard_engine_step (",
         ", rank 1 in shard_comm_sum ("});
  });
}

// Each rank trains another one of two engines.
TEST(DeadlockOfEnginesTest, TwoEnginesAreToldApart) {
  RunRanks(2, [&](int rank, shard_comm* comm) {
    const Engine engines[] = {MakeBlocksEngine(comm, 1),
                              MakeBlocksEngine(comm, 1)};
    ExpectError(Take(shard_engine_step(engines[rank].get(), nullptr, nullptr)),
                SHARD_DESYNC,
                {"rank 0 waits in shard_engine_step (",
                 "rank 1 in shard_engine_step ("});
  });
}

}  // namespace
}  // namespace shard_api_testing::deadlock_test
