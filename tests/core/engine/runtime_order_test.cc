// SPDX-License-Identifier: Apache-2.0
//
// The order of work on the streams of an engine's parts, which need no host:
// the test gives the streams work itself.

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/device/host_stream.h"
#include "core/engine/params/open_access.h"
#include "core/engine/step/engine_runtime.h"
#include "core/engine/step/hypers.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/gate.h"
#include "tests/core/device/test_device.h"
#include "tests/core/engine/async_host.h"

namespace shard::runtime_order_test {
namespace {

Deadline Soon() { return Deadline::After(60); }

// The parts of an engine, of one rank.
class RuntimeOrderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const UnitTraining training = RunOf(1, "").training;
    PlanOptions options = training.plan;
    options.world_size = 1;
    options.groups = *PlanGroups(*training.model, "sgd?lr=0.5&weight_decay=1");
    options.wrap = *WrapPolicy::Parse(training.wrap);
    const auto plan = Plan::Create(training.model, options);
    ASSERT_OK(plan);
    auto hypers = Hypers::Create(**plan);
    ASSERT_OK(hypers);
    hypers_.emplace(*std::move(hypers));
    comm_ = *OpenCommunicator("local:", CommOptions());
    device_ = *testing::OpenTestDevice("cpu-async?max_delay=0.01&host=async");
    host_.emplace(*device_->WrapStream(nullptr));
    auto runtime = EngineRuntime::Create(*plan, comm_.get(), device_.get(),
                                         {.timeout = 60,
                                          .allow_missing = false,
                                          .overlap = false,
                                          .bound = &bound_,
                                          .host = &*host_},
                                         nullptr, Soon());
    ASSERT_OK(runtime);
    runtime_ = *std::move(runtime);
    param()[0] = 8;
  }

  float* param() {
    return static_cast<float*>(runtime_->memory().buffers()[0].ParamAt(0));
  }
  // Gives a stream work after which `*to` is `value`, late.
  static void Set(Stream* stream, float* to, float value) {
    for (int i = 0; i < 5; ++i) Delay(stream);
    stream->Call("set", [to, value] {
      *to = value;
      return Status();
    });
  }

  BoundMemory bound_;
  std::optional<Hypers> hypers_;
  std::shared_ptr<Communicator> comm_;
  std::shared_ptr<Device> device_;
  std::optional<HostStream> host_;
  std::unique_ptr<EngineRuntime> runtime_;
};

// Eager updates have the workspace of the compute stream, and update the same
// parameters.
TEST_F(RuntimeOrderTest, EagerUpdatesComeAfterEarlierComputation) {
  StepInput input = {};
  input.optimizers = &hypers_->optimizers();
  input.step = 1;
  input.gradient_scale = 1;
  Set(&runtime_->compute(), param(), 16);
  runtime_->stepper().Begin(input, Soon());
  runtime_->queue().Run(0, [&](Stream* queue) {
    return runtime_->stepper().UpdateEagerly(
        runtime_->plan()->buffers()[0].unit, nullptr, queue);
  });
  ASSERT_OK(runtime_->queue().Drain(Soon()));
  EXPECT_EQ(*param(), 8);  // Decayed; its gradient is zero.
  ASSERT_OK(runtime_->compute().Synchronize(Soon()));
}

TEST_F(RuntimeOrderTest, TheRestOfABegunStepComesAfterEagerUpdates) {
  StepInput input = {};
  input.optimizers = &hypers_->optimizers();
  input.step = 1;
  input.gradient_scale = 1;
  const std::vector<EngineBuffer>& buffers = runtime_->memory().buffers();
  ASSERT_NE(buffers.front().plan->unit, buffers.back().plan->unit);
  auto* const rest = static_cast<float*>(buffers.back().ParamAt(0));
  *rest = 8;
  runtime_->stepper().Begin(input, Soon());
  Gate gate;
  float seen = 0;
  runtime_->queue().Run(0, [&](Stream* queue) {
    queue->Call("be late", [&] {
      const Status passed = gate.Pass();
      seen = *rest;
      return passed;
    });
    return runtime_->stepper().UpdateEagerly(buffers.front().plan->unit,
                                             nullptr, queue);
  });
  ASSERT_TRUE(gate.AwaitArrival());
  StepReport report;
  ASSERT_OK(runtime_->stepper().Run(input, /*meets=*/false, /*together=*/false,
                                    std::vector<Event>(buffers.size()), Soon(),
                                    &report));
  // An update that comes too early has this time for it.
  ExpectError(runtime_->compute().Synchronize(Deadline::After(0.05)),
              StatusCode::kDeadlineExceeded, {});
  gate.Open();
  ASSERT_OK(runtime_->compute().Synchronize(Soon()));
  EXPECT_EQ(seen, 8);
  EXPECT_EQ(*rest, 4);  // Decayed.
  EXPECT_EQ(*param(), 4);
}

TEST_F(RuntimeOrderTest, BoundValuesAreCopiedBetweenTheHostsWritesAndReads) {
  const ParamId id = runtime_->plan()->buffers()[0].layout.slots()[0].param;
  std::vector<float> values(static_cast<size_t>(
      runtime_->plan()->model().params()[static_cast<size_t>(id)].numel));
  ASSERT_OK(
      bound_.Bind(id, {std::as_writable_bytes(std::span<float>(values)), {}}));
  Set(host_->get(), values.data(), kSpoiled);
  ASSERT_OK(runtime_->bound_copies().RefreshAll(Soon()));
  float read = 0;
  host_->get()->Call("read", [&] {
    read = values[0];
    return Status();
  });
  ASSERT_OK(host_->Synchronize(Soon()));
  EXPECT_EQ(read, 8);
}

TEST_F(RuntimeOrderTest, AnAccessSeesAllEarlierWork) {
  for (Stream* const stream : {host_->get(), &runtime_->compute()}) {
    const float before = *param();
    Set(stream, param(), before + 1);
    const auto access = OpenAccess(*runtime_, device_.get(), Soon());
    ASSERT_OK(access);
    EXPECT_EQ(*param(), before + 1) << stream->name();
  }
}

}  // namespace
}  // namespace shard::runtime_order_test
