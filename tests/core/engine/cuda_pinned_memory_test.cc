// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory that runs out under engines on the device cuda, over the fake
// of its driver: while an engine is made, while it is given its parameters, and
// in later calls, each allocation of pinned memory fails in turn, with those
// that follow. The error says how much was asked for and what to do, nothing
// stays allocated, and training goes on with the bits of an engine that lacked
// nothing.

#include "tests/core/engine/cuda_pinned_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/event.h"
#include "core/device/host_access.h"
#include "core/engine/engine.h"
#include "core/state/memory_store.h"
#include "core/state/state_entries.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/cuda_offload_training.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_pinned_memory_test {
namespace {

using cuda_offload::FillWith;
using cuda_pinned_memory::Engines;
using cuda_pinned_memory::ExpectLack;
using cuda_pinned_memory::FailAllocations;
using cuda_pinned_memory::Form;
using cuda_pinned_memory::FreeKept;
using cuda_pinned_memory::OnRankZero;
using cuda_pinned_memory::Save;
using cuda_training::Fill;
using testing::FakeCuda;
using testing::fake_cuda::ClearFailures;

class PinnedMemoryTest : public ::testing::TestWithParam<Form> {
 protected:
  void SetUp() override {
    if (kSanitized && !kAddressSanitized && !GetParam().offloads) {
      GTEST_SKIP() << "under the thread sanitizer the processor's kernels have "
                      "no fma, and other bits than a GPU's";
    }
  }
};

// All ranks have the error of an engine that is not made; its communicator and
// the device are those of the next try.
TEST_P(PinnedMemoryTest, AnEngineThatIsNotMadeLeavesNothing) {
  const Form& form = GetParam();
  int failed = 0;
  for (uint64_t n = 1;; ++n) {
    std::atomic<int> lacks = 0;
    const FakeCuda fake;
    RunThreadRanks(form.ranks, [&](const auto& comm) {
      SCOPED_TRACE(StrCat("allocation ", n));
      Engines engines(form, comm);
      OnRankZero(comm.get(), [&] { FailAllocations(n); });
      const Status made = engines.Make(comm);
      if (!made.ok()) {
        ++lacks;
        ExpectLack(made);
      }
      OnRankZero(comm.get(), [&] {
        ClearFailures();
        EXPECT_TRUE(lacks == 0 || lacks == form.ranks);
        if (lacks == 0) return;
        EXPECT_EQ(testing::fake_cuda::AliveText(), "");
      });
      if (!made.ok()) ASSERT_OK(engines.Make(comm));
      for (Engine* const it : {engines.expected.get(), engines.engine.get()}) {
        FillWith(it, DType::kBF16);
      }
      engines.TrainBoth(1);
    });
    if (lacks == 0 || HasFailure()) break;
    ++failed;
  }
  // Of each rank the values of steps and its staging memory; two more where its
  // states are offloaded.
  EXPECT_EQ(failed, form.ranks * (form.offloads ? 4 : 2));
}

// Set and sent again, parameters are those that the host gave.
TEST_P(PinnedMemoryTest, ParametersAreGivenAgain) {
  const Form& form = GetParam();
  int failed = 0;
  for (uint64_t n = 1;; ++n) {
    std::atomic<int> lacks = 0;
    const FakeCuda fake;
    RunThreadRanks(form.ranks, [&](const auto& comm) {
      SCOPED_TRACE(StrCat("allocation ", n));
      Engines engines(form, comm);
      ASSERT_OK(engines.Make(comm));
      OnRankZero(comm.get(), [&] {
        FreeKept();
        FailAllocations(n);
      });
      Status filled = Fill(engines.engine.get());
      if (!filled.ok()) {
        ++lacks;
        ExpectLack(filled);
        // The other ranks wait for the parameters.
        ClearFailures();
        filled = Fill(engines.engine.get());
      }
      ASSERT_OK(filled);
      OnRankZero(comm.get(), ClearFailures);
      ASSERT_OK(Fill(engines.expected.get()));
      engines.TrainBoth(1);
    });
    if (lacks == 0 || HasFailure()) break;
    ++failed;
  }
  // The staging memory of the rank that has set the parameters.
  EXPECT_EQ(failed, 1);
}

// A call that allocates pinned memory.
struct Call {
  const char* name;
  // The allocations without which it fails: of each rank, of rank 0 besides,
  // and of each rank whose states are offloaded besides, or less.
  int of_a_rank;
  int of_rank_zero = 0;
  int of_states = 0;
  std::function<Status(Engine*, const std::string& path)> make;
  // Comes before the call, and has all the memory that it needs.
  std::function<Status(Engine*, const std::string& path)> prepare = nullptr;
  // Ends what the call has begun.
  std::function<Status(Engine*)> undo = nullptr;
};

std::vector<Call> Calls() {
  static constexpr ParamId kParams[] = {0};
  const auto end_summon = [](Engine* engine) {
    return engine->EndSummon(false, 0);
  };
  const auto write_back = [](Engine* engine, const std::string&) {
    return engine->EndSummon(true, 0);
  };
  return {
      {.name = "set_trainable",
       .of_a_rank = 1,
       .of_states = 2,
       .make =
           [](Engine* engine, const std::string&) {
             return engine->SetTrainable(kParams, false, 0);
           },
       .undo =
           [](Engine* engine) {
             return engine->SetTrainable(kParams, true, 0);
           }},
      {.name = "save",
       .of_a_rank = 1,
       .make =
           [](Engine* engine, const std::string& path) {
             return Save(engine, path, false);
           }},
      {.name = "save_async",
       .of_a_rank = 1,
       .make =
           [](Engine* engine, const std::string& path) {
             return Save(engine, path, true);
           }},
      {.name = "load",
       .of_a_rank = 1,
       .make =
           [](Engine* engine, const std::string& path) {
             LoadReport report;
             return engine->Load(path, LoadOptions(), &report);
           },
       .prepare =
           [](Engine* engine, const std::string& path) {
             return Save(engine, path, false);
           }},
      {.name = "load_state_dict",
       .of_a_rank = 2,
       .make =
           [](Engine* engine, const std::string&) {
             MemoryStore store;
             SHARD_RETURN_IF_ERROR(
                 engine->AddLocalState(StateOptions(), &store));
             LoadReport report;
             return engine->LoadState(&store, LoadOptions(), &report);
           }},
      {.name = "gather_state",
       .of_a_rank = 2,
       .of_rank_zero = 1,
       .make =
           [](Engine* engine, const std::string&) {
             return engine->GatherState(
                 StateOptions(), 0, 0,
                 [](const StateEntry&, const std::byte*) { return Status(); });
           }},
      // Offloaded states are sent from where they lie.
      {.name = "gather_optimizer_states",
       .of_a_rank = 2,
       .of_rank_zero = 1,
       .of_states = -1,
       .make =
           [](Engine* engine, const std::string&) {
             return engine->GatherState(
                 StateOptions{.content = StateContent::kOptimizer}, 0, 0,
                 [](const StateEntry&, const std::byte*) { return Status(); });
           }},
      {.name = "summon",
       .of_a_rank = 2,
       .make = [](Engine* engine,
                  const std::string&) { return engine->Summon(0, -1, 0); },
       .undo = end_summon},
      {.name = "write_back",
       .of_a_rank = 2,
       .make = write_back,
       .prepare = [](Engine* engine,
                     const std::string&) { return engine->Summon(0, -1, 0); }},
  };
}

// Makes a call whose n-th allocation fails. Returns how many ranks had the
// error.
int CallWithFailure(const Form& form, const Call& call, uint64_t n,
                    const std::string& path) {
  std::atomic<int> lacks = 0;
  const FakeCuda fake;
  RunThreadRanks(form.ranks, [&](const auto& comm) {
    SCOPED_TRACE(StrCat(call.name, ", allocation ", n));
    Engines engines(form, comm);
    ASSERT_OK(engines.Make(comm));
    Engine* const engine = engines.engine.get();
    for (Engine* const it : {engines.expected.get(), engine}) {
      FillWith(it, DType::kBF16);
    }
    engines.TrainBoth(1);
    if (call.prepare != nullptr) ASSERT_OK(call.prepare(engine, path));
    const Plan* const plan = &engine->plan();
    OnRankZero(comm.get(), [&] {
      FreeKept();
      FailAllocations(n);
    });
    const Status made = call.make(engine, path);
    if (!made.ok()) {
      ++lacks;
      ExpectLack(made);
    }
    OnRankZero(comm.get(), [&] {
      ClearFailures();
      EXPECT_TRUE(lacks == 0 || lacks == form.ranks) << lacks;
    });
    if (lacks > 0) {
      EXPECT_EQ(&engine->plan(), plan);
      engines.TrainBoth(2);
      if (call.prepare != nullptr) ASSERT_OK(call.prepare(engine, path));
      ASSERT_OK(call.make(engine, path));
    }
    if (call.undo != nullptr) ASSERT_OK(call.undo(engine));
  });
  return lacks;
}

// As many allocations fail as a call needs.
TEST_P(PinnedMemoryTest, TrainingGoesOnAfterACall) {
  const testing::TempFolder folder;
  const Form& form = GetParam();
  for (const Call& call : Calls()) {
    int failed = 0;
    for (uint64_t n = 1; !HasFailure(); ++n, ++failed) {
      const std::string path = folder.path() + StrCat("/", call.name, n);
      if (CallWithFailure(form, call, n, path) == 0) break;
    }
    const int of_a_rank = call.of_a_rank + (form.offloads ? call.of_states : 0);
    EXPECT_EQ(failed, form.ranks * of_a_rank + call.of_rank_zero) << call.name;
  }
}

// There is room for the staging memory of one thread.
TEST(PinnedStagingTest, ThreadsTakeTurns) {
  constexpr size_t kRoom = HostAccess::kStagingBytes + (size_t{64} << 10);
  const FakeCuda fake({.pinned_bytes = kRoom});
  const auto device = cuda::OpenDevice("0");
  ASSERT_OK(device);
  const auto access =
      HostAccess::Open(device->get(), Event(), Deadline::After(30));
  ASSERT_OK(access);
  constexpr size_t kBytes = 64 << 10;
  const auto tensor = (*device)->Allocate(kBytes, "a tensor");
  ASSERT_OK(tensor);
  constexpr int kThreads = 8;
  std::latch ready(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      std::vector<std::byte> bytes(kBytes);
      const HostCopy copy = {bytes.data(), tensor->data(), kBytes};
      ready.arrive_and_wait();
      for (int i = 0; i < 20; ++i) {
        EXPECT_OK((*access)->Fetch({&copy, 1}, Deadline::After(30)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(, PinnedMemoryTest,
                         ::testing::Values(Form{"one_rank", false, 1},
                                           Form{"two_ranks", false, 2},
                                           Form{"two_ranks_offload", true, 2}),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace shard::cuda_pinned_memory_test
