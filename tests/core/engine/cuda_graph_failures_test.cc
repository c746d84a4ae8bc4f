// SPDX-License-Identifier: Apache-2.0
//
// Calls of the driver or of NCCL that fail while a step is captured, on the
// fakes: the end of the capture tells so, on all ranks where there are several,
// and training goes on, but for a failure of NCCL.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>

#include "core/base/out_of_memory.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/driver_api.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_graph_host.h"
#include "tests/core/engine/cuda_graph_ranks.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::cuda_graph_failures_test {
namespace {

using cuda::CuResult;
using cuda_graphs::Host;
using cuda_graphs::RunGraphRanks;
using cuda_training::Clipped;
using testing::FakeCudaTest;
using testing::fake_cuda::Count;
using testing::fake_cuda::Counters;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::FailCall;
using testing::fake_cuda::SetCaptured;

class GraphFailuresTest : public FakeCudaTest {};

// Enqueues work of the host's stream that fails.
void FailHostsStream(Engine* engine, void* memory) {
  FailCall("cuMemsetD8Async", 1, CuResult::kUnknown);
  engine->host_stream().FillZeros(memory, 1);
}

// Expects a capture to have ended with an error, and ends no training.
void ExpectLacking(const Status& ended, Engine* engine) {
  ExpectError(ended, StatusCode::kUnavailable,
              {"capture_end", "CUDA_ERROR_UNKNOWN"});
  ExpectError(engine->BeforeReplay(Clipped()), StatusCode::kFailedPrecondition,
              {"capture the step again"});
}

// Steps without a graph and with one after a capture that failed: nothing has
// ended.
void TrainOn(Host* host) {
  host->CopyGrads(1, true);
  ASSERT_OK(host->engine()->Step(Clipped(), nullptr));
  ASSERT_OK(host->engine()->Synchronize(0));
  ASSERT_OK(host->Capture(Clipped()));
  host->CopyGrads(2, true);
  ASSERT_OK(host->Replay(Clipped()));
  ASSERT_OK(host->engine()->AwaitStep());
  EXPECT_EQ(host->engine()->step(), 2);
}

// Each piece of a step and of the zeros after it fails once, copies of bound
// tensors too. The host looks at the end alone.
TEST_F(GraphFailuresTest, TheEndOfACaptureTellsThatAPieceIsMissing) {
  for (const char* const name :
       {"cuLaunchKernel", "cuMemcpyAsync", "cuMemsetD8Async"}) {
    uint64_t calls = 1;
    for (uint64_t call = 0; call <= calls; ++call) {
      SCOPED_TRACE(StrCat(name, " ", call));
      Host host("adamw");
      Engine* const engine = host.engine();
      host.BindAll();
      ASSERT_OK(engine->Synchronize(0));
      Status ended;
      ASSERT_OK(host.CaptureWith([&]() -> Status {
        SHARD_RETURN_IF_ERROR(engine->CaptureBegin());
        const Counters before = Count();
        if (call > 0) FailCall(name, call, CuResult::kUnknown);
        (void)engine->Step(Clipped(), nullptr).ok();
        (void)engine->ZeroGrad().ok();
        if (call == 0) calls = CountSince(before).Calls(name);
        ended = engine->CaptureEnd();
        return Status();
      }));
      if (call == 0) {
        EXPECT_OK(ended);
        continue;
      }
      ExpectLacking(ended, engine);
      TrainOn(&host);
    }
    EXPECT_GT(calls, 2u);
  }
}

TEST_F(GraphFailuresTest, TheEndOfACaptureTellsAnErrorOfTheHostsStream) {
  Host host("adamw");
  Engine* const engine = host.engine();
  ASSERT_OK(host.Capture(Clipped()));
  void* const memory = host.Allocate(1).data();
  SetCaptured(host.stream().get());
  ASSERT_OK(engine->CaptureBegin());
  ASSERT_OK(engine->Step(Clipped(), nullptr));
  FailHostsStream(engine, memory);
  const Status ended = engine->CaptureEnd();
  SetCaptured(nullptr);
  ExpectLacking(ended, engine);
  TrainOn(&host);
}

// ---- Captures of several ranks ----------------------------------------------

// An error that one rank finds after the step, on a stream of its own.
TEST(GraphRanksTest, AnErrorOfOneRankIsToldAtTheEndOfAllCaptures) {
  for (const bool in_compute : {false, true}) {
    SCOPED_TRACE(in_compute ? "compute" : "host");
    RunGraphRanks([&](Host* host, Communicator* comm) {
      Engine* const engine = host->engine();
      ASSERT_OK(host->Capture(Clipped()));
      void* const memory = host->Allocate(1).data();
      const Status ended = host->CaptureWith([&]() -> Status {
        SHARD_RETURN_IF_ERROR(engine->CaptureBegin());
        SHARD_RETURN_IF_ERROR(engine->Step(Clipped(), nullptr));
        // Failures are those of the next call, whichever thread makes it.
        SHARD_RETURN_IF_ERROR(comm->Barrier("stepped", Deadline::After(30)));
        if (comm->rank() == 1 && in_compute) {
          FailCall("cuMemsetD8Async", 1, CuResult::kUnknown);
          EXPECT_FALSE(engine->ZeroGrad().ok());
        } else if (comm->rank() == 1) {
          FailHostsStream(engine, memory);
        }
        return engine->CaptureEnd();
      });
      ExpectLacking(ended, engine);
      EXPECT_EQ(ended.rank(), 1) << ended.ToString();
      TrainOn(host);
    });
  }
}

// A rank that would fail alone leaves the others waiting in the step.
TEST(GraphRanksTest, AnErrorOfOneRankBeforeTheStepIsToldInIt) {
  RunGraphRanks([&](Host* host, Communicator* comm) {
    Engine* const engine = host->engine();
    const auto meet = [&](const char* what) {
      return comm->Barrier(what, Deadline::After(30));
    };
    Status stepped;
    ASSERT_OK(host->CaptureWith([&]() -> Status {
      SHARD_RETURN_IF_ERROR(engine->CaptureBegin());
      SHARD_RETURN_IF_ERROR(meet("begun"));
      // Failures are those of the next call, whichever thread makes it.
      if (comm->rank() == 1) {
        FailCall("cuMemsetD8Async", 1, CuResult::kUnknown);
        for (int call = 0; call < 2; ++call) EXPECT_OK(engine->ZeroGrad());
      }
      SHARD_RETURN_IF_ERROR(meet("failed"));
      stepped = engine->Step(Clipped(), nullptr);
      (void)engine->CaptureEnd().ok();
      return Status();
    }));
    ExpectError(stepped, StatusCode::kUnavailable, {"CUDA_ERROR_UNKNOWN"});
    EXPECT_EQ(stepped.rank(), 1) << stepped.ToString();
    TrainOn(host);
  });
}

// Each launch of either rank's step fails once. Kernels of the communication
// stream sum gradients. The calls that follow make it no final error.
TEST(GraphRanksTest, AnErrorOfOneRanksStreamIsThatOfAllCaptures) {
  uint64_t launches = 1;
  std::string streams;
  for (uint64_t launch = 0; launch <= launches; ++launch) {
    SCOPED_TRACE(StrCat("launch ", launch));
    RunGraphRanks([&](Host* host, Communicator* comm) {
      Engine* const engine = host->engine();
      const auto meet = [&](const char* what) {
        return comm->Barrier(what, Deadline::After(30));
      };
      Counters before;
      Status stepped;
      Status ended;
      ASSERT_OK(host->CaptureWith([&]() -> Status {
        SHARD_RETURN_IF_ERROR(engine->CaptureBegin());
        SHARD_RETURN_IF_ERROR(meet("begun"));
        before = Count();
        // Failures are those of the next call, whichever thread makes it.
        if (comm->rank() == 0 && launch > 0) {
          FailCall("cuLaunchKernel", launch, CuResult::kUnknown);
        }
        SHARD_RETURN_IF_ERROR(meet("fails"));
        stepped = engine->Step(Clipped(), nullptr);
        if (comm->rank() == 0 && launch == 0) {
          launches = CountSince(before).Calls("cuLaunchKernel");
        }
        (void)engine->ZeroGrad().ok();
        ended = engine->CaptureEnd();
        return Status();
      }));
      EXPECT_EQ(stepped.ok(), launch == 0) << stepped.ToString();
      if (launch == 0) {
        EXPECT_OK(ended);
        return;
      }
      if (comm->rank() == 0) streams.append(stepped.message());
      if (stepped.message().find("NCCL") != std::string::npos) {
        // A launch of NCCL's: the group has ended.
        EXPECT_FALSE(ended.ok());
        return;
      }
      ExpectLacking(ended, engine);
      ExpectError(ended, StatusCode::kUnavailable, {"rank "});
      TrainOn(host);
    });
  }
  EXPECT_GT(launches, 10u);
  EXPECT_NE(streams.find("shard-compute"), std::string::npos);
  EXPECT_NE(streams.find("shard-comm"), std::string::npos);
}

// Memory runs out on one rank within the step. The border to C then ends the
// group, and the other rank waits no longer.
TEST(GraphRanksTest, AnExceptionInACapturedStepEndsTheOtherRanksAtOnce) {
  static thread_local bool throws = false;
  RunGraphRanks(
      [&](Host* host, Communicator* comm) {
        Engine* const engine = host->engine();
        ASSERT_OK(host->CaptureWith([&]() -> Status {
          SHARD_RETURN_IF_ERROR(engine->CaptureBegin());
          throws = comm->rank() == 1;
          const auto begin = std::chrono::steady_clock::now();
          Status stepped;
          try {
            stepped = engine->Step(Clipped(), nullptr);
          } catch (const std::bad_alloc&) {
            EXPECT_EQ(comm->rank(), 1);
            comm->Abort(OutOfMemoryStatus());
          }
          if (comm->rank() == 0) {
            ExpectError(stepped, StatusCode::kPoisoned,
                        {"rank 1 aborted the group: RESOURCE_EXHAUSTED"});
            EXPECT_EQ(stepped.rank(), 1);
          }
          throws = false;
          EXPECT_FALSE(engine->CaptureEnd().ok());
          const std::chrono::duration<double> took =
              std::chrono::steady_clock::now() - begin;
          EXPECT_LT(took.count(), 10);
          return Status();
        }));
        EXPECT_FALSE(engine->Step(Clipped(), nullptr).ok());
      },
      [](std::string_view what) {
        if (throws && what == "capture a step") throw std::bad_alloc();
      });
}

// It ends the group, and not the capture alone.
TEST(GraphRanksTest, AFailureOfNcclInACaptureIsFinal) {
  RunGraphRanks([&](Host* host, Communicator* comm) {
    Engine* const engine = host->engine();
    if (comm->rank() == 0) {
      testing::fake_nccl::FailCall("ncclAllGather", 1,
                                   testing::fake_nccl::Result::kInternalError,
                                   {.rank = 1});
    }
    ASSERT_OK(comm->Barrier("fails", Deadline::After(30)));
    // The engine and the family each tell what ended them.
    const auto ends = [](const Status& status) {
      EXPECT_TRUE(status.code() == StatusCode::kInternal ||
                  status.code() == StatusCode::kPoisoned);
      EXPECT_THAT(
          status.ToString(),
          ::testing::AllOf(
              ::testing::HasSubstr("INTERNAL: rank 1: step: global norm"),
              ::testing::HasSubstr("ncclAllGather fails")));
    };
    ASSERT_OK(host->CaptureWith([&]() -> Status {
      SHARD_RETURN_IF_ERROR(engine->CaptureBegin());
      ExpectError(engine->Step(Clipped(), nullptr), StatusCode::kInternal,
                  {"rank 1: step: global norm: ", "ncclAllGather fails"});
      ends(engine->CaptureEnd());
      return Status();
    }));
    ends(engine->Step(Clipped(), nullptr));
  });
}

}  // namespace
}  // namespace shard::cuda_graph_failures_test
