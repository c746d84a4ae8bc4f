// SPDX-License-Identifier: Apache-2.0
//
// Handles are freed in any order, and leave nothing behind: each keeps alive
// what it needs. Threads share those that do not change.

#include <malloc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tests/api/api_testing.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"

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

// Returns the number of entries in a folder of /proc/self.
std::ptrdiff_t Count(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder),
                       std::filesystem::directory_iterator());
}

// Returns the bytes that malloc has given out, and those of all mappings.
size_t AllocatedBytes() { return ::mallinfo2().uordblks; }
size_t MappedPages() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

// A round of a host: everything is made, used and freed, on ranks that share
// memory or send what they exchange.
void MakeUseAndFree(const std::string& query) {
  const std::string url = UniqueUrl(2) + query;
  const auto rank = [&](int number) {
    shard_comm_options comm_options = SHARD_COMM_OPTIONS_INIT;
    comm_options.rank = number;
    comm_options.world_size = 2;
    shard_comm* opened = nullptr;
    ASSERT_OK(shard_comm_open(url.c_str(), &comm_options, &opened));
    const Comm comm(opened);
    const Engine engine = TrainingEngine(comm.get());
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    shard_state_dict* taken = nullptr;
    EXPECT_OK(shard_state_dict_get(engine.get(), nullptr, &taken));
    const State state(taken);
    EXPECT_FAILS(shard_engine_set_hyper(engine.get(), 9, "lr", 1),
                 SHARD_INVALID_ARGUMENT, "9");
    EXPECT_OK(shard_comm_shutdown(comm.get(), 0));
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
}

// Half of the rounds have threads of the library, which send what is exchanged.
TEST(LifetimeTest, AThousandRoundsLeaveNothingBehind) {
  const auto rounds = [](int count) {
    for (int i = 0; i < count; ++i) {
      MakeUseAndFree(i % 2 == 0 ? "" : "&direct=0");
    }
  };
  rounds(20);
  const std::ptrdiff_t descriptors = Count("/proc/self/fd");
  const std::ptrdiff_t threads = Count("/proc/self/task");
  const size_t allocated = AllocatedBytes();
  const size_t mapped = MappedPages();
  rounds(shard::kSanitized ? 100 : 1000);
  EXPECT_EQ(Count("/proc/self/fd"), descriptors);
  EXPECT_EQ(Count("/proc/self/task"), threads);
  // The allocator of a sanitizer keeps what is freed, and finds leaks itself.
  if (shard::kSanitized) return;
  // 16 bytes per round would be 16000.
  EXPECT_LT(AllocatedBytes(), allocated + 8000);
  EXPECT_LT(MappedPages(), mapped + 500);
}

// Handles that do not change are shared by threads, of which each has a model,
// a communicator and an engine of its own.
TEST(LifetimeTest, ThreadsShareWhatDoesNotChange) {
  const shard::testing::TempFolder folder;
  const std::string root = folder.path() + "/root";
  const Plan plan = SmallPlan(1);
  {
    const Comm comm = OpenLocal();
    const Engine engine = TrainingEngine(comm.get());
    ASSERT_OK(
        shard_checkpoint_save(engine.get(), root.c_str(), nullptr, nullptr));
  }
  shard_checkpoint* opened = nullptr;
  ASSERT_OK(shard_checkpoint_open(root.c_str(), &opened));
  const Checkpoint checkpoint(opened);
  shard_plan* none = nullptr;
  shard_error* const error = shard_plan_create(nullptr, nullptr, &none);
  const auto use = [&] {
    const Comm comm = OpenLocal();
    const Engine engine = MakeEngine(plan.get(), comm.get());
    EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
    for (int step = 1; step <= 20; ++step) {
      FillGrad(engine.get(), 1.0f);
      EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
      EXPECT_EQ(WeightOf(engine.get())[0], -0.5f * static_cast<float>(step));
      EXPECT_EQ(TextOf(shard_plan_param_name, plan.get(), kBias, 0), "bias");
      int64_t tensor = -1;
      EXPECT_OK(shard_checkpoint_find(checkpoint.get(), "weight", &tensor));
      std::array<float, kWeightNumel> read = {};
      EXPECT_OK(shard_checkpoint_read(checkpoint.get(), tensor, 0, kWeightNumel,
                                      read.data(), sizeof(read)));
      EXPECT_EQ(read[0], 1.0f);
      EXPECT_EQ(TextOf(shard_checkpoint_tensor_key, checkpoint.get(), tensor),
                "weight");
      EXPECT_STREQ(shard_error_message(error), "model is NULL");
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back(use);
  for (std::thread& thread : threads) thread.join();
  shard_error_free(error);
}

}  // namespace
}  // namespace shard_api_testing::lifetime_test
