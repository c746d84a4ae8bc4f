// SPDX-License-Identifier: Apache-2.0
//
// Handles are freed in any order: each keeps alive what it needs.

#include <algorithm>
#include <array>
#include <functional>

#include "tests/api/api_testing.h"

namespace shard_api_testing::lifetime_test {
namespace {

// Frees model, plan, comm and engine in this order, and makes steps for as long
// as there is an engine.
void FreeInOrder(const std::array<int, 4>& order, shard_comm* comm_handle) {
  Model model = SmallModel();
  Plan plan =
      MakePlan(model.get(), PlanOptions(shard_comm_world_size(comm_handle)));
  Engine engine = MakeEngine(plan.get(), comm_handle);
  EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
  Comm comm(comm_handle);
  const std::function<void()> frees[4] = {
      [&] { model.reset(); }, [&] { plan.reset(); }, [&] { comm.reset(); },
      [&] { engine.reset(); }};
  for (const int which : order) {
    frees[which]();
    if (engine == nullptr) continue;
    FillGrad(engine.get(), 1.0f);
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    EXPECT_LT(WeightOf(engine.get())[0], 0.0f);
  }
}

TEST(LifetimeTest, HandlesMayBeFreedInEveryOrder) {
  std::array<int, 4> order = {0, 1, 2, 3};
  do {
    FreeInOrder(order, OpenLocal().release());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(LifetimeTest, AnEngineOutlivesItsHandles) {
  RunRanks(2, [](int, shard_comm* comm) {
    // RunRanks frees the communicator; the engine below is then the only handle
    // of the group.
    Engine engine = TrainingEngine(comm);
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    EXPECT_OK(shard_comm_shutdown(comm, 0));
    // The parameters stay readable.
    EXPECT_FAILS(shard_engine_step(engine.get(), nullptr, nullptr),
                 SHARD_FAILED_PRECONDITION, "shut down");
    EXPECT_EQ(WeightOf(engine.get())[0], 1.0f);
  });
}

// A pointer is valid as long as its engine lives, whatever the other ranks
// free.
TEST(LifetimeTest, ParamsOutliveOtherRanks) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    Engine engine = TrainingEngine(comm);
    const float* weight = WeightOf(engine.get());
    if (rank == 0) engine.reset();
    EXPECT_OK(shard_comm_shutdown(comm, 0));
    if (rank == 1) {
      EXPECT_EQ(weight[0], 1.0f);
    }
  });
}

TEST(LifetimeTest, TwoEnginesShareACommunicator) {
  RunRanks(2, [](int, shard_comm* comm) {
    Engine first = TrainingEngine(comm);
    const Engine second = TrainingEngine(comm);
    FillGrad(first.get(), 1.0f);
    FillGrad(second.get(), 2.0f);
    EXPECT_OK(shard_engine_step(first.get(), nullptr, nullptr));
    EXPECT_OK(shard_engine_step(second.get(), nullptr, nullptr));
    EXPECT_EQ(WeightOf(first.get())[0], 0.5f);
    EXPECT_EQ(WeightOf(second.get())[0], 0.0f);
    first.reset();
    EXPECT_OK(shard_engine_step(second.get(), nullptr, nullptr));
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
}

// Handles are created, used and freed in different threads.
TEST(LifetimeTest, HandlesMoveBetweenThreads) {
  Engine engine;
  Comm comm;
  std::thread([&] {
    comm = OpenLocal();
    engine = TrainingEngine(comm.get());
  }).join();
  std::thread([&] {
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
  }).join();
  std::thread([&] {
    comm.reset();
    engine.reset();
  }).join();
}

}  // namespace
}  // namespace shard_api_testing::lifetime_test
