// SPDX-License-Identifier: Apache-2.0
//
// The order of the engine's work and of the host's, which on an accelerator are
// streams: see async_host.h.

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/element_type.h"
#include "core/comm/communicator.h"
#include "core/engine/params/all_ranks.h"
#include "core/state/memory_store.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/async_host.h"

namespace shard::stream_order_test {
namespace {

Deadline Soon() { return Deadline::After(60); }

class StreamOrderTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Links, StreamOrderTest,
                         ::testing::Values("", "direct=0"),
                         [](const auto& info) {
                           return info.index == 0 ? "direct" : "apart";
                         });

// ---- Steps -----------------------------------------------------------------

TEST_P(StreamOrderTest, AStepAndZeroGradComeAfterTheHostsWrites) {
  ExpectOrder(RunOf(1, GetParam()), [](AsyncHost* host) {
    for (int step = 1; step <= 2; ++step) {
      host->ReadAll();
      host->AddAllGrads(step);
      host->Step();
      host->SpoilAllGrads();
      ASSERT_OK(host->engine().ZeroGrad());
    }
    host->ReadAll();
  });
}

TEST_P(StreamOrderTest, AStepComesAfterTheHostsReads) {
  for (const int stage : {1, 2}) {
    ExpectOrder(RunOf(stage, GetParam()), [](AsyncHost* host) {
      host->Backward(1);
      host->ReadAll();
      host->Step();
      host->ReadAll();
    });
  }
}

TEST_P(StreamOrderTest, ABegunStepUpdatesUnitsThatTheHostHasRead) {
  for (const int stage : {1, 3}) {
    ExpectOrder(RunOf(stage, GetParam()), [](AsyncHost* host) {
      for (int step = 1; step <= 2; ++step) {
        ASSERT_OK(host->engine().BeginStep(StepOptions()));
        host->Forward();
        host->Backward(step);
        host->Step();
        ASSERT_OK(host->engine().ZeroGrad());
      }
      host->Forward();
    });
  }
}

TEST_P(StreamOrderTest, ParametersOnTheirWayAreReadAfterTheyHaveCome) {
  HostRun run = RunOf(1, GetParam());
  run.training.engine.overlap = true;
  ExpectOrder(run, [](AsyncHost* host) {
    for (int step = 1; step <= 2; ++step) {
      host->Forward();
      host->Backward(step);
      host->Step();
      host->Forward();
      ASSERT_OK(host->engine().ZeroGrad());
    }
  });
}

// The sums of whole gradients are written to the gradients themselves.
TEST(ZeroGradOrderTest, GradientsAreZeroedAfterTheyWereReduced) {
  HostRun run = RunOf(1, "direct=0&delay=0.005");
  run.training.engine.device = "cpu";
  const HostReads expected = ReadsOf(run, [](AsyncHost* host) {
    host->Backward(2);
    host->Step();
    host->ReadAll();
  });
  for (const char* const device :
       {"cpu", "cpu-async?max_delay=0.001&host=async"}) {
    run.training.engine.device = device;
    const HostReads reads = ReadsOf(run, [](AsyncHost* host) {
      host->Backward(1);
      ASSERT_OK(host->engine().ZeroGrad());
      host->Backward(2);
      host->Step();
      host->ReadAll();
    });
    EXPECT_TRUE(reads == expected) << device;
  }
}

// ---- Units -----------------------------------------------------------------

TEST_P(StreamOrderTest, SlotsAreUsedAgainAfterTheirLastUse) {
  for (const int stage : {2, 3}) {
    ExpectOrder(RunOf(stage, GetParam()), [](AsyncHost* host) {
      for (int step = 1; step <= 2; ++step) {
        host->Forward();
        host->Backward(step);
        host->Step();
        ASSERT_OK(host->engine().ZeroGrad());
      }
      host->Forward();
    });
  }
}

// Every second unit is released without declaring its gradients, and leaves its
// slot to the next.
TEST_P(StreamOrderTest, ASlotIsZeroedAfterGradientsThatAreNotDeclared) {
  HostRun run = RunOf(2, GetParam());
  run.training.engine.missing_grads = MissingGrads::kZero;
  ExpectOrder(run, [](AsyncHost* host) {
    for (int step = 1; step <= 2; ++step) {
      host->Backward([&](int32_t unit) {
        const bool declared = unit % 2 == step % 2;
        for (const ParamId param : host->ParamsOf(unit)) {
          declared ? host->AddGrad(param, step) : host->SpoilGrad(param);
        }
        if (declared) ASSERT_OK(host->engine().MarkUnitGradsReady(unit));
      });
      host->Step();
    }
    host->ReadAll();
  });
}

// One parameter of each unit is declared.
TEST_P(StreamOrderTest, GradientsThatDoNotCountAreZeroedAfterTheHostsWrites) {
  for (const int stage : {1, 2}) {
    HostRun run = RunOf(stage, GetParam());
    run.training.engine.missing_grads = MissingGrads::kZero;
    ExpectOrder(run, [](AsyncHost* host) {
      for (int step = 1; step <= 2; ++step) {
        host->Backward([&](int32_t unit) {
          const std::vector<ParamId> params = host->ParamsOf(unit);
          host->AddGrad(params[0], step);
          ASSERT_OK(host->engine().MarkParamGradReady(params[0]));
          for (size_t i = 1; i < params.size(); ++i) {
            host->SpoilGrad(params[i]);
          }
        });
        host->Step();
        ASSERT_OK(host->engine().ZeroGrad());
      }
      host->ReadAll();
    });
  }
}

// A step that fails on all ranks has zeroed gradients that do not count. The
// host then writes and declares them.
TEST(FailedStepOrderTest, TheHostWritesGradientsAfterTheyWereZeroed) {
  HostRun run = RunOf(1, "direct=0");
  run.training.engine.missing_grads = MissingGrads::kZero;
  ExpectOrder(run, [](AsyncHost* host) {
    const auto declare = [&](bool is_first) {
      host->Backward([&](int32_t unit) {
        const std::vector<ParamId> params = host->ParamsOf(unit);
        for (size_t i = 0; i < params.size(); ++i) {
          if ((i == 0) != is_first) continue;
          host->AddGrad(params[i], 1);
          ASSERT_OK(host->engine().MarkParamGradReady(params[i]));
        }
      });
    };
    declare(true);
    StepOptions options;
    if (host->rank() == 1) options.max_grad_norm = -1;
    StepReport report;
    ExpectError(host->engine().Step(options, &report),
                StatusCode::kInvalidArgument, {"max_grad_norm"});
    declare(false);
    host->Step();
    host->ReadAll();
  });
}

// Rank 0 gathers a unit once more, into the slot from which rank 1, which has
// come to the step, still reads another.
TEST(FollowerOrderTest, ARankThatFollowsGathersAfterItsHostsReads) {
  HostRun run = RunOf(3, "direct=0");
  run.training.engine.missing_grads = MissingGrads::kZero;
  ExpectOrder(run, [](AsyncHost* host) {
    for (int step = 1; step <= 4; ++step) {
      host->Forward();
      if (host->rank() == 0) {
        ASSERT_OK(host->engine().UnitAcquire(1, Pass::kForward, 0));
        ASSERT_OK(host->engine().UnitRelease(1));
      }
      host->Step();
    }
  });
}

// ---- Other operations of all ranks -----------------------------------------

TEST_P(StreamOrderTest, FirstValuesAreThoseThatTheHostWroteLast) {
  HostRun run = RunOf(1, GetParam());
  run.filled = false;
  ExpectOrder(run, [](AsyncHost* host) {
    for (ParamId param = 0; param < host->num_params(); ++param) {
      const auto& shape =
          host->plan().model().params()[static_cast<size_t>(param)];
      const std::vector<float> values(static_cast<size_t>(shape.numel), 2);
      if (host->rank() == 0) {
        const auto tensor = host->engine().WritableParam(param);
        ASSERT_OK(tensor);
        host->Fill(*tensor, static_cast<float>(param));
      }
      if (param >= host->num_params() / 2) continue;
      ASSERT_OK(host->engine().SetParam(param, values.data(),
                                        values.size() * sizeof(float)));
    }
    ASSERT_OK(host->engine().BroadcastParams(0));
    host->ReadAll();
  });
}

TEST(StateOrderTest, AStateDictHasWhatTheHostWroteLast) {
  HostRun run = RunOf(1, "");
  ASSERT_OK(run.training.model->AddHostTensor(kRootModule, "mean",
                                              ElementType::kF32, {1000}, true));
  ExpectOrder(run, [](AsyncHost* host) {
    // Rank 0 owns the tensor.
    if (host->rank() != 0) return;
    const auto mean = host->engine().HostTensor(0);
    ASSERT_OK(mean);
    host->Fill(*mean, 3);
    MemoryStore state;
    ASSERT_OK(host->engine().AddLocalState(StateOptions(), &state));
    const int64_t found = state.Find("mean");
    ASSERT_GE(found, 0);
    const auto bytes = state.CopyPart(static_cast<size_t>(found));
    ASSERT_OK(bytes);
    std::vector<float> values(bytes->size() / sizeof(float));
    std::memcpy(values.data(), bytes->data(), bytes->size());
    host->memory().reads.push_back(std::move(values));
  });
}

TEST_P(StreamOrderTest, CopiesAreWrittenBackAfterTheHostsWrites) {
  ExpectOrder(RunOf(1, GetParam()), [](AsyncHost* host) {
    host->ReadAll();
    ASSERT_OK(host->engine().Summon(kRootModule, kAllRanks, 0));
    for (ParamId param = 0; param < host->num_params(); ++param) {
      const auto copy = host->engine().WritableParam(param);
      ASSERT_OK(copy);
      host->Fill(*copy, static_cast<float>(param));
    }
    ASSERT_OK(host->engine().EndSummon(true, 0));
    host->ReadAll();
  });
}

// A change of the plan frees the gradients.
TEST_P(StreamOrderTest, AChangeOfThePlanComesAfterTheHostsWork) {
  ExpectOrder(RunOf(1, GetParam()), [](AsyncHost* host) {
    host->ReadAll();
    host->SpoilAllGrads();
    const ParamId last[] = {host->num_params() - 1};
    ASSERT_OK(host->engine().SetTrainable(last, false, 0));
    for (ParamId param = 0; param < last[0]; ++param) host->AddGrad(param, 1);
    host->Step();
    host->ReadAll();
  });
}

// Parameters and states are sent piece by piece, through one memory.
TEST_P(StreamOrderTest, AChangeOfThePlanSendsEachPieceAfterTheOneBefore) {
  for (const int stage : {1, 3}) {
    HostRun run = RunOf(stage, GetParam());
    ExpectOrder(run, [](AsyncHost* host) {
      const ParamId last[] = {host->num_params() - 1};
      for (int step = 1; step <= 3; ++step) {
        host->Backward([&](int32_t unit) {
          for (const ParamId param : host->ParamsOf(unit)) {
            const bool frozen = step == 2 && param == last[0];
            if (!frozen) host->AddGrad(param, step);
          }
          ASSERT_OK(host->engine().MarkUnitGradsReady(unit));
        });
        host->Step();
        ASSERT_OK(host->engine().ZeroGrad());
        ASSERT_OK(host->engine().SetTrainable(last, step % 2 == 0, 0));
      }
      host->Forward();
    });
  }
}

// Rank 1 joins with gradients that do not count, in many buffers, which it
// zeroes while rank 0 makes a step.
TEST_P(StreamOrderTest, ARankThatJoinsZeroesItsGradientsFirst) {
  HostRun run = RunOf(1, GetParam());
  run.training.plan.buffer_bytes = 4096;
  ExpectOrder(run, [](AsyncHost* host) {
    for (int step = 1; step <= 2 - host->rank(); ++step) {
      host->Backward(step);
      host->Step();
      ASSERT_OK(host->engine().ZeroGrad());
    }
    if (host->rank() == 1) {
      host->SpoilAllGrads();
      ASSERT_OK(host->engine().host_stream().Synchronize(Soon()));
    }
    int64_t steps = 0;
    ASSERT_OK(host->engine().Join(0, &steps));
    host->ReadAll();
  });
}

// Counts the gathers that a rank has begun.
class Gathers {
 public:
  void Begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++begun_;
    changed_.notify_all();
  }
  int Count() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return begun_;
  }
  bool Await(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60),
                             [&] { return begun_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int begun_ = 0;  // GUARDED_BY(mutex_)
};

