// SPDX-License-Identifier: Apache-2.0
//
// Engines with offloaded optimizer states over the fake of CUDA's driver: what
// goes on while the host's update of a unit takes its time, and which steps
// leave the windows of staging memory alone. The host's processor is a device
// of the test, which counts updates and can hold one of them open.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <latch>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/offload.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/device.h"
#include "core/device/forwarding_device.h"
#include "core/device/forwarding_stream.h"
#include "core/device/offload/offloading_device.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/gate.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/six_blocks.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_offload_progress_test {
namespace {

using cuda_training::HostsStream;
using cuda_training::OpenLocal;
using testing::FakeCudaTest;

constexpr double kLongest = 20;

// The updates of windows, by the host of one engine.
struct HostWork {
  std::atomic<bool> holds_next = false;  // The next update waits at the gate.
  Gate gate;
  std::atomic<int> updates = 0;
};

class WatchedStream final : public ForwardingStream {
 public:
  WatchedStream(std::shared_ptr<Stream> stream, HostWork* work)
      : ForwardingStream(std::move(stream)), work_(work) {}

  void Update(const UpdateList& list, size_t range, const StepBlocks& step,
              const GradientSources* gradients) override {
    ++work_->updates;
    if (work_->holds_next.exchange(false)) EXPECT_OK(work_->gate.Pass());
    ForwardingStream::Update(list, range, step, gradients);
  }

 private:
  HostWork* const work_;
};

// The CPU, whose updates `work` watches.
class WatchedCpu final : public ForwardingDevice {
 public:
  explicit WatchedCpu(HostWork* work)
      : ForwardingDevice(*OpenDevice("cpu")), work_(work) {}

  StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) override {
    SHARD_ASSIGN_OR_RETURN(auto stream, device().CreateStream(kind));
    return std::unique_ptr<Stream>(
        std::make_unique<WatchedStream>(std::move(stream), work_));
  }

 private:
  HostWork* const work_;
};

StatusOr<std::unique_ptr<Engine>> MakeEngine(
    const std::shared_ptr<const Plan>& plan,
    const std::shared_ptr<Communicator>& comm, HostWork* work,
    double timeout = 0) {
  EngineOptions options;
  options.timeout = timeout;
  SHARD_ASSIGN_OR_RETURN(auto device, cuda::OpenDevice("0"));
  options.opened_device =
      OffloadStates(std::move(device), std::make_shared<WatchedCpu>(work),
                    {.threads = 3, .window = 256});
  return Engine::Create(plan, comm, options);
}

class CudaOffloadProgressTest : public FakeCudaTest {};

// The update that is held is that of the unit whose gradients were ready first:
// one of rank 0's threads has a window of it. Stage 3 gathers each unit for the
// backward pass, and blocks have one slot of gradients, which goes from block
// to block. So once the host has written the last gradients, all units were
// gathered, and the gradients of all blocks but the last were reduced.
TEST_F(CudaOffloadProgressTest, OtherUnitsAndTheHostsWorkPassAnUpdate) {
  UnitTraining training = SixBlocks();
  training.plan.world_size = 2;
  training.plan.stage = 3;
  training.plan.prefetch = 0;
  training.steps = 1;
  training.begin_step = true;
  training.link = "direct=0";
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  ASSERT_TRUE(ShardsAsItsStage(**plan));
  ASSERT_EQ((*plan)->grad_slots()[1].count, 1);
  std::array<HostWork, 2> works;
  std::latch passed(2);
  std::vector<std::vector<float>> params;
  RunThreadRanks(2, [&](const auto& comm) {
    HostWork& work = works[static_cast<size_t>(comm->rank())];
    const HostsStream stream;
    auto made = MakeEngine(*plan, comm, &work);
    ASSERT_OK(made);
    Engine& engine = **made;
    ASSERT_OK(engine.SetStream(stream.get()));
    UnitTrainer trainer(training, &engine);
    trainer.Fill();
    trainer.Forward();
    ASSERT_OK(engine.BeginStep(training.step));
    work.holds_next = comm->rank() == 0;
    trainer.Backward(11, true);
    if (comm->rank() == 0) {
      EXPECT_TRUE(work.gate.AwaitArrival());
    }
    EXPECT_OK(engine.host_stream().Synchronize(Deadline::After(kLongest)));
    if (comm->rank() == 0) {
      // The update is still open.
      ExpectError(engine.Synchronize(0.01), StatusCode::kDeadlineExceeded, {});
    }
    passed.arrive_and_wait();
    work.gate.Open();
    EXPECT_OK(trainer.Step(nullptr));
    auto read = trainer.Read();
    if (comm->rank() == 0) params = std::move(read);
  });
  // Those of an engine whose host updates when it is called.
  EXPECT_TRUE(params == TrainUnits(training));
}

