// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory that runs out under engines on the device cuda, over the fake
// of its driver: while an engine is made, while it is given its parameters, and
// in later calls, each allocation of pinned memory fails in turn, with those
// that follow. The error says how much was asked for and what to do, nothing
// stays allocated, and training goes on with the bits of an engine that lacked
// nothing.

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/offload.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/event.h"
#include "core/device/host_access.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/cuda_offload_training.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_pinned_memory_test {
namespace {

using cuda_offload::Case;
using cuda_offload::ExpectSame;
using cuda_offload::FillWith;
using cuda_offload::kBf16;
using cuda_offload::kOffload;
using cuda_offload::MakePlan;
using cuda_offload::Train;
using cuda_training::Clipped;
using cuda_training::Fill;
using cuda_training::MakeEngine;
using testing::FakeCuda;
using testing::fake_cuda::ClearFailures;
using testing::fake_cuda::FailCall;

// Makes the n-th allocation of pinned memory from now on fail, on any rank, and
// those that follow: an allocation that fails is tried a second time, and
// several threads allocate.
void FailAllocations(uint64_t n) {
  constexpr uint64_t kFollowing = 40;
  for (uint64_t i = 0; i < kFollowing; ++i) {
    FailCall("cuMemHostAlloc", n + i, cuda::CuResult::kOutOfMemory);
  }
}

// Gives the driver the pinned memory back that the device keeps for reuse, so
// that what is allocated next is a call.
void FreeKept() {
  const auto device = cuda::OpenDevice("0");
  ASSERT_OK(device);
  FailCall("cuMemHostAlloc", 1, cuda::CuResult::kOutOfMemory);
  EXPECT_OK((*device)->AllocateHost(1, "one byte"));
}

// Expects an error that says how much pinned memory there was not, and what to
// do.
void ExpectLack(const Status& status) {
  ExpectError(status, StatusCode::kResourceExhausted,
              {" of the host's memory that stays in place (pinned) for cuda:0; "
               "free memory, or raise the limit of the container"});
  const std::string text(status.message());
  const size_t end = text.find(" bytes) of the host's memory");
  ASSERT_NE(end, std::string::npos) << text;
  const uint64_t bytes =
      std::strtoull(text.c_str() + text.rfind('(', end) + 1, nullptr, 10);
  EXPECT_GT(bytes, 0u) << text;
  EXPECT_NE(text.find(StrCat(": ", FormatBytes(bytes), " (", bytes, " bytes)")),
            std::string::npos)
      << text;
}

// Ranks of engines.
struct Form {
  const char* name;
  bool offloads;
  int ranks;
};

// The engine of one rank, and one on a processor, which has the same bits.
struct Engines {
  Engines(const Form& form, const std::shared_ptr<Communicator>& comm) {
    Case of = kBf16;
    of.deterministic = true;
    plan = MakePlan(of, form.ranks);
    if (form.offloads) offload = kOffload;
    EngineOptions cpu;
    cpu.loss_scaler = *LossScaler::Parse("dynamic?init_scale=8");
    auto made = Engine::Create(plan, comm, cpu);
    EXPECT_OK(made);
    expected = *std::move(made);
  }

  Status Make(const std::shared_ptr<Communicator>& comm) {
    SHARD_ASSIGN_OR_RETURN(engine, MakeEngine(plan, comm, offload));
    return Status();
  }
  void TrainBoth(int step) {
    Train(expected.get(), step, Clipped());
    Train(engine.get(), step, Clipped());
    ExpectSame(engine.get(), expected.get());
  }

  std::shared_ptr<const Plan> plan;
  std::optional<Offload> offload;
  std::unique_ptr<Engine> expected;
  std::unique_ptr<Engine> engine;
};

void Meet(Communicator* comm) {
  ASSERT_OK(comm->Barrier("test", Deadline::After(30)));
}
// Calls `body` on rank 0 alone, while the others wait.
void OnRankZero(Communicator* comm, const std::function<void()>& body) {
  Meet(comm);
  if (comm->rank() == 0) body();
  Meet(comm);
}

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
  // Staging memory of collectives, and the values of steps.
  EXPECT_GE(failed, 2);
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
  EXPECT_GE(failed, 1);
}

// A call that allocates pinned memory.
struct Call {
  const char* name;
  std::function<Status(Engine*, const std::string& path)> make;
  // Comes before the call, and has all the memory that it needs.
  std::function<Status(Engine*, const std::string& path)> prepare = nullptr;
  // Ends what the call has begun.
  std::function<Status(Engine*)> undo = nullptr;
};

Status Save(Engine* engine, const std::string& path, bool is_async) {
  SaveOptions options;
  options.async = is_async;
  options.overwrite = true;
  SHARD_ASSIGN_OR_RETURN(const auto save, engine->Save(path, options));
  return save == nullptr ? Status() : save->Wait(Deadline::After(30));
}

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
       .make =
           [](Engine* engine, const std::string&) {
             return engine->SetTrainable(kParams, false, 0);
           },
       .undo =
           [](Engine* engine) {
             return engine->SetTrainable(kParams, true, 0);
           }},
      {.name = "save",
       .make =
           [](Engine* engine, const std::string& path) {
             return Save(engine, path, false);
           }},
      {.name = "save_async",
       .make =
           [](Engine* engine, const std::string& path) {
             return Save(engine, path, true);
           }},
      {.name = "load",
       .make =
           [](Engine* engine, const std::string& path) {
             LoadReport report;
             return engine->Load(path, LoadOptions(), &report);
           },
       .prepare =
           [](Engine* engine, const std::string& path) {
             return Save(engine, path, false);
           }},
      {.name = "gather_state",
       .make =
           [](Engine* engine, const std::string&) {
             return engine->GatherState(
                 StateOptions(), 0, 0,
                 [](const StateEntry&, const std::byte*) { return Status(); });
           }},
      {.name = "summon",
       .make = [](Engine* engine,
                  const std::string&) { return engine->Summon(0, -1, 0); },
       .undo = end_summon},
      {.name = "write_back",
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
  for (const Call& call : Calls()) {
    int failed = 0;
    for (uint64_t n = 1; !HasFailure(); ++n, ++failed) {
      const std::string path = folder.path() + StrCat("/", call.name, n);
      if (CallWithFailure(GetParam(), call, n, path) == 0) break;
    }
    EXPECT_GE(failed, 1) << call.name;
    RecordProperty(call.name, failed);
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
