// SPDX-License-Identifier: Apache-2.0
//
// Hosts of engines on the device cuda, over the fake of its driver: their own
// work on the stream that they give, graphs that they capture, memory of the
// wrong place, and memory that they do not touch.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/device/cuda/driver.h"
#include "core/device/cuda/driver_api.h"
#include "core/engine/engine.h"
#include "core/state/memory_store.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_host_test {
namespace {

using cuda_training::Clipped;
using cuda_training::Fill;
using cuda_training::Form;
using cuda_training::HostsStream;
using cuda_training::MakeEngine;
using cuda_training::MakePlan;
using cuda_training::OpenLocal;
using cuda_training::ReadParam;
using cuda_training::TrainOneStep;
using testing::FakeCuda;
using testing::FakeCudaTest;
using testing::fake_cuda::CountAlive;
using testing::fake_cuda::FailCall;
using testing::fake_cuda::Options;
using testing::fake_cuda::Pause;
using testing::fake_cuda::Reset;
using testing::fake_cuda::Resume;
using testing::fake_cuda::RunAll;
using testing::fake_cuda::SetCaptured;

// ---- The host's stream ------------------------------------------------------

// Enqueues a copy of `bytes` bytes on a stream of the host's.
void CopyOn(const HostsStream& stream, void* to, const void* from,
            size_t bytes) {
  const cuda::DriverApi& api = (*cuda::Driver::Load())->api();
  ASSERT_EQ(api.MemcpyAsync(reinterpret_cast<cuda::CuPointer>(to),
                            reinterpret_cast<cuda::CuPointer>(from), bytes,
                            stream.get()),
            cuda::CuResult::kSuccess);
}

class HostsStreamTest : public FakeCudaTest {};

// The host's copies write gradients and read parameters without waiting for
// the engine, or the engine for them.
TEST_F(HostsStreamTest, ItsWorkHasAnOrderWithTheEngines) {
  constexpr int kSteps = 4;
  const Form form = {.units = 2};
  std::vector<float> expected;
  {
    const auto plain = MakeEngine(MakePlan(form), OpenLocal());
    ASSERT_OK(plain);
    ASSERT_OK(Fill(plain->get()));
    for (int step = 1; step <= kSteps; ++step) {
      ASSERT_OK(TrainOneStep(plain->get(), step));
    }
    const auto read = ReadParam(plain->get());
    ASSERT_OK(read);
    expected = *read;
  }
  const HostsStream stream;
  const auto engine = MakeEngine(MakePlan(form), OpenLocal());
  ASSERT_OK(engine);
  ASSERT_OK((*engine)->SetStream(stream.get()));
  ASSERT_OK(Fill(engine->get()));
  // What the copies read, and write, until they have run.
  std::vector<std::vector<float>> grads;
  std::vector<float> params(expected.size());
  for (int step = 1; step <= kSteps; ++step) {
    for (auto unit = static_cast<int32_t>((*engine)->plan().units().size());
         unit-- > 0;) {
      ASSERT_OK((*engine)->UnitAcquire(unit, Pass::kBackward, 0));
      for (const ParamId param :
           cuda_training::ParamsOf((*engine)->plan(), unit)) {
        const auto grad = (*engine)->Grad(param);
        ASSERT_OK(grad);
        std::vector<float>& values = grads.emplace_back();
        for (int64_t i = 0; i < grad->numel; ++i) {
          values.push_back(GradientValue(step, param, i));
        }
        CopyOn(stream, grad->data, values.data(),
               values.size() * sizeof(float));
      }
      ASSERT_OK((*engine)->MarkUnitGradsReady(unit));
      ASSERT_OK((*engine)->UnitRelease(unit));
    }
    ASSERT_OK((*engine)->Step(Clipped(), nullptr));
    const auto param = (*engine)->Param(0);
    ASSERT_OK(param);
    CopyOn(stream, params.data(), param->data, params.size() * sizeof(float));
  }
  ASSERT_OK((*engine)->Synchronize(0));
  RunAll();
  EXPECT_EQ(params, expected);
}

// The host's stream has an error and is waited for all the same.
TEST_F(HostsStreamTest, MemoryIsNotFreedUnderItsWork) {
  const HostsStream stream;
  auto engine = MakeEngine(MakePlan({}), OpenLocal());
  ASSERT_OK(engine);
  ASSERT_OK((*engine)->SetStream(stream.get()));
  ASSERT_OK(Fill(engine->get()));
  ASSERT_OK(TrainOneStep(engine->get(), 1));
  FailCall("cuEventRecord", 1, cuda::CuResult::kInvalidValue);
  EXPECT_FALSE(TrainOneStep(engine->get(), 2).ok());
  const auto param = (*engine)->Param(0);
  ASSERT_OK(param);
  std::vector<float> values(static_cast<size_t>(param->numel));
  CopyOn(stream, values.data(), param->data, values.size() * sizeof(float));
  engine->reset();
  RunAll();
}

// As the test before, with work that does not end: the memory stays.
TEST(HostsStreamKeepsTest, MemoryThatItsWorkUsesForTooLong) {
  const FakeCuda fake;
  const HostsStream stream;
  CommOptions options;
  options.world_size = 1;
  options.timeout = 0.2;
  auto comm = OpenCommunicator("local:", options);
  ASSERT_OK(comm);
  auto engine = MakeEngine(MakePlan({}), *comm);
  ASSERT_OK(engine);
  ASSERT_OK((*engine)->SetStream(stream.get()));
  ASSERT_OK(Fill(engine->get()));
  const auto param = (*engine)->Param(0);
  ASSERT_OK(param);
  std::vector<float> values(static_cast<size_t>(param->numel));
  const size_t before = CountAlive().device_bytes;
  Pause();
  CopyOn(stream, values.data(), param->data, values.size() * sizeof(float));
  engine->reset();
  EXPECT_GE(CountAlive().device_bytes, values.size() * sizeof(float));
  EXPECT_LE(CountAlive().device_bytes, before);
  Resume();
  RunAll();
  EXPECT_EQ(values[0], 1.0f);
  Reset();
}

void ExpectCaptured(const Status& status, std::string_view call) {
  ExpectError(status, StatusCode::kFailedPrecondition,
              {call, "captures the work of its stream", "before the capture"});
}

// Nothing of a call goes into the host's graph, and the engine trains on.
TEST_F(HostsStreamTest, ACaptureRefusesCallsAndEndsNothing) {
  std::vector<float> expected;
  for (const bool captures : {false, true}) {
    const HostsStream stream;
    const auto made = MakeEngine(MakePlan({.units = 2}), OpenLocal());
    ASSERT_OK(made);
    Engine* const engine = made->get();
    ASSERT_OK(engine->SetStream(stream.get()));
    if (captures) {
      SetCaptured(stream.get());
      const std::vector<float> values(4000);
      ExpectCaptured(engine->SetParam(0, values.data(), 4 * values.size()),
                     "set_param");
      ExpectCaptured(engine->BroadcastParams(0), "broadcast_params");
      ExpectCaptured(engine->BroadcastHostTensors(0, 0), "broadcast_buffers");
      ExpectCaptured(engine->SetStream(nullptr), "set_stream");
      SetCaptured(nullptr);
    }
    ASSERT_OK(Fill(engine));
    ASSERT_OK(TrainOneStep(engine, 1));
    if (captures) {
      ASSERT_OK(engine->Summon(0, -1, 0));
      SetCaptured(stream.get());
      ExpectCaptured(engine->EndSummon(true, 0), "summon_end");
      SetCaptured(nullptr);
      ASSERT_OK(engine->EndSummon(true, 0));
      SetCaptured(stream.get());
      ExpectCaptured(engine->UnitAcquire(0, Pass::kBackward, 0),
                     "unit_acquire");
      ExpectCaptured(engine->UnitRelease(0), "unit_release");
      ExpectCaptured(engine->MarkUnitGradsReady(0), "mark_unit_grads_ready");
      ExpectCaptured(engine->MarkParamGradReady(0), "mark_param_grad_ready");
      ExpectCaptured(engine->ZeroGrad(), "zero_grad");
      ExpectCaptured(engine->BeginStep(Clipped()), "begin_step");
      ExpectCaptured(engine->Step(Clipped(), nullptr), "step");
      ExpectCaptured(engine->Summon(0, -1, 0), "summon");
      ExpectCaptured(engine->SetStream(nullptr), "set_stream");
      SetCaptured(nullptr);
    }
    for (int step = 2; step <= 4; ++step) {
      ASSERT_OK(TrainOneStep(engine, step));
    }
    const auto read = ReadParam(engine);
    ASSERT_OK(read);
    if (!captures) expected = *read;
    EXPECT_EQ(*read, expected);
  }
}

// One rank's host captures: the step fails on both, and can be done after it.
TEST_F(HostsStreamTest, ACaptureOfOneRankRefusesTheStepOfAll) {
  std::vector<std::unique_ptr<HostsStream>> streams;
  streams.push_back(std::make_unique<HostsStream>());
  streams.push_back(std::make_unique<HostsStream>());
  RunThreadRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const auto rank = static_cast<size_t>(comm->rank());
    const auto made =
        MakeEngine(MakePlan({.units = 2, .world_size = 2, .stage = 2}), comm);
    ASSERT_OK(made);
    Engine* const engine = made->get();
    ASSERT_OK(engine->SetStream(streams[rank]->get()));
    ASSERT_OK(Fill(engine));
    ASSERT_OK(TrainOneStep(engine, 1));
    ASSERT_OK(engine->Synchronize(0));
    ASSERT_OK(comm->Barrier("test", Deadline::After(30)));
    if (rank == 0) SetCaptured(streams[0]->get());
    ExpectError(engine->Step(Clipped(), nullptr),
                StatusCode::kFailedPrecondition, {"step", "captures the work"});
    if (rank == 0) SetCaptured(nullptr);
    ASSERT_OK(comm->Barrier("test", Deadline::After(30)));
    EXPECT_OK(TrainOneStep(engine, 2));
    EXPECT_OK(ReadParam(engine));
  });
}

