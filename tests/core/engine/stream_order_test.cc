// SPDX-License-Identifier: Apache-2.0
//
// The order of the engine's work and of the host's, which on an accelerator are
// streams: see async_host.h.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/element_type.h"
#include "core/engine/params/all_ranks.h"
#include "core/engine/step/engine_runtime.h"
#include "core/engine/step/hypers.h"
#include "core/state/memory_store.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/test_device.h"
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

// The eager stream has the workspace of the compute stream, and updates the
// same parameters.
TEST(EagerUpdateOrderTest, TheFirstUpdateComesAfterEarlierComputation) {
  const UnitTraining training = RunOf(1, "").training;
  PlanOptions options = training.plan;
  options.world_size = 1;
  options.groups = *PlanGroups(*training.model, "sgd?lr=0.5&weight_decay=1");
  options.wrap = *WrapPolicy::Parse(training.wrap);
  const auto plan = Plan::Create(training.model, options);
  ASSERT_OK(plan);
  const auto comm = OpenCommunicator("local:", CommOptions());
  ASSERT_OK(comm);
  const auto device =
      testing::OpenTestDevice("cpu-async?max_delay=0.01&host=async");
  ASSERT_OK(device);
  const auto host = (*device)->WrapStream(nullptr);
  ASSERT_OK(host);
  const BoundMemory bound;
  const auto runtime = EngineRuntime::Create(*plan, comm->get(), device->get(),
                                             {.timeout = 60,
                                              .allow_missing = false,
                                              .overlap = false,
                                              .bound = &bound,
                                              .host = host->get()},
                                             nullptr, Soon());
  ASSERT_OK(runtime);
  auto* const param =
      static_cast<float*>((*runtime)->memory().buffers()[0].ParamAt(0));
  param[0] = 8;
  const auto hypers = Hypers::Create(**plan);
  ASSERT_OK(hypers);
  StepInput input = {};
  input.optimizers = &hypers->optimizers();
  input.step = 1;
  input.gradient_scale = 1;

  float read = 0;
  for (int i = 0; i < 5; ++i) Delay(&(*runtime)->compute());
  (*runtime)->compute().Call("read", [&read, param] {
    read = param[0];
    return Status();
  });
  (*runtime)->stepper().Begin(input, Soon());
  ASSERT_OK((*runtime)->stepper().UpdateEagerly((*plan)->buffers()[0].unit,
                                                nullptr, Soon()));
  EXPECT_EQ(param[0], 4);  // Decayed; its gradient is zero.
  ASSERT_OK((*runtime)->compute().Synchronize(Soon()));
  EXPECT_EQ(read, 8);
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

// ---- Memory of the host ----------------------------------------------------

// The host writes its gradients again as soon as they are declared.
TEST_P(StreamOrderTest, BoundGradientsAreCopiedBeforeTheHostsNextWrites) {
  for (const int stage : {1, 2}) {
    ExpectOrder(RunOf(stage, GetParam()), [&](AsyncHost* host) {
      // Whole gradients that ranks see are copied in the step.
      const bool copied = stage == 2 || !host->engine().comm()->direct();
      host->BindAll();
      for (int step = 1; step <= 2; ++step) {
        ASSERT_OK(host->engine().ZeroGrad());
        host->Backward([&](int32_t unit) {
          const std::vector<ParamId> params = host->ParamsOf(unit);
          std::vector<Engine::Tensor> grads;
          for (const ParamId param : params) {
            const auto grad = host->engine().Grad(param);
            ASSERT_OK(grad);
            grads.push_back(*grad);
            host->AddGrad(param, step);
          }
          ASSERT_OK(host->engine().MarkUnitGradsReady(unit));
          if (!copied) return;
          for (const Engine::Tensor& grad : grads) host->Fill(grad, kSpoiled);
        });
        host->Step();
      }
      host->ReadAll();
    });
  }
}

// With overlap, bound values are the old ones until their unit is acquired.
TEST(BoundValuesOrderTest, ValuesAreCopiedBetweenTheHostsReads) {
  for (const bool overlap : {false, true}) {
    HostRun run = RunOf(1, "direct=0");
    run.training.engine.overlap = overlap;
    ExpectOrder(run, [](AsyncHost* host) {
      host->BindAll();
      for (int step = 1; step <= 2; ++step) {
        ASSERT_OK(host->engine().ZeroGrad());
        host->Backward(step);
        host->Step();
        for (int32_t unit = 0; unit < host->num_units(); ++unit) {
          const std::vector<ParamId> params = host->ParamsOf(unit);
          for (const ParamId param : params) host->ReadBoundValues(param);
          ASSERT_OK(host->engine().UnitAcquire(unit, Pass::kForward, 0));
          for (const ParamId param : params) host->ReadBoundValues(param);
          ASSERT_OK(host->engine().UnitRelease(unit));
        }
      }
    });
  }
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

}  // namespace
}  // namespace shard::stream_order_test
