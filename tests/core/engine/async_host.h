// SPDX-License-Identifier: Apache-2.0
//
// Hosts whose work is on streams, for tests of the order of that work and of
// the engine's. A script is what the host of each rank does: it reads and
// writes tensors at once on "cpu", and late on cpu-async with an asynchronous
// host stream. A wait that is missing shows as another result than that of
// "cpu".

#ifndef SHARD_TESTS_CORE_ENGINE_ASYNC_HOST_H_
#define SHARD_TESTS_CORE_ENGINE_ASYNC_HOST_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard {

// The value of gradients that must not count.
inline constexpr float kSpoiled = 9;

// Gives a stream work that does nothing, each piece of which the device may
// delay: streams that do not wait for this one come first.
inline void Delay(Stream* stream) {
  for (int i = 0; i < 3; ++i) stream->Call("nothing", [] { return Status(); });
}

// The memory of a rank's host, which outlives the engine.
struct AsyncHostMemory {
  // The tensors that were read, in the order of the reads. A deque, so that a
  // read that is on its way keeps its place.
  std::deque<std::vector<float>> reads;
  // Tensors that are bound, by ParamId.
  std::vector<std::vector<float>> values, grads;
};

// The host of one rank. Its reads and writes come after a delay.
class AsyncHost {
 public:
  AsyncHost(Engine* engine, AsyncHostMemory* memory)
      : engine_(*engine), memory_(*memory) {}

  Engine& engine() { return engine_; }
  AsyncHostMemory& memory() { return memory_; }
  const Plan& plan() const { return engine_.plan(); }
  int rank() const { return engine_.comm()->rank(); }
  ParamId num_params() const {
    return static_cast<ParamId>(plan().places().size());
  }
  int32_t num_units() const {
    return static_cast<int32_t>(plan().units().size());
  }
  std::vector<ParamId> ParamsOf(int32_t unit) const {
    std::vector<ParamId> params;
    for (ParamId param = 0; param < num_params(); ++param) {
      if (plan().UnitOf(param) == unit) params.push_back(param);
    }
    return params;
  }

  // Does the work below on `stream`; null, as at first: on the engine's stream
  // of the host.
  void UseStream(Stream* stream) { stream_ = stream; }

  void Do(std::function<void()> work) {
    Delay(stream());
    DoAtOnce(std::move(work));
  }
  // The same, without a delay of its own.
  void DoAtOnce(std::function<void()> work) {
    stream()->Call("the host's work", [work = std::move(work)] {
      work();
      return Status();
    });
  }

  void Read(const float* from, int64_t numel) {
    memory_.reads.emplace_back(static_cast<size_t>(numel));
    Do([from, numel, to = memory_.reads.back().data()] {
      std::copy_n(from, numel, to);
    });
  }
  void Read(ParamId param) {
    const auto tensor = engine_.Param(param);
    ASSERT_OK(tensor);
    Read(FloatsOf(*tensor), tensor->numel);
  }
  void ReadAll() {
    for (ParamId param = 0; param < num_params(); ++param) Read(param);
  }

  void Fill(const Engine::Tensor& tensor, float value) {
    Do([tensor, value] { std::fill_n(FloatsOf(tensor), tensor.numel, value); });
  }
  // Writes values that must not count.
  void SpoilGrad(ParamId param) {
    const auto tensor = engine_.Grad(param);
    ASSERT_OK(tensor);
    Fill(*tensor, kSpoiled);
  }
  void SpoilAllGrads() {
    for (ParamId param = 0; param < num_params(); ++param) SpoilGrad(param);
  }

  // Adds a gradient that depends on the parameter.
  void AddGrad(ParamId param, int step) {
    const auto values = engine_.Param(param);
    const auto grad = engine_.Grad(param);
    ASSERT_OK(values);
    ASSERT_OK(grad);
    Do([from = *values, to = *grad, step, number = param + 3 * rank()] {
      const float* const value = FloatsOf(from);
      float* const sum = FloatsOf(to);
      for (int64_t i = 0; i < to.numel; ++i) {
        sum[i] += 0.125f * value[i] + GradientValue(step, number, i);
      }
    });
  }
  void AddAllGrads(int step) {
    for (ParamId param = 0; param < num_params(); ++param) AddGrad(param, step);
  }