// ---- Memory of the wrong place ----------------------------------------------

class WrongPlaceTest : public FakeCudaTest {};

// The host would read it, and crash.
TEST_F(WrongPlaceTest, MemoryOfTheGpuIsNotTheHosts) {
  const auto made = MakeEngine(MakePlan({}), OpenLocal());
  ASSERT_OK(made);
  Engine* const engine = made->get();
  const auto param = engine->Param(0);
  ASSERT_OK(param);
  const auto bytes = static_cast<size_t>(param->numel) * sizeof(float);
  ExpectError(engine->SetParam(0, param->data, bytes),
              StatusCode::kInvalidArgument,
              {"set_param", "memory of the host"});
  MemoryStore store;
  ASSERT_OK(store.Add({.key = "block0.weight0", .shape = {param->numel}},
                      param->data, bytes));
  LoadReport report;
  ExpectError(engine->LoadState(&store, LoadOptions(), &report),
              StatusCode::kInvalidArgument,
              {"block0.weight0", "memory of the host"});
  ASSERT_OK(Fill(engine));
  ExpectError(
      engine->SetState(0, "exp_avg", static_cast<const float*>(param->data),
                       static_cast<size_t>(param->numel)),
      StatusCode::kInvalidArgument, {"set_state", "memory of the host"});
  EXPECT_OK(TrainOneStep(engine, 1));
}

