// SPDX-License-Identifier: Apache-2.0
//
// Processes that fork while they have handles: what the child may do with its
// parent's, and that the parent's ranks go on.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/api/rank_processes.h"
#include "tests/core/base/temp_folder.h"

namespace shard_api_testing::fork_test {
namespace {

using shard::testing::ExpectAllPassed;
using shard::testing::Rank;

// Reads the names of `plan` on two threads at once, then frees it. Returns
// whether both threads could read.
bool ReadOnTwoThreadsAndFree(shard_plan* plan) {
  std::atomic<int> ready{0};
  std::atomic<int> read{0};
  const auto read_names = [&] {
    // Both threads come to the plan first.
    ++ready;
    while (ready < 2) continue;
    for (int32_t param = 0; param < 2; ++param) {
      const char* name = nullptr;
      if (shard_plan_param_name(plan, param, 0, &name) != nullptr) return;
      if (std::strlen(name) == 0) return;
    }
    ++read;
  };
  std::thread other(read_names);
  read_names();
  other.join();
  shard_plan_free(plan);
  return read == 2;
}

// A thread of the parent holds the plan's locks while some of the children are
// made. The parent's plan outlives the children's.
TEST(ForkTest, AChildOfForkReadsAndFreesAPlanThatItsParentReads) {
  const Plan plan = SmallPlan(2);
  std::atomic<bool> done{false};
  std::thread reader([&] {
    const char* name = nullptr;
    while (!done) {
      shard_error_free(shard_plan_param_name(plan.get(), 0, 0, &name));
    }
  });
  for (int i = 0; i < 50; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      shard_plan_info info = SHARD_PLAN_INFO_INIT;
      const bool read = shard_plan_get_info(plan.get(), &info) == nullptr &&
                        ReadOnTwoThreadsAndFree(plan.get());
      ::_exit(read ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << i;
    if (status != 0) break;
  }
  done = true;
  reader.join();
}

// A child of fork may free the handles that it has from its parent, without an
// effect on the parent, and trains with handles of its own.
TEST(ForkTest, AChildOfForkFreesAndOpensItsOwn) {
  const std::string url = "shm:" + shard::testing::UniqueName();
  ExpectAllPassed(shard::testing::RunRanks(2, [&](const Rank& me) {
    shard_comm* const comm = OpenAs(me, url);
    ASSERT_NE(comm, nullptr);
    Comm owned(comm);
    Engine engine = TrainingEngine(comm);
    FillGrad(engine.get(), 1.0f);
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    const float before = WeightOf(engine.get())[0];
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(20);
      engine.reset();
      owned.reset();
      shard_comm* alone = nullptr;
      EXPECT_OK(shard_comm_open("local:", nullptr, &alone));
      if (alone == nullptr) ::_exit(1);
      {
        const Comm mine(alone);
        const Engine another = TrainingEngine(alone);
        FillGrad(another.get(), 1.0f);
        EXPECT_OK(shard_engine_step(another.get(), nullptr, nullptr));
        EXPECT_EQ(WeightOf(another.get())[0], before);
      }
      ::_exit(::testing::Test::HasFailure() ? 2 : 0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    FillGrad(engine.get(), 1.0f);
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    EXPECT_NE(WeightOf(engine.get())[0], before);
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  }));
}

// Returns calls on the handles of a rank, one for each way into the library.
std::vector<std::pair<std::string, std::function<shard_error*()>>> CallsOn(
    shard_comm* comm, shard_engine* engine, shard_save* save) {
  static const void* data;
  static void* written;
  static int64_t numel;
  static double value;
  return {
      {"describe",
       [=] {
         static const char* text;
         return shard_comm_describe(comm, &text);
       }},
      {"barrier", [=] { return shard_comm_barrier(comm, 0); }},
      {"sum", [=] { return shard_comm_sum(comm, &value, 1, 0); }},
      {"broadcast",
       [=] { return shard_comm_broadcast(comm, &value, 8, 0, 0); }},
      {"abort", [=] { return shard_comm_abort(comm, "of the child"); }},
      {"shutdown", [=] { return shard_comm_shutdown(comm, 0); }},
      {"create",
       [=] {
         shard_engine* another = nullptr;
         return shard_engine_create(SmallPlan(2).get(), comm, nullptr,
                                    &another);
       }},
      {"step", [=] { return shard_engine_step(engine, nullptr, nullptr); }},
      {"capture_begin", [=] { return shard_engine_capture_begin(engine); }},
      {"capture_end", [=] { return shard_engine_capture_end(engine); }},
      {"before_replay",
       [=] { return shard_engine_before_replay(engine, nullptr); }},
      {"param", [=] { return shard_engine_param(engine, 0, &data, &numel); }},
      {"grad", [=] { return shard_engine_grad(engine, 0, &written, &numel); }},
      {"zero_grad", [=] { return shard_engine_zero_grad(engine); }},
      {"unit_acquire",
       [=] { return shard_engine_unit_acquire(engine, 0, 1, 0); }},
      {"unit_release", [=] { return shard_engine_unit_release(engine, 0); }},
      {"summon", [=] { return shard_engine_summon(engine, 0, -1, 0); }},
      {"set_hyper", [=] { return shard_engine_set_hyper(engine, 0, "lr", 1); }},
      {"set_trainable",
       [=] {
         const int32_t param = 0;
         return shard_engine_set_trainable(engine, &param, 1, 0, 0);
       }},
      {"state_dict_get",
       [=] {
         shard_state_dict* state = nullptr;
         return shard_state_dict_get(engine, nullptr, &state);
       }},
      {"save",
       [=] { return shard_checkpoint_save(engine, "no", nullptr, nullptr); }},
      {"load",
       [=] { return shard_checkpoint_load(engine, "no", nullptr, nullptr); }},
      {"save_wait", [=] { return shard_save_wait(save, 0); }},
  };
}

// Fails the test for each call on a handle of the parent that is not an error
// at once, and frees the handles.
void UseHandlesOfTheParent(Comm comm, Engine engine, Save save) {
  for (const auto& [name, call] :
       CallsOn(comm.get(), engine.get(), save.get())) {
    SCOPED_TRACE(name);
    EXPECT_FAILS(call(), SHARD_FAILED_PRECONDITION, "fork",
                 std::to_string(::getppid()));
  }
  EXPECT_EQ(shard_save_done(save.get()), 1);
  EXPECT_EQ(shard_comm_rank(comm.get()), shard_comm_local_rank(comm.get()));
}

// The ranks of the parent hear nothing of such calls, whether the ranks share
// memory or threads of the library send what they exchange.
TEST(ForkTest, HandlesOfTheParentAreErrorsInAChildOfFork) {
  const shard::testing::TempFolder folder;
  for (const std::string query : {"", "?direct=0"}) {
    const std::string url = "shm:" + shard::testing::UniqueName() + query;
    ExpectAllPassed(shard::testing::RunRanks(2, [&](const Rank& me) {
      Comm comm(OpenAs(me, url));
      ASSERT_NE(comm, nullptr);
      shard_engine_options options = SHARD_ENGINE_OPTIONS_INIT;
      options.device = "cpu-async";
      shard_engine* made = nullptr;
      ASSERT_OK(
          shard_engine_create(SmallPlan(2).get(), comm.get(), &options, &made));
      Engine engine(made);
      ASSERT_OK(shard_engine_broadcast_params(engine.get(), 0));
      const std::string root = folder.path() + (query.empty() ? "/s" : "/u");
      shard_save* started = nullptr;
      ASSERT_OK(
          shard_checkpoint_save(engine.get(), root.c_str(), nullptr, &started));
      Save save(started);
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        ::alarm(20);
        UseHandlesOfTheParent(std::move(comm), std::move(engine),
                              std::move(save));
        ::_exit(::testing::Test::HasFailure() ? 2 : 0);
      }
      int status = -1;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
      EXPECT_OK(shard_save_wait(save.get(), 0));
      EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
      EXPECT_OK(shard_comm_shutdown(comm.get(), 0));
    }));
  }
}

}  // namespace
}  // namespace shard_api_testing::fork_test