// A step that is skipped neither brings gradients nor takes parameters back.
TEST_F(CudaOffloadProgressTest, AStepThatIsSkippedLeavesTheWindowsAsTheyWere) {
  constexpr std::byte kMark{0xA5};
  StepOptions skips;
  skips.skip_nonfinite = true;
  StepOptions clips = skips;
  clips.max_grad_norm = 0.5;
  for (const StepOptions& options : {skips, clips}) {
    HostWork work;
    const auto made =
        MakeEngine(cuda_training::MakePlan({.units = 2}), OpenLocal(), &work);
    ASSERT_OK(made);
    Engine& engine = **made;
    ASSERT_OK(cuda_training::Fill(&engine));
    const auto grad = engine.Grad(0);
    ASSERT_OK(grad);
    auto* const first = static_cast<float*>(grad->data);
    *first = 1;
    ASSERT_OK(engine.Step(options, nullptr));
    const int updates = work.updates;
    EXPECT_GT(updates, 0);

    const size_t bytes = engine.memory().staging_layout().bytes();
    std::byte* const windows = engine.memory().staging();
    std::fill(windows, windows + bytes, kMark);
    *first = std::numeric_limits<float>::infinity();
    StepReport report;
    ASSERT_OK(engine.Step(options, &report));
    EXPECT_TRUE(report.skipped);
    EXPECT_EQ(work.updates, updates);
    EXPECT_EQ(static_cast<size_t>(std::count(windows, windows + bytes, kMark)),
              bytes);

    // The next step updates again.
    *first = 1;
    ASSERT_OK(engine.Step(options, nullptr));
    EXPECT_EQ(work.updates, 2 * updates);
  }
}

// The engine has a shorter timeout than the step, and the copies that hang have
// the engine's.
TEST_F(CudaOffloadProgressTest, CopiesThatHangEndAtTheEnginesTimeout) {
  HostWork work;
  auto engine = MakeEngine(
      cuda_training::MakePlan({.units = 1, .elements_per_unit = 200000}),
      OpenLocal(), &work, 0.25);
  ASSERT_OK(engine);
  ASSERT_OK(cuda_training::Fill(engine->get()));
  ASSERT_OK((*engine)->Synchronize(0));
  testing::fake_cuda::Pause(200);
  StepOptions step;
  step.timeout = kLongest;
  const auto begin = std::chrono::steady_clock::now();
  ExpectError((*engine)->Step(step, nullptr), StatusCode::kDeadlineExceeded,
              {"copies of an offloaded update, which have the engine's timeout",
               "was not done within 0.25 s", "give it a longer timeout"});
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took.count(), 0.25);
  EXPECT_LT(took.count(), kLongest / 2);
  EXPECT_LT(work.updates, 200);
  engine->reset();
  testing::fake_cuda::Resume();
  testing::fake_cuda::RunAll();
  EXPECT_EQ(testing::fake_cuda::ViolationText(), "");
  testing::ResetWithKernels();
}

// Threads of an update still wait for copies when the engine is freed.
TEST_F(CudaOffloadProgressTest, AnEngineIsFreedWhoseDeviceHangsInAnUpdate) {
  HostWork work;
  auto engine = MakeEngine(
      cuda_training::MakePlan({.units = 1, .elements_per_unit = 200000}),
      OpenLocal(), &work, 1);
  ASSERT_OK(engine);
  ASSERT_OK(cuda_training::Fill(engine->get()));
  ASSERT_OK((*engine)->Synchronize(0));
  ASSERT_OK((*engine)->BeginStep(StepOptions()));
  // An update of a window, of 800, is four operations of the device.
  testing::fake_cuda::Pause(200);
  ASSERT_OK((*engine)->MarkUnitGradsReady(1));
  const Deadline deadline = Deadline::After(kLongest);
  while (work.updates < 10 && !deadline.Expired()) std::this_thread::yield();
  EXPECT_GE(work.updates, 10);
  StepOptions step;
  step.timeout = 0.1;
  EXPECT_EQ((*engine)->Step(step, nullptr).code(),
            StatusCode::kDeadlineExceeded);
  // The update has begun, and cannot end: its threads wait for copies.
  EXPECT_LT(work.updates, 200);
  EXPECT_GT(testing::fake_cuda::NumPending(), 0u);
  const auto begin = std::chrono::steady_clock::now();
  engine->reset();
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 15);
  EXPECT_LT(work.updates, 200);
  // The engine's memory stays allocated, since the device may use it.
  testing::fake_cuda::Resume();
  testing::fake_cuda::RunAll();
  EXPECT_EQ(testing::fake_cuda::ViolationText(), "");
  testing::ResetWithKernels();
}

}  // namespace
}  // namespace shard::cuda_offload_progress_test