  // Reads the parameters unit by unit.
  void Forward() {
    for (int32_t unit = 0; unit < num_units(); ++unit) {
      ASSERT_OK(engine_.UnitAcquire(unit, Pass::kForward, 0));
      for (const ParamId param : ParamsOf(unit)) Read(param);
      ASSERT_OK(engine_.UnitRelease(unit));
    }
  }
  // Makes a backward pass; `use(unit)` writes and declares gradients.
  void Backward(const std::function<void(int32_t unit)>& use) {
    for (int32_t unit = num_units(); unit-- > 0;) {
      ASSERT_OK(engine_.UnitAcquire(unit, Pass::kBackward, 0));
      use(unit);
      ASSERT_OK(engine_.UnitRelease(unit));
    }
  }
  void Backward(int step) {
    Backward([&](int32_t unit) {
      for (const ParamId param : ParamsOf(unit)) AddGrad(param, step);
      ASSERT_OK(engine_.MarkUnitGradsReady(unit));
    });
  }
  void Step() {
    StepReport report;
    ASSERT_OK(engine_.Step(StepOptions(), &report));
  }
  void StepWithoutReport() { ASSERT_OK(engine_.Step(StepOptions(), nullptr)); }

  // Binds memory of this host to all parameters.
  void BindAll() {
    for (ParamId param = 0; param < num_params(); ++param) {
      const auto numel = static_cast<size_t>(
          plan().model().params()[static_cast<size_t>(param)].numel);
      memory_.values.emplace_back(numel);
      memory_.grads.emplace_back(numel);
      ASSERT_OK(engine_.Bind(
          param,
          {std::as_writable_bytes(std::span<float>(memory_.values.back())),
           std::as_writable_bytes(std::span<float>(memory_.grads.back()))}));
    }
  }
  void ReadBoundValues(ParamId param) {
    const std::vector<float>& values =
        memory_.values[static_cast<size_t>(param)];
    Read(values.data(), static_cast<int64_t>(values.size()));
  }
  void ReadBoundValuesAtOnce(ParamId param) {
    const std::vector<float>& values =
        memory_.values[static_cast<size_t>(param)];
    memory_.reads.emplace_back(values.size());
    DoAtOnce([from = values.data(), to = &memory_.reads.back()] {
      std::copy_n(from, to->size(), to->begin());
    });
  }

 private:
  Stream* stream() const {
    return stream_ != nullptr ? stream_ : &engine_.host_stream();
  }

  Engine& engine_;
  AsyncHostMemory& memory_;
  Stream* stream_ = nullptr;
};

using HostScript = std::function<void(AsyncHost* host)>;
// By rank.
using HostReads = std::vector<std::deque<std::vector<float>>>;

// A run of a script by two ranks. Its training says how engines are made.
struct HostRun {
  UnitTraining training;
  bool filled = true;  // Parameters have values before the script.
};

inline HostRun RunOf(int stage, const char* link) {
  HostRun run;
  run.training.model = BlockModel(4);
  run.training.wrap = "class?names=Block";
  run.training.plan.world_size = 2;
  run.training.plan.stage = stage;
  run.training.plan.prefetch = 0;
  run.training.link = link;
  return run;
}

// Returns the hosts' reads, by rank. An engine that is freed waits for the work
// of its host, so no script does.
inline HostReads ReadsOf(const HostRun& run, const HostScript& script) {
  const int ranks = run.training.plan.world_size;
  std::vector<AsyncHostMemory> memory(static_cast<size_t>(ranks));
  const auto plan = PlanOf(run.training);
  EXPECT_OK(plan);
  if (!plan.ok()) return {};
  EXPECT_TRUE(ShardsAsItsStage(**plan));
  RunThreadRanks(
      ranks,
      [&](const auto& comm) {
        const auto engine = CreateEngine(*plan, comm, run.training.engine);
        ASSERT_OK(engine);
        if (run.filled) UnitTrainer(run.training, engine->get()).Fill();
        AsyncHost host(engine->get(),
                       &memory[static_cast<size_t>(comm->rank())]);
        script(&host);
      },
      30, run.training.link);
  HostReads reads;
  for (AsyncHostMemory& rank : memory) reads.push_back(std::move(rank.reads));
  return reads;
}

// Expects hosts with asynchronous streams to read what those of "cpu" read.
inline void ExpectOrder(HostRun run, const HostScript& script) {
  const int seeds = std::getenv("SHARD_TEST_LONG") != nullptr ? 5 : 1;
  // On several hosts a third rank, so that two share one.
  int& ranks = run.training.plan.world_size;
  if (TestsAreOn("tcp")) ranks = std::max(ranks, 3);
  run.training.engine.device = "cpu";
  const HostReads expected = ReadsOf(run, script);
  ASSERT_FALSE(expected.empty() || expected[0].empty());
  for (int seed = 1; seed <= seeds; ++seed) {
    run.training.engine.device =
        StrCat("cpu-async?max_delay=0.001&host=async&seed=", seed);
    EXPECT_TRUE(ReadsOf(run, script) == expected) << run.training.engine.device;
  }
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_ASYNC_HOST_H_
