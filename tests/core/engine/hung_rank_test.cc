// SPDX-License-Identifier: Apache-2.0
//
// A rank that hangs before or during a save or a load. Where ranks only agree
// on something, the others fail after the engine's timeout, not after the
// timeout of the whole save; a rank that works on files may take as long as the
// latter.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/forwarding_env.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/worlds.h"

namespace shard::hung_rank_test {
namespace {

constexpr int kRanks = 3;
constexpr int kHung = 2;
// The engine's timeout in seconds. Steps on a loaded machine must take less; on
// NCCL engines of some worlds are made within it at the same time.
const double kTimeout = TestsAreOn("fake_nccl") ? 8 : 3;

// Holds the hung rank until the others have given up.
class Gate {
 public:
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    opened_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

// Tells that a rank has given up, or that its body has ended: a rank that fails
// early would leave those that wait for it where they are.
class AtEnd {
 public:
  explicit AtEnd(std::function<void()> tell) : tell_(std::move(tell)) {}
  ~AtEnd() { Tell(); }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;

  // Tells it now.
  void Tell() {
    if (tell_) std::exchange(tell_, nullptr)();
  }

 private:
  std::function<void()> tell_;
};

using Call = std::function<Status(Engine*, const std::string& root)>;

Status SaveTo(Engine* engine, const std::string& root, bool async) {
  const SaveOptions options = {.async = async,
                               .env = testing::NoSyncEnv::Get()};
  SHARD_ASSIGN_OR_RETURN(const auto save, engine->Save(root, options));
  return save == nullptr ? Status() : save->Wait(Deadline::After(60));
}

Status LoadFrom(Engine* engine, const std::string& root) {
  LoadReport report;
  return engine->Load(root, LoadOptions(), &report);
}

Status LoadDict(Engine* engine, bool from_rank0) {
  MemoryStore store;
  SHARD_RETURN_IF_ERROR(engine->AddLocalState(StateOptions(), &store));
  const LoadOptions options = {.state = {.content = StateContent::kModel},
                               .rules = {.strict = false},
                               .from_rank0 = from_rank0};
  LoadReport report;
  return engine->LoadState(&store, options, &report);
}

struct Hang {
  const char* name;
  Call call;
  // The phase of the call in which the rank hangs; empty if the rank never
  // makes the call.
  const char* phase;
};

// NOLINTNEXTLINE: a table.
std::vector<Hang> Hangs() {
  const Call save = [](Engine* engine, const std::string& root) {
    return SaveTo(engine, root, false);
  };
  const Call async_save = [](Engine* engine, const std::string& root) {
    return SaveTo(engine, root, true);
  };
  const Call load = LoadFrom;
  const Call load_dict = [](Engine* engine, const std::string&) {
    return LoadDict(engine, false);
  };
  // The call has a long timeout of its own.
  const Call gather = [](Engine* engine, const std::string&) {
    return engine->GatherState(
        StateOptions(), 0, 1800,
        [](const StateEntry&, const std::byte*) { return Status(); });
  };
  return {{"save", save, ""},
          {"async save", async_save, ""},
          {"load", load, ""},
          {"state load", load_dict, ""},
          {"state gather", gather, ""},
          {"save: options", save, "agree on operation"},
          {"save: blobs", save, "the host's blobs"},
          {"save: checksums", save, "save checkpoint: checksums"},
          {"async save: checksums", async_save, "save checkpoint: checksums"},
          {"load: options", load, "agree on operation"},
          {"load: which one", load, "the checkpoint"},
          {"load: elements", load, "load: elements"},
          {"state load: keys", load_dict, "the state dict"}};
}

// Lets three ranks train, then lets one of them hang.
void RunHang(const Hang& hang) {
  SCOPED_TRACE(hang.name);
  const testing::TempFolder root;
  const UnitTraining training = AwkwardTraining(kRanks, 1);
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  const std::string url = StrCat("threads:", kRanks, "?name=", hang.name);
  Gate gate;
  std::atomic<bool> trained{false};
  std::atomic<int> waiting{kRanks - 1};
  const auto run = [&](int rank) {
    SCOPED_TRACE(StrCat(hang.name, ", rank ", rank));
    AtEnd gives_up([&, rank] {
      if (rank != kHung && --waiting == 0) gate.Open();
    });
    CommOptions options;
    options.rank = rank;
    options.world_size = kRanks;
    options.phase_hook = [&, rank](std::string_view what) {
      if (trained && rank == kHung && what == hang.phase) gate.Wait();
    };
    const auto comm = OpenCommunicator(url, options);
    ASSERT_OK(comm);
    const EngineOptions engine_options = {.timeout = kTimeout};
    const auto made = CreateEngine(*plan, *comm, engine_options);
    ASSERT_OK(made);
    UnitTrainer trainer(training, made->get());
    trainer.Fill();
    ASSERT_OK(SaveTo(made->get(), root.path(), false));  // For the loads.
    TrainSteps(1, 1, made->get(), &trainer);
    ASSERT_OK((*comm)->Barrier("trained", Deadline::After(30)));
    trained = true;
    if (rank == kHung && *hang.phase == '\0') return gate.Wait();
    const auto begun = std::chrono::steady_clock::now();
    const Status status = hang.call(made->get(), root.path());
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - begun;
    if (rank == kHung) return;
    gives_up.Tell();
    EXPECT_TRUE(status.code() == StatusCode::kDeadlineExceeded ||
                status.code() == StatusCode::kPoisoned)
        << status.ToString();
    EXPECT_EQ(status.rank(), kHung) << status.ToString();
    EXPECT_LT(took.count(), 10 * kTimeout);
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back(run, rank);
  for (std::thread& rank : ranks) rank.join();
}

// The worlds run at the same time, because they mostly wait.
TEST(HungRankTest, MeetingsEndWithTheEnginesTimeout) {
  std::vector<std::thread> worlds;
  const std::vector<Hang> hangs = Hangs();
  for (const Hang& hang : hangs) worlds.emplace_back([&] { RunHang(hang); });
  for (std::thread& world : worlds) world.join();
}

// Delays the first write until the engine's timeout is over.
class SlowEnv final : public testing::ForwardingEnv {
 public:
  SlowEnv() : ForwardingEnv(testing::NoSyncEnv::Get()) {}

  ssize_t Write(int fd, const void* data, size_t bytes,
                uint64_t offset) override {
    OutlastTimeout();
    return base()->Write(fd, data, bytes, offset);
  }

  bool outlasted() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return outlasted_;
  }

 private:
  // Sleeps, because the time itself is the condition.
  void OutlastTimeout() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (outlasted_) return;
    outlasted_ = true;
    std::this_thread::sleep_for(std::chrono::duration<double>(1.3 * kTimeout));
  }

