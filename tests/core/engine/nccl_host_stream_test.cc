// SPDX-License-Identifier: Apache-2.0
//
// Hosts that train on NCCL and wait for nothing: they read parameters and write
// gradients in work of a stream of their own, which the GPU comes to late. Such
// work must come after the gathers that it needs, and before the reductions of
// what it writes. Parameters of every pass have the bits of ranks on CPUs.

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/driver.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_host_stream_test {
namespace {

using cuda_training::Clipped;
using cuda_training::Fill;
using cuda_training::HostsStream;
using cuda_training::ParamsOf;
using nccl_training::Form;
using nccl_training::kUnits;
using nccl_training::MakeEngineOn;
using nccl_training::MakePlan;
using testing::FakeNccl;

constexpr int kSteps = 3;

// What hosts have read, and what they write: valid until the streams have done
// the copies.
using Values = std::deque<std::vector<float>>;
// Copies elements, now or as work of the host's stream.
using Copy = std::function<void(float* to, const float* from, size_t count)>;

Copy CopyOn(const HostsStream& stream) {
  return [&stream](float* to, const float* from, size_t count) {
    EXPECT_EQ((*cuda::Driver::Load())
                  ->api()
                  .MemcpyAsync(reinterpret_cast<cuda::CuPointer>(to),
                               reinterpret_cast<cuda::CuPointer>(from),
                               count * sizeof(float), stream.get()),
              cuda::CuResult::kSuccess);
  };
}

void Read(const Engine::Tensor& from, const Copy& copy, Values* reads) {
  auto& values = reads->emplace_back(static_cast<size_t>(from.numel));
  copy(values.data(), static_cast<const float*>(from.data), values.size());
}

void WriteGrad(int step, int rank, ParamId param, const Engine::Tensor& to,
               const Copy& copy, Values* grads) {
  auto& values = grads->emplace_back();
  for (int64_t i = 0; i < to.numel; ++i) {
    values.push_back(GradientValue(step, param + 3 * rank, i));
  }
  copy(static_cast<float*>(to.data), values.data(), values.size());
}

// Trains, and appends the parameters that each pass reads.
void Train(Engine* engine, const Copy& copy, Values* reads, Values* grads) {
  const Plan& plan = engine->plan();
  for (int step = 1; step <= kSteps; ++step) {
    for (int32_t unit = 0; unit < kUnits; ++unit) {
      ASSERT_OK(engine->UnitAcquire(unit, Pass::kForward, 0));
      for (const ParamId param : ParamsOf(plan, unit)) {
        const auto tensor = engine->Param(param);
        ASSERT_OK(tensor);
        Read(*tensor, copy, reads);
      }
      ASSERT_OK(engine->UnitRelease(unit));
    }
    for (int32_t unit = kUnits; unit-- > 0;) {
      ASSERT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
      for (const ParamId param : ParamsOf(plan, unit)) {
        const auto grad = engine->Grad(param);
        ASSERT_OK(grad);
        WriteGrad(step, engine->comm()->rank(), param, *grad, copy, grads);
        const auto tensor = engine->Param(param);
        ASSERT_OK(tensor);
        Read(*tensor, copy, reads);
      }
      ASSERT_OK(engine->MarkUnitGradsReady(unit));
      ASSERT_OK(engine->UnitRelease(unit));
    }
    ASSERT_OK(engine->Step(step == 2 ? Clipped() : StepOptions(), nullptr));
    ASSERT_OK(engine->ZeroGrad());
  }
  ASSERT_OK(engine->Synchronize(0));
}

// Returns what each rank has read.
std::vector<Values> TrainRanks(const Form& form, const std::string& device) {
  std::vector<Values> reads(static_cast<size_t>(form.world_size));
  const auto plan = MakePlan(form);
  RunThreadRanks(
      form.world_size,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions options;
        options.overlap = form.overlap;
        auto engine = MakeEngineOn(device, plan, comm, options);
        ASSERT_OK(engine);
        ASSERT_OK(Fill(engine->get()));
        auto* const read = &reads[static_cast<size_t>(comm->rank())];
        Values grads;
        if (device == "cpu") {
          Train(
              engine->get(),
              [](float* to, const float* from, size_t count) {
                std::memcpy(to, from, count * sizeof(float));
              },
              read, &grads);
          return;
        }
        const HostsStream stream(comm->rank());
        ASSERT_OK((*engine)->SetStream(stream.get()));
        Train(engine->get(), CopyOn(stream), read, &grads);
        engine->reset();
      },
      30, "direct=0");
  return reads;
}

class NcclHostStreamTest : public ::testing::TestWithParam<Form> {};

TEST_P(NcclHostStreamTest, WorkOfHostsIsOrderedWithTransfers) {
  const Form& form = GetParam();
  std::vector<Values> on_gpus;
  {
    testing::fake_cuda::Options gpus;
    gpus.devices = form.world_size;
    gpus.max_delay = std::chrono::microseconds(200);
    const FakeNccl fake(gpus);
    on_gpus = TrainRanks(form, "cuda");
  }
  const auto on_cpus = TrainRanks(form, "cpu");
  ASSERT_EQ(on_cpus[0].size(), size_t{2 * kSteps * kUnits});
  EXPECT_NE(on_cpus[0].front(), on_cpus[0][2 * kUnits])
      << "nothing was trained";
  // The thread sanitizer's configuration has no fused multiply-add on the CPU.
  if (SHARD_TESTS_THREAD_SANITIZER != 0) return;
  for (size_t rank = 0; rank < on_cpus.size(); ++rank) {
    EXPECT_EQ(on_gpus[rank], on_cpus[rank]) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    , NcclHostStreamTest,
    ::testing::Values(
        Form{.stage = 1, .deterministic = true},
        Form{.stage = 2, .deterministic = true},
        Form{.stage = 2, .overlap = true, .deterministic = true},
        Form{.stage = 3, .deterministic = true},
        Form{.stage = 3, .overlap = true, .deterministic = true},
        Form{.stage = 3, .deterministic = true, .keep_after_forward = true}),
    [](const auto& info) {
      const Form& form = info.param;
      return StrCat("stage", form.stage, form.overlap ? "_overlap" : "",
                    form.keep_after_forward ? "_kept" : "");
    });

}  // namespace
}  // namespace shard::nccl_host_stream_test
