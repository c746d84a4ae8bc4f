// SPDX-License-Identifier: Apache-2.0
//
// Handles are made and destroyed many times, in any order and on any thread,
// and leave nothing behind.

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <thread>

#include "tests/core/base/temp_folder.h"
#include "tests/sdk/cpp/sdk_testing.h"

namespace shard_sdk_testing::lifetime_test {
namespace {

// Returns the number of entries in a folder of /proc/self.
std::ptrdiff_t count(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder),
                       std::filesystem::directory_iterator());
}

TEST(LifetimeTest, AThousandEnginesLeaveNoDescriptorAndNoThread) {
  const Net net(0);
  const auto cycle = [&] {
    Comm comm = Comm::open("local:");
    Engine engine = engine_of(net, 3, comm);
    train_step(engine);
  };
  cycle();
  const std::ptrdiff_t descriptors = count("/proc/self/fd");
  const std::ptrdiff_t threads = count("/proc/self/task");
  for (int i = 0; i < 1000; ++i) cycle();
  EXPECT_EQ(count("/proc/self/fd"), descriptors);
  EXPECT_EQ(count("/proc/self/task"), threads);
}

TEST(LifetimeTest, HandlesAreDestroyedInEveryOrder) {
  for (int order = 0; order < 24; ++order) {
    std::optional<Net> net(std::in_place, 0);
    std::optional<Comm> comm = Comm::open("local:");
    std::optional<Plan> plan = plan_of(*net, 1, *comm);
    std::optional<Engine> engine = Engine::create(*plan, *comm);
    engine->broadcast_params();
    int steps = 0;
    std::vector<int> rest = {0, 1, 2, 3};
    for (int left = 4, number = order; left > 0; number /= left--) {
      const int which = rest[static_cast<std::size_t>(number % left)];
      std::erase(rest, which);
      if (which == 0) net.reset();
      if (which == 1) comm.reset();
      if (which == 2) plan.reset();
      if (which == 3) engine.reset();
      if (!engine) continue;
      train_step(*engine);
      EXPECT_EQ(engine->completed_steps(), ++steps) << order;
    }
  }
}

TEST(LifetimeTest, HandlesMoveBetweenThreads) {
  const Net net;
  std::optional<Engine> engine;
  std::thread([&] {
    Comm comm = Comm::open("local:");
    engine = engine_of(net, 1, comm);
  }).join();
  std::thread([&] { train_step(*engine); }).join();
  EXPECT_EQ(engine->completed_steps(), 1);
}

// Handles that do not change are read by several threads, each of which trains
// with an engine of its own.
TEST(LifetimeTest, ThreadsShareWhatDoesNotChangeAndHaveTheirOwnEngines) {
  const shard::testing::TempFolder folder;
  const Net net(0);
  const Plan plan = Plan::create(net.model, {.stage = 3,
                                             .world_size = 1,
                                             .optimizer = "sgd?lr=0.5",
                                             .wrap = "class?names=Block"});
  {
    Comm comm = Comm::open("local:");
    Engine engine = engine_of(net, 3, comm);
    shard::Checkpoint::save(engine, folder.path());
  }
  const auto checkpoint = shard::Checkpoint::open(folder.path());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      Comm comm = Comm::open("local:");
      Engine engine = Engine::create(plan, comm);
      engine.broadcast_params();
      for (int step = 0; step < 3; ++step) {
        train_step(engine);
        EXPECT_EQ(plan.param_name(net.bias), "first.bias");
        EXPECT_EQ(plan.text(), engine.plan().text());
        EXPECT_EQ(checkpoint.read<float>(checkpoint.find("first.bias")),
                  std::vector<float>(40, 0.0f));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The destructors of objects in static storage run when the process exits, here
// while the save goes on.
TEST(LifetimeTest, AnEngineInStaticStorageIsDestroyedAtExit) {
  const shard::testing::TempFolder folder;
  const auto train_and_exit = [&] {
    static std::optional<Engine> engine;
    static std::optional<shard::Save> save;
    Comm comm = Comm::open("local:");
    engine = engine_of(Net(0), 1, comm, {.device = "cpu-async"});
    train_step(*engine);
    save = shard::Checkpoint::save_async(*engine, folder.path());
    std::exit(0);
  };
  EXPECT_EXIT(train_and_exit(), ::testing::ExitedWithCode(0), "^$");
  EXPECT_TRUE(std::filesystem::exists(folder / "step-000001"));
}

TEST(LifetimeTest, AMovedFromEngineIsAnErrorInEveryCall) {
  const Net net;
  Comm comm = Comm::open("local:");
  Engine engine = engine_of(net, 1, comm);
  const Engine moved = std::move(engine);
  EXPECT_EQ(engine.get(), nullptr);
  EXPECT_NE(moved.get(), nullptr);
  for (const auto& call : std::initializer_list<std::function<void()>>{
           [&] { engine.step(); }, [&] { (void)engine.plan(); },
           [&] { (void)engine.param<float>(net.bias); },
           [&] { (void)engine.unit_acquire(UnitId{0}, Pass::forward); },
           [&] { (void)shard::StateDict::get(engine); },
           [&] { shard::Checkpoint::save(engine, "nowhere"); }}) {
    expect_error(call, Code::invalid_argument, {"moved from"});
  }
}

TEST(LifetimeTest, AMovedFromPlanIsAnErrorInEveryCall) {
  const Net net;
  Comm comm = Comm::open("local:");
  Plan plan = plan_of(net, 1, comm);
  const Plan moved = std::move(plan);
  EXPECT_EQ(moved.info().world_size, 1);
  for (const auto& call : std::initializer_list<std::function<void()>>{
           [&] { (void)plan.info(); }, [&] { (void)plan.params(); },
           [&] { (void)plan.text(); }, [&] { (void)plan.encode(); },
           [&] { (void)plan.memory(); },
           [&] { (void)Engine::create(plan, comm); }}) {
    expect_error(call, Code::invalid_argument);
  }
}

TEST(LifetimeTest, AMovedFromScopeIsAnErrorInEveryCall) {
  const Net net;
  Comm comm = Comm::open("local:");
  Engine engine = engine_of(net, 1, comm);
  {
    Unit unit =
        engine.unit_acquire(engine.plan().unit_of(net.weight), Pass::forward);
    const Unit moved = std::move(unit);
    EXPECT_EQ(moved.params().size(), 2u);
    for (const auto& call : std::initializer_list<std::function<void()>>{
             [&] { (void)unit.params(); },
             [&] { (void)unit.param<float>(net.weight); },
             [&] { (void)unit.grad<float>(net.weight); },
             [&] { unit.mark_grads_ready(); }, [&] { unit.release(); }}) {
      expect_error(call, Code::failed_precondition, {"released"});
    }
  }
  shard::FullParams full = engine.summon();
  const shard::FullParams moved = std::move(full);
  EXPECT_EQ(moved.param<float>(net.bias).size(), 40u);
  for (const auto& call : std::initializer_list<std::function<void()>>{
           [&] { (void)full.param<float>(net.bias); },
           [&] { (void)full.writable_param<float>(net.bias); },
           [&] { full.end(true); }}) {
    expect_error(call, Code::failed_precondition, {"given back"});
  }
}

}  // namespace
}  // namespace shard_sdk_testing::lifetime_test
