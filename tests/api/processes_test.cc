// SPDX-License-Identifier: Apache-2.0
//
// Tests that need processes: ranks that disagree on their number, and memory
// that runs out.

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "tests/api/rank_processes.h"
#include "tests/core/base/temp_folder.h"

namespace shard_api_testing::processes_test {
namespace {

using shard::testing::ExpectAllPassed;
using shard::testing::Rank;

TEST(ProcessesTest, WorldSizesThatDifferAreErrors) {
  const std::string url = "shm:" + shard::testing::UniqueName();
  ExpectAllPassed(shard::testing::RunRanks(3, [&](const Rank& me) {
    shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
    options.rank = me.rank();
    options.world_size = me.rank() == 1 ? 4 : 3;
    options.timeout = 10;
    shard_comm* comm = Garbage<shard_comm>();
    EXPECT_FAILS(shard_comm_open(url.c_str(), &options, &comm),
                 SHARD_INVALID_ARGUMENT, "world size", "3", "4");
    EXPECT_EQ(comm, nullptr);
  }));
}

TEST(ProcessesTest, TwoRanksTrain) {
  const std::string url = "shm:" + shard::testing::UniqueName();
  ExpectAllPassed(shard::testing::RunRanks(2, [&](const Rank& me) {
    shard_comm* const comm = OpenAs(me, url);
    ASSERT_NE(comm, nullptr);
    const Comm owned(comm);
    const Engine engine = TrainingEngine(comm);
    FillGrad(engine.get(), me.rank() == 0 ? 2.0f : 0.0f);
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    EXPECT_EQ(WeightOf(engine.get())[0], 0.5f);
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  }));
}

// One rank sums while the other one steps: both wait for a call that cannot
// come.
TEST(ProcessesTest, RanksThatWaitForEachOtherAreNamed) {
  for (const std::string query : {"", "?direct=0"}) {
    for (const int stepping : {0, 1}) {
      const std::string url = "shm:" + shard::testing::UniqueName() + query;
      ExpectAllPassed(shard::testing::RunRanks(2, [&](const Rank& me) {
        shard_comm* const comm = OpenAs(me, url);
        ASSERT_NE(comm, nullptr);
        const Comm owned(comm);
        const Engine engine = TrainingEngine(comm);
        double value = 1;
        const bool steps = me.rank() == stepping;
        const std::string names[] = {
            stepping == 0 ? "shard_engine_step" : "shard_comm_sum",
            stepping == 0 ? "shard_comm_sum" : "shard_engine_step"};
        EXPECT_FAILS(steps ? shard_engine_step(engine.get(), nullptr, nullptr)
                           : shard_comm_sum(comm, &value, 1, 0),
                     SHARD_DESYNC, "rank 0 waits in " + names[0] + " (",
                     ", rank 1 in " + names[1] + " (");
      }));
    }
  }
}

TEST(ProcessesTest, BuffersAreBroadcastAndSaved) {
  const shard::testing::TempFolder folder;
  for (const std::string query : {"", "?direct=0"}) {
    const std::string url = "shm:" + shard::testing::UniqueName() + query;
    ExpectAllPassed(shard::testing::RunRanks(3, [&](const Rank& me) {
      shard_comm* const comm = OpenAs(me, url);
      ASSERT_NE(comm, nullptr);
      const Comm owned(comm);
      const Model model = SmallModel();
      int32_t buffer = -1;
      ASSERT_OK(shard_model_add_buffer(model.get(), 0, "tracked", SHARD_I64,
                                       nullptr, 0, 1, &buffer));
      const Engine engine =
          MakeEngine(MakePlan(model.get(), PlanOptions(3)).get(), comm);
      ASSERT_OK(shard_engine_broadcast_params(engine.get(), 0));
      void* data = nullptr;
      ASSERT_OK(shard_engine_buffer(engine.get(), buffer, &data, nullptr));
      auto* const tracked = static_cast<int64_t*>(data);
      *tracked = 100 + me.rank();
      ASSERT_OK(shard_engine_broadcast_buffers(engine.get(), 1, 0));
      EXPECT_EQ(*tracked, 101);
      const std::string root = folder.path() + (query.empty() ? "/s" : "/u");
      ASSERT_OK(
          shard_checkpoint_save(engine.get(), root.c_str(), nullptr, nullptr));
      *tracked = me.rank();
      ASSERT_OK(
          shard_checkpoint_load(engine.get(), root.c_str(), nullptr, nullptr));
      EXPECT_EQ(*tracked, 101);
      EXPECT_OK(shard_comm_shutdown(comm, 0));
    }));
  }
}

// A killed rank cannot say goodbye; the other ranks learn which one it was.
TEST(ProcessesTest, AKilledRankIsNamedToTheOthers) {
  constexpr int kVictim = 2;
  const std::string url = "shm:" + shard::testing::UniqueName();
  const auto results = shard::testing::RunRanks(3, [&](const Rank& me) {
    shard_comm* const comm = OpenAs(me, url);
    ASSERT_NE(comm, nullptr);
    const Comm owned(comm);
    const Engine engine = TrainingEngine(comm);
    ASSERT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    if (me.rank() == kVictim) ::kill(::getpid(), SIGKILL);
    shard_error* error = shard_engine_step(engine.get(), nullptr, nullptr);
    EXPECT_EQ(shard_error_code(error), SHARD_RANK_LOST);
    EXPECT_EQ(shard_error_rank(error), kVictim);
    shard_error_free(error);
    // The error stays, and everything can still be freed.
    EXPECT_FAILS(shard_comm_barrier(comm, 0), SHARD_RANK_LOST, "rank 2");
  });
  for (const auto& result : results) {
    if (result.rank == kVictim) {
      EXPECT_EQ(result.signal, SIGKILL) << result.ToString();
    } else {
      EXPECT_TRUE(result.passed()) << result.ToString();
      EXPECT_LT(result.seconds, 11) << result.ToString();
    }
  }
}

// A model that is larger than any machine is refused, and nothing is harmed.
TEST(ProcessesTest, ModelsLargerThanTheMachineAreRefused) {
  const Comm comm = OpenLocal();
  const Model model = EmptyModel();
  AddParam(model.get(), "huge", {int64_t{1} << 45});
  const Plan plan = MakePlan(model.get(), PlanOptions(1));
  shard_engine* engine = Garbage<shard_engine>();
  EXPECT_FAILS(shard_engine_create(plan.get(), comm.get(), nullptr, &engine),
               SHARD_RESOURCE_EXHAUSTED, "TiB");
  EXPECT_EQ(engine, nullptr);
  EXPECT_OK(
      shard_engine_step(TrainingEngine(comm.get()).get(), nullptr, nullptr));
}

// Each buffer would fit into memory, all of them together would not. The kernel
// would grant the pages, and kill a process that touches them.
TEST(ProcessesTest, SumsLargerThanTheMachineAreRefused) {
  FILE* file = std::fopen("/proc/meminfo", "r");
  ASSERT_NE(file, nullptr);
  long long total_kib = 0;
  ASSERT_EQ(std::fscanf(file, "MemTotal: %lld", &total_kib), 1);
  std::fclose(file);
  const Comm comm = OpenLocal();
  const Model model = EmptyModel();
  // Parameters, gradients and two states take four times 30 % of all memory.
  AddParam(model.get(), "large", {total_kib * 1024 * 3 / 10 / 4});
  shard_plan_options options = PlanOptions(1);
  options.optimizer = "adamw";
  const Plan plan = MakePlan(model.get(), options);
  shard_engine* engine = Garbage<shard_engine>();
  EXPECT_FAILS(shard_engine_create(plan.get(), comm.get(), nullptr, &engine),
               SHARD_RESOURCE_EXHAUSTED, "GiB");
  EXPECT_EQ(engine, nullptr);
}

// Limits the address space of this process during its lifetime, to `extra`
// bytes more than it has.
class MemoryLimit {
 public:
  explicit MemoryLimit(size_t extra) {
    size_t pages = 0;
    FILE* file = std::fopen("/proc/self/statm", "r");
    if (file == nullptr || std::fscanf(file, "%zu", &pages) != 1) ::_exit(90);
    std::fclose(file);
    ::getrlimit(RLIMIT_AS, &before_);
    rlimit limit = before_;
    limit.rlim_cur =
        pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + extra;
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ~MemoryLimit() { ::setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_;
};

// The allocator and mmap fail at every point in turn, as the limit grows, until
// the memory is enough.
TEST(ProcessesTest, MemoryThatRunsOutIsAnError) {
  ExpectAllPassed(shard::testing::RunRanks(1, [](const Rank&) {
    const Model model = EmptyModel();
    for (int i = 0; i < 20000; ++i) {
      AddParam(model.get(), "parameter_" + std::to_string(i), {200});
    }
    const Comm comm = OpenLocal();
    int refused = 0;
    int succeeded = 0;
    for (size_t extra = 0; extra < (size_t{160} << 20) && succeeded == 0;
         extra += size_t{512} << 10) {
      shard_plan* plan = nullptr;
      shard_engine* engine = nullptr;
      shard_error* error = nullptr;
      {
        const MemoryLimit limit(extra);
        const shard_plan_options options = PlanOptions(1);
        error = shard_plan_create(model.get(), &options, &plan);
        if (error == nullptr) {
          error = shard_engine_create(plan, comm.get(), nullptr, &engine);
        }
      }
      const Plan owned_plan(plan);
      const Engine owned_engine(engine);
      if (error == nullptr) {
        ++succeeded;
      } else {
        ++refused;
        ASSERT_EQ(shard_error_code(error), SHARD_RESOURCE_EXHAUSTED)
            << shard_error_message(error);
        ASSERT_EQ(engine, nullptr);
      }
      shard_error_free(error);
    }
    EXPECT_EQ(succeeded, 1);
    EXPECT_GT(refused, 5);
  }));
}

}  // namespace
}  // namespace shard_api_testing::processes_test