  std::mutex mutex_;
  bool outlasted_ = false;
};

void RunSlowSave(bool async) {
  const testing::TempFolder root;
  UnitTraining training = AwkwardTraining(kRanks, 1);
  training.engine.timeout = kTimeout;
  RunWorld(training, 1, [&](Engine* engine, UnitTrainer* trainer) {
    const bool is_slow = engine->comm()->rank() == 1;
    SlowEnv slow;
    SaveOptions options;
    options.async = async;
    options.env = testing::NoSyncEnv::Get();
    if (is_slow) options.env = &slow;
    ASSERT_OK(engine->Save(root.path(), options));
    if (async) {
      // The next save also waits for the writes of this one.
      options.env = testing::NoSyncEnv::Get();
      options.overwrite = true;
      const auto next = engine->Save(root.path(), options);
      ASSERT_OK(next);
      ASSERT_OK((*next)->Wait(Deadline::After(60)));
    }
    EXPECT_EQ(slow.outlasted(), is_slow);
    TrainSteps(2, 2, engine, trainer);
  });
}

TEST(HungRankTest, ARankThatWritesMayTakeLonger) {
  std::thread beside([] { RunSlowSave(false); });
  RunSlowSave(true);
  beside.join();
}

TEST(HungRankTest, ARankThatReceivesFromRank0MayTakeLonger) {
  UnitTraining training = AwkwardTraining(kRanks, 1);
  training.engine.timeout = kTimeout;
  RunWorld(training, 1, [&](Engine* engine, UnitTrainer* trainer) {
    MemoryStore store;
    const std::vector<float> values(63, 0.5f);
    ASSERT_OK(store.Add({.key = "weight", .shape = {7, 9}}, values.data(),
                        63 * sizeof(float)));
    LoadOptions options;
    options.rules.strict = false;
    options.from_rank0 = true;
    options.state.content = StateContent::kModel;
    bool outlasted = false;
    // Sleeps, because the time itself is the condition.
    options.progress = [&](uint64_t, uint64_t) {
      if (engine->comm()->rank() == 1 && !std::exchange(outlasted, true)) {
        std::this_thread::sleep_for(
            std::chrono::duration<double>(1.3 * kTimeout));
      }
      return true;
    };
    LoadReport report;
    ASSERT_OK(engine->LoadState(&store, options, &report));
    EXPECT_EQ(outlasted, engine->comm()->rank() == 1);
    TrainSteps(2, 2, engine, trainer);
  });
}

// ---- Ranks that give up ----------------------------------------------------

// A call in which rank 0 gives up, by the call's own timeout, while the work
// that the call has begun goes on. Rank 1 comes late, and gets the error before
// its own timeout.
struct GiveUp {
  const char* name;
  int stage;
  const char* phase;  // The phase in which rank 1 is late.
  Status (*call)(Engine* engine, double timeout);
};

constexpr GiveUp kGiveUps[] = {
    {"acquire", 3, "agree on operation",
     [](Engine* engine, double timeout) {
       for (int32_t unit = 0; unit < 3; ++unit) {
         SHARD_RETURN_IF_ERROR(
             engine->UnitAcquire(unit, Pass::kForward, timeout));
         SHARD_RETURN_IF_ERROR(engine->UnitRelease(unit));
       }
       return Status();
     }},
    {"step", 1, "reduce gradients",
     [](Engine* engine, double timeout) {
       const StepOptions options = {.max_grad_norm = 1, .timeout = timeout};
       StepReport report;
       return engine->Step(options, &report);
     }},
};

TEST(HungRankTest, ARankThatGivesUpTellsTheOthers) {
  for (const GiveUp& give_up : kGiveUps) {
    SCOPED_TRACE(give_up.name);
    // nccl_engine_test has a rank that is late there.
    if (TestsAreOn("fake_nccl") && std::string_view(give_up.name) == "step") {
      std::printf(
          "step: not run, because reductions by NCCL are no phase of the "
          "communicator\n");
      continue;
    }
    const UnitTraining training = AwkwardTraining(2, give_up.stage);
    const auto plan = PlanOf(training);
    ASSERT_OK(plan);
    ASSERT_EQ((*plan)->shards_params(), give_up.stage == 3);
    ASSERT_GE((*plan)->units().size(), 3u);
    const std::string url =
        StrCat("threads:2?direct=0&name=gives-up-", give_up.name);
    Gate gate;
    Gate told;
    std::atomic<bool> late{false};
    const auto run = [&](int rank) {
      SCOPED_TRACE(StrCat("rank ", rank));
      AtEnd tells([&, rank] { (rank == 0 ? gate : told).Open(); });
      CommOptions options;
      options.rank = rank;
      options.world_size = 2;
      options.phase_hook = [&, rank](std::string_view what) {
        const auto phase = what.substr(0, what.find(" of unit "));
        if (late && rank == 1 && phase == give_up.phase) gate.Wait();
      };
      const auto comm = OpenCommunicator(url, options);
      ASSERT_OK(comm);
      const EngineOptions engine_options = {.timeout = 10};
      const auto made = CreateEngine(*plan, *comm, engine_options);
      ASSERT_OK(made);
      Engine* const engine = made->get();
      ASSERT_OK(engine->BroadcastParams(0));
      ASSERT_OK((*comm)->Barrier("both are here", Deadline::After(30)));
      late = true;
      const Status status = give_up.call(engine, rank == 0 ? 0.2 : 0);
      if (rank == 0) {
        EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded)
            << status.ToString();
        tells.Tell();
        // Rank 0 stays, so that rank 1's error cannot be that rank 0 left.
        told.Wait();
        return;
      }
      tells.Tell();
      ExpectError(status, StatusCode::kPoisoned,
                  {"rank 0 aborted the group", "DEADLINE_EXCEEDED"});
      EXPECT_EQ(status.rank(), 0);
    };
    std::thread other([&] { run(1); });
    run(0);
    other.join();
  }
}

}  // namespace
}  // namespace shard::hung_rank_test