TEST_F(WrongPlaceTest, MemoryOfTheHostIsNotTheGpus) {
  const auto made = MakeEngine(MakePlan({}), OpenLocal());
  ASSERT_OK(made);
  Engine* const engine = made->get();
  ASSERT_OK(Fill(engine));
  std::vector<std::byte> memory(4000 * sizeof(float));
  ExpectError(engine->Bind(0, {.values = memory, .grad = {}}),
              StatusCode::kInvalidArgument, {"bind_param", "cuda:0"});
  ExpectError(engine->Bind(0, {.values = {}, .grad = memory}),
              StatusCode::kInvalidArgument, {"bind_param", "cuda:0"});
  EXPECT_OK(TrainOneStep(engine, 1));
}

// ---- Memory of the GPU ------------------------------------------------------

// Writes a gradient of each parameter as a host does, and steps.
void TrainWithCopies(Engine* engine, const HostsStream& stream) {
  const std::vector<float> values(4000, 0.5f);
  for (auto unit = static_cast<int32_t>(engine->plan().units().size());
       unit-- > 0;) {
    ASSERT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
    for (const ParamId param : cuda_training::ParamsOf(engine->plan(), unit)) {
      const auto grad = engine->Grad(param);
      ASSERT_OK(grad);
      CopyOn(stream, grad->data, values.data(), values.size() * sizeof(float));
    }
    ASSERT_OK(engine->MarkUnitGradsReady(unit));
    ASSERT_OK(engine->UnitRelease(unit));
  }
  ASSERT_OK(engine->Step(Clipped(), nullptr));
  ASSERT_OK(engine->Synchronize(0));
}

// The memory faults where the host reads or writes it, as a GPU's does.
void UseEngineWithGuard(const Form& form) {
  Options options;
  options.guard = true;
  const FakeCuda fake(options);
  const testing::TempFolder folder;
  RunThreadRanks(form.world_size, [&](const auto& comm) {
    const HostsStream stream;
    const auto made = MakeEngine(MakePlan(form), comm);
    ASSERT_OK(made);
    Engine* const engine = made->get();
    ASSERT_OK(engine->SetStream(stream.get()));
    ASSERT_OK(Fill(engine));
    const std::vector<float> state(4000, 0.25f);
    ASSERT_OK(engine->SetState(0, "exp_avg", state.data(), state.size()));
    TrainWithCopies(engine, stream);
    ASSERT_OK(engine->ZeroGrad());
    const std::vector<ParamId> params = {0};
    ASSERT_OK(engine->SetTrainable(params, false, 0));
    ASSERT_OK(engine->SetTrainable(params, true, 0));
    ASSERT_OK(engine->Save(folder.path(), SaveOptions()));
    LoadReport report;
    ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
    MemoryStore store;
    ASSERT_OK(engine->AddLocalState(StateOptions(), &store));
    ASSERT_OK(engine->LoadState(&store, LoadOptions(), &report));
    ASSERT_OK(engine->GatherState(
        StateOptions(), 0, 0,
        [](const StateEntry&, const std::byte*) { return Status(); }));
    TrainWithCopies(engine, stream);
    EXPECT_OK(ReadParam(engine));
  });
}

TEST(GuardedMemoryTest, TheHostTouchesNoTensor) {
  UseEngineWithGuard({.units = 2});
  UseEngineWithGuard({.units = 2, .world_size = 2});
  UseEngineWithGuard({.units = 2, .world_size = 2, .stage = 3});
}

}  // namespace
}  // namespace shard::cuda_host_test
