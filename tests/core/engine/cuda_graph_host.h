// SPDX-License-Identifier: Apache-2.0
//
// A host on the device cuda that captures steps of an engine as a graph, with
// the driver's own calls, and launches it; for tests on the fake of the driver.

#ifndef SHARD_TESTS_CORE_ENGINE_CUDA_GRAPH_HOST_H_
#define SHARD_TESTS_CORE_ENGINE_CUDA_GRAPH_HOST_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/driver.h"
#include "core/device/cuda/driver_api.h"
#include "core/engine/engine.h"
#include "core/optim/groups.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/graph_api.h"

namespace shard::cuda_graphs {

using cuda_training::Fill;
using cuda_training::HostsStream;
using cuda_training::OpenLocal;

// Returns a plan of matrices and a vector, which no optimizer but Muon refuses.
inline std::shared_ptr<const Plan> MakePlan(const std::string& optimizer,
                                            DType dtype = DType::kF32,
                                            Masters masters = Masters::kF32,
                                            bool f32_grads = false) {
  auto model = std::make_shared<Model>("Net");
  std::vector<ParamId> matrices;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{8, 6}, {40, 33}, {8, 6}}) {
    const auto param = model->AddParam(
        kRootModule, StrCat("weight", matrices.size()), dtype, shape);
    EXPECT_OK(param);
    matrices.push_back(*param);
  }
  EXPECT_OK(model->AddParam(kRootModule, "bias", dtype, {100}));
  EXPECT_OK(model->AddParamGroup(optimizer, matrices));
  PlanOptions options;
  options.masters = masters;
  options.f32_grads = f32_grads;
  const auto groups = PlanGroups(*model, "adamw");
  EXPECT_OK(groups);
  options.groups = *groups;
  const auto plan = Plan::Create(std::move(model), options);
  EXPECT_OK(plan);
  return *plan;
}

// Makes an engine without a loss scale: its steps need no norm.
inline std::unique_ptr<Engine> MakeUnscaled(const std::string& optimizer) {
  EngineOptions options;
  options.opened_device = *cuda::OpenDevice("0");
  auto made = Engine::Create(MakePlan(optimizer), OpenLocal(), options);
  EXPECT_OK(made);
  return *std::move(made);
}

// Makes one call of the driver's fail, or none: 0. Counts them all.
class OneFailure {
 public:
  explicit OneFailure(uint64_t call) : before_(testing::fake_cuda::Count()) {
    if (call == 0) return;
    testing::fake_cuda::FailCall("", call, cuda::CuResult::kUnknown);
  }
  ~OneFailure() { testing::fake_cuda::ClearFailures(); }
  OneFailure(const OneFailure&) = delete;
  OneFailure& operator=(const OneFailure&) = delete;

  uint64_t calls() const {
    return testing::fake_cuda::CountSince(before_).Calls();
  }

 private:
  const testing::fake_cuda::Counters before_;
};