// The last unit is gathered ahead in a step whose host does not acquire it, and
// the link is so slow that the step comes while it is sent. The other rank then
// drops what it gathered, so only the thread sanitizer sees the update.
TEST(GatherAheadTest, AStepWritesNoParametersThatAreBeingSent) {
  HostRun run = RunOf(3, "");
  run.training.model = BlockModel(12);
  run.training.plan.prefetch = 1;
  const auto plan = PlanOf(run.training);
  ASSERT_OK(plan);
  EXPECT_TRUE(ShardsAsItsStage(**plan));
  const auto train = [&](int rank) {
    Gathers gathers;
    CommOptions options;
    options.rank = rank;
    options.world_size = 2;
    options.phase_hook = [&](std::string_view what) {
      if (what.starts_with("gather parameters")) gathers.Begin();
    };
    const auto comm = OpenCommunicator(
        "threads:2?name=gather-ahead&direct=0&delay=0.02", options);
    ASSERT_OK(comm);
    AsyncHostMemory memory;
    const auto engine = CreateEngine(*plan, *comm, run.training.engine);
    ASSERT_OK(engine);
    UnitTrainer(run.training, engine->get()).Fill();
    AsyncHost host(engine->get(), &memory);
    const int32_t last = host.num_units() - 1;
    int per_step = 0;
    for (int step = 1; step <= 4; ++step) {
      const int before = gathers.Count();
      host.Forward();
      host.Backward(step);
      if (step == 1) {
        // From here on the last unit is expected at the end of a step.
        ASSERT_OK((*engine)->UnitAcquire(last, Pass::kForward, 0));
        ASSERT_OK((*engine)->UnitRelease(last));
      }
      if (step > 2) {
        ASSERT_TRUE(gathers.Await(before + per_step));
      }
      host.Step();
      per_step = gathers.Count() - before;
      EXPECT_GT(per_step, 0);
    }
    ASSERT_OK((*comm)->Shutdown(Soon()));
  };
  std::thread other(train, 1);
  train(0);
  other.join();
}

}  // namespace
}  // namespace shard::stream_order_test
