// SPDX-License-Identifier: Apache-2.0
//
// Steps of several ranks that are captured as graphs, whose collectives are
// NCCL's, on the fakes of the driver and of NCCL.

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/driver.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/engine/whole_state.h"
#include "tests/fake_cuda/graph_api.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"
#include "tests/ranks/ranks.h"

namespace shard::nccl_graphs_test {
namespace {

using cuda::CuResult;
using cuda_training::Clipped;
using testing::FakeNccl;

constexpr int kRanks = 2;

testing::fake_cuda::Options Gpus() {
  testing::fake_cuda::Options options;
  options.devices = kRanks;
  return options;
}

struct Form {
  const char* name;
  int stage = 1;
  bool clips = true;
  bool deterministic = false;
  DType dtype = DType::kF32;
  int steps = 10;
};

std::shared_ptr<const Plan> MakePlan(const Form& form) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  for (const int64_t numel : {3000, 4100}) {
    const ModuleId block = *training.model->AddModule(
        kRootModule, StrCat("block", numel), "Block");
    EXPECT_OK(training.model->AddParam(block, "weight", form.dtype, {numel}));
  }
  training.wrap = "class?names=Block";
  training.plan.world_size = kRanks;
  training.plan.stage = form.stage;
  training.plan.deterministic = form.deterministic;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  return *plan;
}

// A rank whose host has a stream on its GPU, to which it copies gradients.
class Host {
 public:
  Host(const Form& form, const std::shared_ptr<Communicator>& comm,
       double timeout)
      : device_(comm->rank()) {
    EXPECT_EQ(api_.DevicePrimaryCtxRetain(&context_, device_),
              CuResult::kSuccess);
    EXPECT_EQ(api_.CtxPushCurrent(context_), CuResult::kSuccess);
    EXPECT_EQ(api_.StreamCreate(&stream_, cuda::kStreamNonBlocking),
              CuResult::kSuccess);
    EngineOptions options;
    options.timeout = timeout;
    options.transport = Transport::kNccl;
    options.loss_scaler = *LossScaler::Parse("dynamic?init_scale=8");
    options.opened_device = *cuda::OpenDevice(StrCat(comm->rank()));
    auto made = Engine::Create(MakePlan(form), comm, options);
    EXPECT_OK(made);
    engine_ = *std::move(made);
    EXPECT_OK(engine_->SetStream(stream_));
    EXPECT_OK(cuda_training::Fill(engine_.get()));
  }
  ~Host() {
    EndGraph();
    engine_.reset();
    api_.StreamDestroy(stream_);
    api_.CtxPopCurrent(&context_);
    api_.DevicePrimaryCtxRelease(device_);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  Engine* engine() { return engine_.get(); }
  cuda::CuStream stream() { return stream_; }

  void CopyGrads(int step, bool finite) {
    const auto& params = engine_->plan().model().params();
    for (size_t p = 0; p < params.size(); ++p) {
      const auto param = static_cast<ParamId>(p);
      const auto grad = engine_->Grad(param);
      ASSERT_OK(grad);
      std::vector<float> values;
      for (int64_t i = 0; i < grad->numel; ++i) {
        values.push_back(
            GradientValue(step, param + 3 * engine_->comm()->rank(), i));
      }
      // One rank's are enough.
      if (!finite && engine_->comm()->rank() == 1) {
        values[0] = std::numeric_limits<float>::quiet_NaN();
      }
      // Read when the copy runs.
      std::vector<std::byte>& bytes =
          grads_.emplace_back(DTypeBytes(params[p].dtype, grad->numel));
      Store(params[p].dtype, values, bytes.data());
      ASSERT_EQ(
          api_.MemcpyAsync(reinterpret_cast<cuda::CuPointer>(grad->data),
                           reinterpret_cast<cuda::CuPointer>(bytes.data()),
                           bytes.size(), stream_),
          CuResult::kSuccess);
    }
  }

  Status Capture(const StepOptions& options) {
    EndGraph();
    EXPECT_EQ(
        graphs_.StreamBeginCapture(stream_, cuda::CuCaptureMode::kThreadLocal),
        CuResult::kSuccess);
    Status status = engine_->CaptureBegin();
    if (status.ok()) {
      status = engine_->Step(options, nullptr);
      if (status.ok()) status = engine_->ZeroGrad();
      const Status ended = engine_->CaptureEnd();
      if (status.ok()) status = ended;
    }
    cuda::CuGraph graph = nullptr;
    EXPECT_EQ(graphs_.StreamEndCapture(stream_, &graph), CuResult::kSuccess);
    EXPECT_EQ(graphs_.GraphInstantiate(&graph_, graph, 0), CuResult::kSuccess);
    EXPECT_EQ(graphs_.GraphDestroy(graph), CuResult::kSuccess);
    return status;
  }
  void Launch() {
    EXPECT_EQ(graphs_.GraphLaunch(graph_, stream_), CuResult::kSuccess);
  }
  Status Replay(const StepOptions& options) {
    SHARD_RETURN_IF_ERROR(engine_->BeforeReplay(options));
    Launch();
    return Status();
  }
  Status Step(const StepOptions& options) {
    SHARD_RETURN_IF_ERROR(engine_->Step(options, nullptr));
    return engine_->ZeroGrad();
  }

  void FreeEngine() {
    EndGraph();
    engine_.reset();
  }

  std::vector<std::byte> Params() {
    EXPECT_OK(engine_->Summon(0, -1, 0));
    EXPECT_OK(engine_->Synchronize(0));
    std::vector<std::byte> all;
    const auto& params = engine_->plan().model().params();
    for (size_t p = 0; p < params.size(); ++p) {
      const auto param = engine_->Param(static_cast<ParamId>(p));
      EXPECT_OK(param);
      const auto* const bytes = static_cast<const std::byte*>(param->data);
      all.insert(all.end(), bytes,
                 bytes + DTypeBytes(params[p].dtype, param->numel));
    }
    EXPECT_OK(engine_->EndSummon(false, 0));
    return all;
  }

 private:
  void EndGraph() {
    if (graph_ != nullptr) graphs_.GraphExecDestroy(graph_);
    graph_ = nullptr;
  }

  const cuda::DriverApi& api_ = (*cuda::Driver::Load())->api();
  const cuda::GraphApi graphs_ = cuda::GraphApi::Load();
  const int device_;
  cuda::CuContext context_ = nullptr;
  cuda::CuStream stream_ = nullptr;
  std::vector<std::vector<std::byte>> grads_;
  std::unique_ptr<Engine> engine_;
  cuda::CuGraphExec graph_ = nullptr;
};

void RunRanks(const Form& form, double timeout,
              const std::function<void(Host*, Communicator*)>& body) {
  const FakeNccl fake(Gpus());
  RunThreadRanks(
      kRanks,
      [&](const std::shared_ptr<Communicator>& comm) {
        Host host(form, comm, timeout);
        body(&host, comm.get());
      },
      30, "direct=0");
}

class NcclGraphsTest : public ::testing::TestWithParam<Form> {};

TEST_P(NcclGraphsTest, ReplaysHaveTheBitsOfSteps) {
  const Form& form = GetParam();
  std::vector<std::byte> expected[kRanks];
  WholeState states[2];  // Of plain steps, and of replays.
  for (const bool replays : {false, true}) {
    RunRanks(form, 20, [&](Host* host, Communicator* comm) {
      Engine* const engine = host->engine();
      StepOptions options = form.clips ? Clipped() : StepOptions();
      options.skip_nonfinite = true;
      if (replays) ASSERT_OK(host->Capture(options));
      EXPECT_EQ(engine->step(), 0);
      for (int step = 1; step <= form.steps; ++step) {
        ASSERT_OK(engine->SetHyper(0, "lr", 0.01 / step));
        if (form.clips) options.max_grad_norm = 0.1 + 0.01 * step;
        host->CopyGrads(step, step != 3 && step != form.steps - 2);
        ASSERT_OK(replays ? host->Replay(options) : host->Step(options));
      }
      const std::vector<std::byte> params = host->Params();
      EXPECT_EQ(engine->step(), form.steps - 2);
      states[replays].Add(*engine);
      auto& mine = expected[comm->rank()];
      if (replays) {
        EXPECT_TRUE(params == mine);
      } else {
        mine = params;
      }
    });
  }
  EXPECT_TRUE(expected[0] == expected[1]);
  EXPECT_EQ(states[1].Differences(states[0]), "");
}

INSTANTIATE_TEST_SUITE_P(
    Forms, NcclGraphsTest,
    ::testing::Values(Form{.name = "a_hundred", .steps = 100},
                      Form{.name = "stage0", .stage = 0},
                      Form{.name = "plain", .clips = false},
                      Form{.name = "deterministic", .deterministic = true},
                      Form{.name = "bf16", .dtype = DType::kBF16},
                      Form{.name = "f16", .dtype = DType::kF16}),
    [](const auto& info) { return info.param.name; });

const Form kForm = {.name = "stage1"};

TEST(NcclGraphTest, ReplaysAndPlainStepsTakeTurns) {
  std::vector<std::byte> expected[kRanks];
  for (const bool replays : {false, true}) {
    RunRanks(kForm, 20, [&](Host* host, Communicator* comm) {
      for (int step = 1; step <= 12; ++step) {
        if (replays && step % 4 == 1) ASSERT_OK(host->Capture(Clipped()));
        host->CopyGrads(step, true);
        if (replays && step % 4 < 2) {
          ASSERT_OK(host->Replay(Clipped()));
          ASSERT_OK(host->engine()->AwaitStep());
        } else {
          ASSERT_OK(host->Step(Clipped()));
          ASSERT_OK(host->engine()->AwaitStep());
        }
      }
      auto& mine = expected[comm->rank()];
      if (replays) {
        EXPECT_TRUE(host->Params() == mine);
      } else {
        mine = host->Params();
      }
      EXPECT_EQ(host->engine()->step(), 12);
    });
  }
}

constexpr double kTimeout = 1;

::testing::AssertionResult Tells(const Status& status, const char* text) {
  if (status.ToString().find(text) != std::string::npos) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << status.ToString();
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

// Waits for the host's stream as a host does that makes no call of libshard.
void AwaitStream(Host* host) {
  const cuda::DriverApi& api = (*cuda::Driver::Load())->api();
  cuda::CuEvent event = nullptr;
  ASSERT_EQ(api.EventCreate(&event, cuda::kEventDisableTiming),
            CuResult::kSuccess);
  ASSERT_EQ(api.EventRecord(event, host->stream()), CuResult::kSuccess);
  const Deadline deadline = Deadline::After(30);
  while (api.EventQuery(event) == CuResult::kNotReady) {
    ASSERT_FALSE(deadline.Expired());
    std::this_thread::yield();
  }
  EXPECT_EQ(api.EventDestroy(event), CuResult::kSuccess);
}

// Runs body(host, comm) after a capture and a replay, and expects it to be
// over in time.
void RunAfterReplay(const std::function<void(Host*, Communicator*)>& body) {
  RunRanks(kForm, kTimeout, [&](Host* host, Communicator* comm) {
    ASSERT_OK(host->Capture(Clipped()));
    host->CopyGrads(1, true);
    ASSERT_OK(host->Replay(Clipped()));
    ASSERT_OK(host->engine()->AwaitStep());
    ASSERT_OK(comm->Barrier("replayed", Deadline::After(30)));
    const auto begin = std::chrono::steady_clock::now();
    body(host, comm);
    EXPECT_LT(SecondsSince(begin), kTimeout + (kSanitized ? 5 : 1));
  });
}

TEST(NcclGraphTest, ARankThatDoesNotReplayIsNamed) {
  RunAfterReplay([](Host* host, Communicator* comm) {
    if (comm->rank() == 1) {
      // Nothing of the other rank waits on its GPU.
      EXPECT_FALSE(comm->Barrier("instead", Deadline::After(30)).ok());
      return;
    }
    const Status status = host->Replay(Clipped());
    ExpectError(status, StatusCode::kDeadlineExceeded, {"rank [1]"});
    EXPECT_EQ(status.rank(), 1);
  });
}

TEST(NcclGraphTest, ARankThatStepsWithoutTheGraphIsNamed) {
  RunAfterReplay([](Host* host, Communicator* comm) {
    const Status status =
        comm->rank() == 1 ? host->Step(Clipped()) : host->Replay(Clipped());
    ExpectError(status, StatusCode::kDesync,
                {"rank 0 replays a captured step, rank 1 steps"});
  });
}

// One rank agrees on the replay, and does not launch it. The other host waits
// for its stream alone, and makes no call of the engine.
TEST(NcclGraphTest, AReplayThatOneRankDoesNotLaunchIsAborted) {
  RunAfterReplay([](Host* host, Communicator* comm) {
    host->CopyGrads(2, true);
    ASSERT_OK(host->engine()->BeforeReplay(Clipped()));
    if (comm->rank() == 1) {
      EXPECT_FALSE(comm->Barrier("instead", Deadline::After(30)).ok());
      return;
    }
    host->Launch();
    AwaitStream(host);
    EXPECT_EQ(host->engine()->step(), 1);
    const Status status = host->engine()->BeforeReplay(Clipped());
    ExpectError(
        status, StatusCode::kDeadlineExceeded,
        {"a rank has not launched its graph after before_replay", "rank [1]"});
    EXPECT_EQ(status.rank(), 1);
    EXPECT_EQ(host->engine()->step(), 1);
  });
}

// All ranks may leave a launch out: the step does not count.
TEST(NcclGraphTest, AReplayThatNoRankLaunchesDoesNotCount) {
  RunAfterReplay([](Host* host, Communicator*) {
    host->CopyGrads(2, true);
    ASSERT_OK(host->engine()->BeforeReplay(Clipped()));
    ASSERT_OK(host->engine()->BeforeReplay(Clipped()));
    ASSERT_OK(host->Step(Clipped()));
    EXPECT_EQ(host->engine()->step(), 2);
  });
}

// A launch too many of all ranks, whose collectives meet, and then a launch
// that is asked for: the next call of all says so, once.
TEST(NcclGraphTest, LaunchesWithoutBeforeReplayAreFoundOnAllRanks) {
  RunAfterReplay([](Host* host, Communicator*) {
    const std::vector<std::byte> before = host->Params();
    host->CopyGrads(2, true);
    host->Launch();
    EXPECT_FALSE(host->Params() == before);
    ExpectError(host->Replay(Clipped()), StatusCode::kFailedPrecondition,
                {"rank 0", "launched without before_replay, or twice"});
    EXPECT_EQ(host->engine()->step(), 1);
    host->CopyGrads(3, true);
    ASSERT_OK(host->Replay(Clipped()));
    ASSERT_OK(host->engine()->AwaitStep());
    EXPECT_EQ(host->engine()->step(), 2);
  });
}

// A launch too many of one rank alone, before or after it has waited for the
// one that was asked for. Its collectives meet the next replay's of the other,
// or none, so the family ends, and engines are freed at once.
TEST(NcclGraphTest, ALaunchTooManyOfOneRankEndsTheFamily) {
  for (const bool waits : {false, true}) {
    SCOPED_TRACE(waits);
    RunRanks(kForm, kTimeout, [&](Host* host, Communicator* comm) {
      ASSERT_OK(host->Capture(Clipped()));
      ASSERT_OK(host->Replay(Clipped()));
      if (waits || comm->rank() == 0) ASSERT_OK(host->engine()->AwaitStep());
      if (comm->rank() == 1) host->Launch();
      // The launch may begin after the next before_replay.
      constexpr int kMost = 2;
      Status status;
      auto begin = std::chrono::steady_clock::now();
      for (int replays = 0; status.ok() && replays < kMost; ++replays) {
        begin = std::chrono::steady_clock::now();
        status = host->Replay(Clipped());
      }
      EXPECT_EQ(status.rank(), 1) << status.ToString();
      if (comm->rank() == 1) {
        ExpectError(status, StatusCode::kFailedPrecondition,
                    {"rank 1 has launched", "other ranks have not launched"});
        EXPECT_FALSE(host->engine()->BeforeReplay(Clipped()).ok());
      } else {
        EXPECT_FALSE(status.ok());
      }
      host->FreeEngine();
      EXPECT_LT(SecondsSince(begin), kTimeout + (kSanitized ? 5 : 1));
    });
  }
}

// Nor does the stream of its host wait for ever, where that waits for nothing
// else, and the other rank is told.
TEST(NcclGraphTest, ALaunchTooManyEndsWithoutACallOfItsHost) {
  RunAfterReplay([](Host* host, Communicator* comm) {
    if (comm->rank() == 1) {
      host->Launch();
      AwaitStream(host);
    }
    const Status status = comm->Barrier("instead", Deadline::After(30));
    EXPECT_EQ(status.rank(), 1);
    ExpectError(status,
                comm->rank() == 0 ? StatusCode::kDeadlineExceeded
                                  : StatusCode::kPoisoned,
                {"rank 1 has launched a graph without"});
  });
}

// Work that goes on when all ranks have shut down is not late for that.
TEST(NcclGraphTest, AReplayEndsAfterAShutdown) {
  RunRanks(kForm, 20, [](Host* host, Communicator* comm) {
    ASSERT_OK(host->Capture(Clipped()));
    host->CopyGrads(1, true);
    ASSERT_OK(host->engine()->BeforeReplay(Clipped()));
    ASSERT_OK(comm->Barrier("asked", Deadline::After(30)));
    if (comm->rank() == 0) testing::fake_cuda::Pause();
    ASSERT_OK(comm->Barrier("paused", Deadline::After(30)));
    host->Launch();
    ASSERT_OK(comm->Shutdown(Deadline::After(30)));
    if (comm->rank() == 0) testing::fake_cuda::Resume();
    ASSERT_OK(host->engine()->AwaitStep());
    EXPECT_EQ(host->engine()->step(), 1);
  });
}

// Each call waits for the launch, and then says which rank has made it.
TEST(NcclGraphTest, ALaunchTooManyIsToldByEachCall) {
  const ParamId params[] = {0};
  const std::vector<std::function<Status(Engine*)>> calls = {
      [](Engine* engine) { return engine->Summon(0, -1, 0); },
      [&](Engine* engine) { return engine->SetTrainable(params, false, 0); },
      [](Engine* engine) {
        return engine->GatherState(
            StateOptions(), -1, 0,
            [](const auto&...) -> Status { return Status(); });
      },
  };
  for (const auto& call : calls) {
    SCOPED_TRACE(&call - calls.data());
    RunAfterReplay([&](Host* host, Communicator* comm) {
      if (comm->rank() == 1) host->Launch();
      const Status status = call(host->engine());
      EXPECT_EQ(status.rank(), 1) << status.ToString();
      if (comm->rank() == 1) {
        ExpectError(status, StatusCode::kFailedPrecondition,
                    {"rank 1 has launched a graph without before_replay"});
      }
    });
  }
}

// An abort of the host's ends it at once.
TEST(NcclGraphTest, ALaunchTooManyEndsWithItsFamily) {
  RunRanks(kForm, 20, [](Host* host, Communicator* comm) {
    ASSERT_OK(host->Capture(Clipped()));
    ASSERT_OK(host->Replay(Clipped()));
    ASSERT_OK(host->engine()->AwaitStep());
    const auto begin = std::chrono::steady_clock::now();
    if (comm->rank() == 1) {
      host->Launch();
      comm->Abort(Cancelled("the host's reason"));
    }
    EXPECT_TRUE(Tells(host->Replay(Clipped()), "the host's reason"));
    AwaitStream(host);
    EXPECT_LT(SecondsSince(begin), kSanitized ? 10 : 5);
  });
}

// The host's own work behind such launches of all ranks may take longer than
// their timeout.
TEST(NcclGraphTest, WorkBehindALaunchTooManyOfAllRanksEndsNothing) {
  RunAfterReplay([](Host* host, Communicator* comm) {
    host->Launch();
    AwaitStream(host);
    ASSERT_OK(comm->Barrier("launched", Deadline::After(30)));
    if (comm->rank() == 0) testing::fake_cuda::Pause();
    ASSERT_OK(comm->Barrier("paused", Deadline::After(30)));
    host->CopyGrads(2, true);
    StepOptions hasty = Clipped();
    hasty.timeout = kTimeout / 4;
    const Status status = host->engine()->BeforeReplay(hasty);
    ASSERT_OK(comm->Barrier("tried", Deadline::After(30)));
    if (comm->rank() == 0) testing::fake_cuda::Resume();
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded)
        << status.ToString();
    ExpectError(host->engine()->BeforeReplay(Clipped()),
                StatusCode::kFailedPrecondition,
                {"launched without before_replay, or twice"});
    ASSERT_OK(host->Replay(Clipped()));
    ASSERT_OK(host->engine()->AwaitStep());
    EXPECT_EQ(host->engine()->step(), 2);
  });
}

// Where all ranks have made it, and their streams are captured when the next
// call comes, that says so once, and training goes on.
TEST(NcclGraphTest, ALaunchTooManyOfAllRanksBeforeACaptureEndsNothing) {
  RunAfterReplay([](Host* host, Communicator*) {
    host->Launch();
    (void)host->Params();
    ExpectError(host->Capture(Clipped()), StatusCode::kFailedPrecondition,
                {"launched without before_replay, or twice"});
    ASSERT_OK(host->Capture(Clipped()));
    host->CopyGrads(2, true);
    ASSERT_OK(host->Replay(Clipped()));
    ASSERT_OK(host->engine()->AwaitStep());
    EXPECT_EQ(host->engine()->step(), 2);
  });
}

// One that is freed then waits for its timeout, and leaves nothing.
TEST(NcclGraphTest, AnEngineWithALaunchTooManyIsFreed) {
  RunRanks(kForm, kTimeout, [](Host* host, Communicator* comm) {
    ASSERT_OK(host->Capture(Clipped()));
    ASSERT_OK(host->Replay(Clipped()));
    ASSERT_OK(host->engine()->AwaitStep());
    if (comm->rank() == 1) host->Launch();
    const auto begin = std::chrono::steady_clock::now();
    host->FreeEngine();
    // For the stream, and for its end after the abort.
    EXPECT_LT(SecondsSince(begin), 2 * kTimeout + (kSanitized ? 5 : 1));
  });
}

// The other rank waits for its GPU, and so does not come to the step.
TEST(NcclGraphTest, ARankThatStepsInPlaceOfItsLaunchIsTold) {
  RunAfterReplay([](Host* host, Communicator* comm) {
    host->CopyGrads(2, true);
    ASSERT_OK(host->engine()->BeforeReplay(Clipped()));
    if (comm->rank() == 0) host->Launch();
    const Status status = host->Step(Clipped());
    if (comm->rank() == 1) {
      ExpectError(status, StatusCode::kDeadlineExceeded,
                  {"has not launched its graph"});
    } else {
      EXPECT_FALSE(status.ok());
    }
  });
}

TEST(NcclGraphTest, ACollectiveOfAReplayThatIsStuckEnds) {
  RunAfterReplay([](Host* host, Communicator* comm) {
    if (comm->rank() == 0) testing::fake_nccl::StickAt(2, {.rank = 1});
    ASSERT_OK(comm->Barrier("stuck", Deadline::After(30)));
    host->CopyGrads(2, true);
    ASSERT_OK(host->Replay(Clipped()));
    const Status status = host->engine()->AwaitStep();
    EXPECT_TRUE(Tells(status, "DEADLINE_EXCEEDED"));
    EXPECT_EQ(host->engine()->step(), 1);
  });
}

TEST(NcclGraphTest, ARankThatDiesIsLost) {
  const FakeNccl fake(Gpus());
  const std::string url =
      StrCat("threads:", kRanks, "?direct=0&name=", testing::UniqueName());
  std::promise<std::chrono::steady_clock::time_point> left;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto comm =
          OpenCommunicator(url, {.rank = rank, .world_size = kRanks});
      ASSERT_OK(comm);
      std::optional<Host> host(std::in_place, kForm, *comm, 20);
      ASSERT_OK(host->Capture(Clipped()));
      host->CopyGrads(1, true);
      ASSERT_OK(host->engine()->BeforeReplay(Clipped()));
      if (rank == 1) {
        // Its communicators wait for those of the other rank.
        host.reset();
        left.set_value(std::chrono::steady_clock::now());
        return;
      }
      host->Launch();
      EXPECT_TRUE(Tells(host->engine()->AwaitStep(), "RANK_LOST"));
      // A second, on a machine that does nothing else.
      EXPECT_LT(
          SecondsSince(left.get_future().get()),
          !kSanitized && std::getenv("SHARD_TEST_LONG") != nullptr ? 1 : 4);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A capture that fails on one rank fails on all, and ends nothing.
TEST(NcclGraphTest, AnErrorOfOneRanksCaptureIsThatOfAll) {
  RunRanks(kForm, 20, [&](Host* host, Communicator* comm) {
    StepOptions wrong = Clipped();
    if (comm->rank() == 1) wrong.clip_value = -1;
    const Status status = host->Capture(wrong);
    ExpectError(status, StatusCode::kInvalidArgument, {"rank 1"});
    ExpectError(host->engine()->BeforeReplay(Clipped()),
                StatusCode::kFailedPrecondition, {"no step was captured"});
    ASSERT_OK(host->Capture(Clipped()));
    host->CopyGrads(1, true);
    ASSERT_OK(host->Replay(Clipped()));
    ASSERT_OK(host->engine()->AwaitStep());
    EXPECT_EQ(host->engine()->step(), 1);
  });
}

TEST(NcclGraphTest, PlansWhoseUnitsAreMarkedHaveNoGraphs) {
  for (const int stage : {2, 3}) {
    const auto plan =
        nccl_training::MakePlan({.world_size = kRanks, .stage = stage});
    const FakeNccl fake(Gpus());
    RunThreadRanks(
        kRanks,
        [&](const std::shared_ptr<Communicator>& comm) {
          EngineOptions options;
          options.transport = Transport::kNccl;
          options.opened_device = *cuda::OpenDevice(StrCat(comm->rank()));
          const auto engine = Engine::Create(plan, comm, options);
          ASSERT_OK(engine);
          ASSERT_OK(cuda_training::Fill(engine->get()));
          ExpectError((*engine)->CaptureBegin(),
                      StatusCode::kFailedPrecondition,
                      {"capture_begin", "plan with stage 0 or 1"});
        },
        30, "direct=0");
  }
}

}  // namespace
}  // namespace shard::nccl_graphs_test