// A training whose host has a stream, and gradients that it copies there.
class Host {
 public:
  ~Host() {
    EndGraph();
    engine_.reset();
    for (const cuda::CuPointer memory : memory_) api_.MemFree(memory);
    for (void* const memory : pinned_) api_.MemFreeHost(memory);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  explicit Host(const std::string& optimizer) : Host(MakePlan(optimizer)) {}
  explicit Host(const std::shared_ptr<const Plan>& plan)
      : Host(*cuda_training::MakeEngine(plan, OpenLocal())) {}
  explicit Host(std::unique_ptr<Engine> engine, int device = 0)
      : stream_(device), engine_(std::move(engine)) {
    EXPECT_OK(engine_->SetStream(stream_.get()));
    EXPECT_OK(Fill(engine_.get()));
  }

  Engine* engine() const { return engine_.get(); }
  void FreeEngine() { engine_.reset(); }
  const HostsStream& stream() const { return stream_; }

  // Gives the engine another stream, which must outlive this object or the next
  // call; null: the usual one. Copies, captures and launches then are that
  // stream's.
  Status SetStream(cuda::CuStream stream) {
    SHARD_RETURN_IF_ERROR(engine_->SetStream(stream));
    current_ = stream == nullptr ? cuda::LegacyStream() : stream;
    return Status();
  }
  // Returns the stream of the last SetStream that was no error, or else
  // stream().
  cuda::CuStream current() const { return current_; }

  // Return memory that lives as long as the engine, and a little longer.
  std::span<std::byte> Allocate(size_t bytes) {
    cuda::CuPointer& memory = memory_.emplace_back();
    EXPECT_EQ(api_.MemAlloc(&memory, bytes), cuda::CuResult::kSuccess);
    return {reinterpret_cast<std::byte*>(memory), bytes};
  }
  void* AllocatePinned(size_t bytes) {
    void*& memory = pinned_.emplace_back();
    EXPECT_EQ(api_.MemHostAlloc(&memory, bytes, cuda::kHostAllocPortable),
              cuda::CuResult::kSuccess);
    return memory;
  }

  // Binds the values and gradients of all parameters, which are f32.
  void BindAll() {
    const auto& params = engine_->plan().model().params();
    for (size_t p = 0; p < params.size(); ++p) {
      const size_t bytes = static_cast<size_t>(params[p].numel) * sizeof(float);
      ASSERT_OK(
          engine_->Bind(static_cast<ParamId>(p),
                        {.values = Allocate(bytes), .grad = Allocate(bytes)}));
    }
    ASSERT_OK(engine_->ZeroGrad());
  }

  // Gives the stream copies of the gradients of a step; one is NaN where the
  // step is to be skipped.
  void CopyGrads(int step, bool finite) {
    const auto& params = engine_->plan().model().params();
    for (size_t p = 0; p < params.size(); ++p) {
      const auto param = static_cast<ParamId>(p);
      const auto grad = engine_->Grad(param);
      ASSERT_OK(grad);
      // Read when the copy runs.
      std::vector<float>& values = grads_.emplace_back();
      for (int64_t i = 0; i < grad->numel; ++i) {
        values.push_back(
            GradientValue(step, param + 3 * engine_->comm()->rank(), i));
      }
      if (!finite) values[0] = std::numeric_limits<float>::quiet_NaN();
      ASSERT_EQ(
          api_.MemcpyAsync(reinterpret_cast<cuda::CuPointer>(grad->data),
                           reinterpret_cast<cuda::CuPointer>(values.data()),
                           values.size() * sizeof(float), current_),
          cuda::CuResult::kSuccess);
    }
  }

  // Captures what `backward` enqueues on the stream, a step, and the zeros
  // after it.
  Status Capture(
      const StepOptions& options,
      const std::function<void()>& backward = [] {}) {
    return CaptureWith([&]() -> Status {
      SHARD_RETURN_IF_ERROR(engine_->CaptureBegin());
      backward();
      Status status = engine_->Step(options, nullptr);
      if (status.ok()) status = engine_->ZeroGrad();
      const Status ended = engine_->CaptureEnd();
      return status.ok() ? ended : status;
    });
  }

  // Makes a graph of what `work` enqueues.
  Status CaptureWith(const std::function<Status()>& work) {
    EndGraph();
    cuda::CuGraph graph = nullptr;
    Status status = EnqueueInCapture(work, &graph);
    EXPECT_EQ(graphs_.GraphInstantiate(&graph_, graph, 0),
              cuda::CuResult::kSuccess);
    EXPECT_EQ(graphs_.GraphDestroy(graph), cuda::CuResult::kSuccess);
    return status;
  }
  // The same, and drops it: the graph before stays.
  Status CaptureInVain(const std::function<Status()>& work) {
    cuda::CuGraph graph = nullptr;
    Status status = EnqueueInCapture(work, &graph);
    EXPECT_EQ(graphs_.GraphDestroy(graph), cuda::CuResult::kSuccess);
    return status;
  }

  void Launch() {
    EXPECT_EQ(graphs_.GraphLaunch(graph_, current_), cuda::CuResult::kSuccess);
  }

  Status Replay(const StepOptions& options) {
    SHARD_RETURN_IF_ERROR(engine_->BeforeReplay(options));
    // The step is not taken for one that has run, which a host may ask for now
    // to scale its loss.
    const int64_t before = engine_->step();
    EXPECT_GT(engine_->loss_scale(), 0);
    EXPECT_EQ(engine_->step(), before);
    Launch();
    return Status();
  }

  // Returns all parameters, one after the other.
  std::vector<float> Params() {
    EXPECT_OK(engine_->Summon(0, -1, 0));
    EXPECT_OK(engine_->Synchronize(0));
    std::vector<float> all;
    for (size_t p = 0; p < engine_->plan().model().params().size(); ++p) {
      const auto param = engine_->Param(static_cast<ParamId>(p));
      EXPECT_OK(param);
      const auto* const values = static_cast<const float*>(param->data);
      all.insert(all.end(), values, values + param->numel);
    }
    EXPECT_OK(engine_->EndSummon(false, 0));
    return all;
  }

 private:
  Status EnqueueInCapture(const std::function<Status()>& work,
                          cuda::CuGraph* graph) {
    // Other ranks are other threads, which do what a capture forbids.
    const auto mode = engine_->comm()->world_size() == 1
                          ? cuda::CuCaptureMode::kGlobal
                          : cuda::CuCaptureMode::kThreadLocal;
    EXPECT_EQ(graphs_.StreamBeginCapture(current_, mode),
              cuda::CuResult::kSuccess);
    Status status = work();
    EXPECT_EQ(graphs_.StreamEndCapture(current_, graph),
              cuda::CuResult::kSuccess);
    return status;
  }
  void EndGraph() {
    if (graph_ != nullptr) graphs_.GraphExecDestroy(graph_);
    graph_ = nullptr;
  }

  const cuda::DriverApi& api_ = (*cuda::Driver::Load())->api();
  const cuda::GraphApi graphs_ = cuda::GraphApi::Load();
  const HostsStream stream_;
  cuda::CuStream current_ = stream_.get();
  std::vector<std::vector<float>> grads_;
  std::vector<cuda::CuPointer> memory_;
  std::vector<void*> pinned_;
  std::unique_ptr<Engine> engine_;
  cuda::CuGraphExec graph_ = nullptr;
};

}  // namespace shard::cuda_graphs

#endif  // SHARD_TESTS_CORE_ENGINE_CUDA_GRAPH_HOST_H_
