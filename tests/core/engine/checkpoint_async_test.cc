// SPDX-License-Identifier: Apache-2.0
//
// Saves in the background: their errors, progress and deadlines, and the effect
// on other checkpoints in the same root.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/data/shard_store.h"
#include "core/checkpoint/folder/directory.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/forwarding_env.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/whole_state.h"
#include "tests/core/engine/worlds.h"

namespace shard::checkpoint_async_test {
namespace {

using testing::ForwardingEnv;
using testing::NamesIn;
using testing::NoSyncEnv;

SaveOptions Quick(bool async = false) {
  return {.async = async, .env = NoSyncEnv::Get()};
}

// Holds back every write until Open is called. With an `error`, every write
// then fails.
class GateEnv final : public ForwardingEnv {
 public:
  GateEnv() : ForwardingEnv(NoSyncEnv::Get()) {}

  void Open(int error = 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    error_ = error;
    opened_.notify_all();
  }
  using ForwardingEnv::Open;

  ssize_t Write(int fd, const void* data, size_t bytes,
                uint64_t offset) override {
    std::unique_lock<std::mutex> lock(mutex_);
    opened_.wait(lock, [&] { return open_; });
    if (error_ != 0) return -error_;
    return base()->Write(fd, data, bytes, offset);
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
  int error_ = 0;
};

Status Wait(const std::shared_ptr<AsyncSave>& save) {
  return save->Wait(Deadline::After(60));
}

// Returns the checkpoints in a root, and expects nothing temporary beside them.
std::set<std::string> Checkpoints(const std::string& root) {
  std::set<std::string> names = NamesIn(root);
  for (const std::string& name : names) {
    EXPECT_FALSE(ParseTemporaryName(name)) << name;
  }
  names.erase(kLatestName);
  return names;
}

TEST(CheckpointAsyncTest, TrainingContinuesDuringASave) {
  for (const int variant : {1, 2, 3}) {
    const testing::TempFolder sync, async;
    const UnitTraining training = AwkwardTraining(3, variant);
    WholeState at_save, after, loaded, loaded_sync;
    Params params;
    GateEnv gate;
    std::atomic<int> trained{0};
    RunWorld(training, 2, [&](Engine* engine, UnitTrainer* trainer) {
      const Communicator* const host = engine->comm();
      params = {};
      ASSERT_OK(engine->Save(sync.path(), Quick()));
      at_save.Add(*engine);
      SaveOptions options = Quick(true);
      options.env = &gate;
      const auto save = engine->Save(async.path(), options);
      ASSERT_OK(save);
      // Nothing is written before all ranks have trained on.
      TrainSteps(3, 4, engine, trainer);
      after.Add(*engine);
      EXPECT_FALSE((*save)->IsDone());
      ExpectError((*save)->Wait(Deadline::After(0)),
                  StatusCode::kDeadlineExceeded, {});
      // The save leaves the host's communicator to the host.
      ASSERT_OK(engine->comm()->Barrier("of the host", Deadline::After(30)));
      if (++trained == host->world_size()) gate.Open();
      EXPECT_OK(Wait(*save));
      EXPECT_OK(Wait(*save));
      EXPECT_TRUE((*save)->IsDone());
      EXPECT_EQ((*save)->path(), async.path() + "/step-000002");
      TrainSteps(5, 5, engine, trainer);
    });
    EXPECT_FALSE(after == at_save);
    const auto load = [&](const std::string& root, WholeState* whole) {
      RunWorld(training, 0, [&](Engine* engine, UnitTrainer*) {
        LoadReport report;
        ASSERT_OK(engine->Load(root, LoadOptions(), &report));
        EXPECT_EQ(report.step, 2);
        whole->Add(*engine);
      });
    };
    load(async.path(), &loaded);
    load(sync.path(), &loaded_sync);
    EXPECT_TRUE(loaded == at_save) << at_save.Differences(loaded);
    EXPECT_TRUE(loaded_sync == at_save);
  }
}

// The next call returns the error once and Wait returns it every time; calls
// after that succeed.
TEST(CheckpointAsyncTest, TheNextCallReportsAnErrorOnce) {
  for (const bool by_load : {false, true}) {
    const testing::TempFolder folder;
    RunWorld(AwkwardTraining(3, 2), 1, [&](Engine* engine, UnitTrainer*) {
      ASSERT_OK(engine->Save(folder.path(), Quick()));
      const auto next = [&]() -> Status {
        if (!by_load) {
          SaveOptions options = Quick();
          options.overwrite = true;
          return engine->Save(folder.path(), options).status();
        }
        LoadReport report;
        return engine->Load(folder.path(), LoadOptions(), &report);
      };
      GateEnv gate;
      if (engine->comm()->rank() == 1) gate.Open(ENOSPC);
      if (engine->comm()->rank() != 1) gate.Open();
      SaveOptions options = Quick(true);
      options.overwrite = true;
      options.env = &gate;
      const auto save = engine->Save(folder.path(), options);
      ASSERT_OK(save);
      ExpectError(next(), StatusCode::kResourceExhausted,
                  {"asynchronous save", "step-000001", "rank 1"});
      EXPECT_OK(next());
      for (int i = 0; i < 2; ++i) {
        ExpectError(Wait(*save), StatusCode::kResourceExhausted, {"rank 1"});
      }
      // A call after a Wait that returned the error does not return it again.
      const auto again = engine->Save(folder.path(), options);
      ASSERT_OK(again);
      ExpectError(Wait(*again), StatusCode::kResourceExhausted, {"rank 1"});
      EXPECT_OK(next());
    });
    EXPECT_EQ(Checkpoints(folder.path()),
              (std::set<std::string>{"step-000001"}));
  }
}

TEST(CheckpointAsyncTest, FreeingTheEngineFinishesTheSave) {
  const testing::TempFolder folder;
  const UnitTraining training = AwkwardTraining(3, 3);
  WholeState whole, loaded;
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  RunThreadRanks(3, [&](const auto& comm) {
    auto engine = CreateEngine(*plan, comm, training.engine);
    ASSERT_OK(engine);
    UnitTrainer trainer(training, engine->get());
    trainer.Fill();
    TrainSteps(1, 1, engine->get(), &trainer);
    whole.Add(**engine);
    const auto save = (*engine)->Save(folder.path(), Quick(true));
    ASSERT_OK(save);
    std::shared_ptr<AsyncSave> kept = *save;
    engine->reset();
    // The save finished, and its handle still reports that.
    EXPECT_TRUE(kept->IsDone());
    EXPECT_OK(Wait(kept));
  });
  RunWorld(training, 0, [&](Engine* engine, UnitTrainer*) {
    LoadReport report;
    ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
    loaded.Add(*engine);
  });
  EXPECT_TRUE(loaded == whole) << whole.Differences(loaded);
}

// A save that lasts longer than it may goes on after the engine has waited.
TEST(CheckpointAsyncTest, ASaveThatOutlivesTheEngineCallsNoFunctionOfTheHost) {
  const testing::TempFolder folder;
  const std::string root = folder / "root";
  ASSERT_EQ(::mkdir(root.c_str(), 0700), 0);
  GateEnv gate;
  std::atomic<int> messages{0};
  CommOptions options;
  options.logger =
      Logger([](int32_t, const char*,
                void* count) { ++*static_cast<std::atomic<int>*>(count); },
             LogLevel::kWarning, &messages);
  auto comm = OpenCommunicator("local:", options);
  ASSERT_OK(comm);
  const UnitTraining training = AwkwardTraining(1, 0);
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  auto engine = CreateEngine(*plan, *comm, training.engine);
  ASSERT_OK(engine);
  UnitTrainer trainer(training, engine->get());
  trainer.Fill();
  TrainSteps(1, 1, engine->get(), &trainer);
  SaveOptions save = Quick(true);
  save.env = &gate;
  save.timeout = 0.1;
  std::atomic<int> reports{0};
  save.progress = [&](uint64_t, uint64_t) { return ++reports > 0; };
  const auto saved = (*engine)->Save(root, save);
  ASSERT_OK(saved);
  const std::shared_ptr<AsyncSave> kept = *saved;
  messages = 0;
  engine->reset();
  EXPECT_EQ(messages, 1);  // The engine did not wait for the end of the save.
  const int before = reports;
  comm->reset();
  // The save would warn of a root that is no more there.
  ASSERT_EQ(::rename(root.c_str(), (folder / "moved").c_str()), 0);
  gate.Open();
  EXPECT_OK(Wait(kept));
  EXPECT_EQ(messages, 1);
  EXPECT_EQ(reports, before);
}

TEST(CheckpointAsyncTest, ASaveIsDoneWhenTheNextBegins) {
  const testing::TempFolder folder;
  RunWorld(AwkwardTraining(2, 2), 1, [&](Engine* engine, UnitTrainer* trainer) {
    std::vector<std::shared_ptr<AsyncSave>> saves;
    for (int step = 2; step <= 5; ++step) {
      const auto save = engine->Save(folder.path(), Quick(step != 4));
      ASSERT_OK(save);
      if (step == 4) {
        EXPECT_EQ(*save, nullptr);
      } else {
        saves.push_back(*save);
      }
      // A save is done when the next one begins.
      if (saves.size() > 1) {
        EXPECT_TRUE(saves[saves.size() - 2]->IsDone());
      }
      TrainSteps(step, step, engine, trainer);
    }
    for (const auto& save : saves) EXPECT_OK(Wait(save));
  });
  EXPECT_EQ(Checkpoints(folder.path()),
            (std::set<std::string>{"step-000001", "step-000002", "step-000003",
                                   "step-000004"}));
}

TEST(CheckpointAsyncTest, KeepsTheLastAndEveryNthCheckpoint) {
  const testing::TempFolder folder;
  RunWorld(AwkwardTraining(2, 2), 0, [&](Engine* engine, UnitTrainer* trainer) {
    trainer->Fill();
    for (int step = 1; step <= 8; ++step) {
      TrainSteps(step, step, engine, trainer);
      SaveOptions options = Quick(step % 2 == 0);
      options.keep_last = 2;
      options.keep_every = 3;
      ASSERT_OK(engine->Save(folder.path(), options));
    }
  });
  EXPECT_EQ(Checkpoints(folder.path()),
            (std::set<std::string>{"step-000003", "step-000006", "step-000007",
                                   "step-000008"}));
}

TEST(CheckpointAsyncTest, ASecondSaveOfAStepNeedsOverwrite) {
  const testing::TempFolder folder;
  const UnitTraining training = AwkwardTraining(3, 2);
  WholeState whole, loaded;
  RunWorld(training, 1, [&](Engine* engine, UnitTrainer* trainer) {
    ASSERT_OK(engine->Save(folder.path(), Quick()));
    for (const bool async : {false, true}) {
      ExpectError(engine->Save(folder.path(), Quick(async)),
                  StatusCode::kAlreadyExists, {"rank 0", "step-000001"});
    }
    // Gives the same step another state.
    TrainSteps(2, 2, engine, trainer);
    ASSERT_OK(engine->SetStep(1));
    whole.Add(*engine);
    SaveOptions options = Quick();
    options.overwrite = true;
    ASSERT_OK(engine->Save(folder.path(), options));
  });
  EXPECT_EQ(Checkpoints(folder.path()), (std::set<std::string>{"step-000001"}));
  RunWorld(training, 0, [&](Engine* engine, UnitTrainer*) {
    LoadReport report;
    ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
    loaded.Add(*engine);
  });
  EXPECT_TRUE(loaded == whole) << whole.Differences(loaded);
}

// A load reads the checkpoint that it opened to its end, even if another
// program overwrites it.
TEST(CheckpointAsyncTest, ALoadSurvivesAnOverwriteByAnotherProgram) {
  const testing::TempFolder folder;
  const UnitTraining training = AwkwardTraining(2, 2);
  WholeState old, loaded;
  RunWorld(training, 1, [&](Engine* engine, UnitTrainer*) {
    old.Add(*engine);
    ASSERT_OK(engine->Save(folder.path(), Quick()));
  });
  std::once_flag once;
  RunWorld(training, 0, [&](Engine* engine, UnitTrainer*) {
    LoadOptions options;
    // All ranks have opened the checkpoint before the first piece is read.
    // Progress is reported after a piece, so the result is checked only at the
    // end.
    options.progress = [&](uint64_t, uint64_t) {
      std::call_once(once, [&] {
        RunWorld(AwkwardTraining(1, 1), 1, [&](Engine* other, UnitTrainer*) {
          SaveOptions over = Quick();
          over.overwrite = true;
          ASSERT_OK(other->Save(folder.path(), over));
        });
      });
      return true;
    };
    LoadReport report;
    ASSERT_OK(engine->Load(folder.path(), options, &report));
    EXPECT_EQ(report.saved_world_size, 2);
    loaded.Add(*engine);
    ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
    EXPECT_EQ(report.saved_world_size, 1);
  });
  EXPECT_TRUE(loaded == old) << old.Differences(loaded);
}

TEST(CheckpointAsyncTest, EachRankReportsItsProgress) {
  const testing::TempFolder folder;
  RunWorld(AwkwardTraining(3, 2), 1, [&](Engine* engine, UnitTrainer*) {
    uint64_t last = 0;
    uint64_t all = 0;
    int calls = 0;
    const Progress progress = [&](uint64_t done, uint64_t total) {
      EXPECT_GE(done, last);
      EXPECT_LE(done, total);
      EXPECT_TRUE(all == 0 || all == total);
      last = done;
      all = total;
      ++calls;
      return true;
    };
    SaveOptions save = Quick();
    save.progress = progress;
    ASSERT_OK(engine->Save(folder.path(), save));
    EXPECT_GT(calls, 0);
    EXPECT_EQ(last, all);
    last = all = 0;
    const LoadOptions load = {.progress = progress};
    LoadReport report;
    ASSERT_OK(engine->Load(folder.path(), load, &report));
    EXPECT_EQ(last, all);
    EXPECT_GT(all, 0u);
  });
}

TEST(CheckpointAsyncTest, OneRankCancelsForAll) {
  for (const int who : {0, 2}) {
    const testing::TempFolder folder;
    RunWorld(
        AwkwardTraining(3, 2), 1, [&](Engine* engine, UnitTrainer* trainer) {
          const Progress cancel = [&](uint64_t, uint64_t) {
            return engine->comm()->rank() != who;
          };
          const std::string name = StrCat("rank ", who);
          for (const bool async : {false, true}) {
            SaveOptions save = Quick(async);
            save.progress = cancel;
            auto saved = engine->Save(folder.path(), save);
            Status status = saved.status();
            if (saved.ok()) status = Wait(*saved);
            ExpectError(status, StatusCode::kCancelled, {name});
          }
          // Rank 0 deletes the incomplete checkpoint before its call returns.
          ASSERT_OK(engine->comm()->Barrier("through", Deadline::After(30)));
          EXPECT_TRUE(Checkpoints(folder.path()).empty());
          TrainSteps(2, 2, engine, trainer);
          ASSERT_OK(engine->Save(folder.path(), Quick()));
          const auto kept = trainer->Read();

          const LoadOptions load = {.progress = cancel};
          LoadReport report;
          ExpectError(engine->Load(folder.path(), load, &report),
                      StatusCode::kCancelled, {name});
          // The cancelled load has destroyed the parameters; a whole load
          // restores them.
          ExpectError(engine->Save(folder.path(), Quick()),
                      StatusCode::kFailedPrecondition, {"FILLING"});
          ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
          EXPECT_EQ(trainer->Read(), kept);
          TrainSteps(3, 3, engine, trainer);
        });
  }
}

// Where one rank hangs, the others get an error at the deadline.
TEST(CheckpointAsyncTest, AHungRankFailsTheOthersAtTheDeadline) {
  const testing::TempFolder folder;
  std::atomic<int> through{0};
  GateEnv gate;
  RunWorld(AwkwardTraining(3, 2), 1, [&](Engine* engine, UnitTrainer*) {
    SaveOptions save = Quick(true);
    save.timeout = 0.2;
    // Rank 2 hangs in a write.
    if (engine->comm()->rank() == 2) save.env = &gate;
    const auto saved = engine->Save(folder.path(), save);
    ASSERT_OK(saved);
    if (engine->comm()->rank() != 2) {
      ExpectError(Wait(*saved), StatusCode::kDeadlineExceeded, {});
      if (++through == 2) gate.Open();
    } else {
      EXPECT_FALSE(Wait(*saved).ok());
    }
  });
  EXPECT_EQ(Checkpoints(folder.path()).size(), 0u);
}

}  // namespace
}  // namespace shard::checkpoint_async_test
