// SPDX-License-Identifier: Apache-2.0
//
// A host of the C interface that captures a step as a CUDA graph and replays it
// a hundred times: its state has the bits of plain steps, also where it makes
// mistakes in between. Runs on the fake of the driver, which complains at the
// program's end where work had no order or something is not freed, and faults
// where the program uses the GPU's memory.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"
#include "tests/fake_cuda/hosts_gpu.h"

namespace shard_api_testing::captured_steps_test {
namespace {

using shard::cuda::CuGraphExec;
using shard::testing::HostsGpu;

constexpr int kSteps = 100;
constexpr int64_t kNumel = 1000;
constexpr size_t kBytes = kNumel * sizeof(float);

// Steps whose gradients have one that is not a number.
bool IsSkipped(int number) { return number == 30 || number == 61; }

// The state after a training.
struct Result {
  int64_t steps = 0;
  std::map<std::string, std::vector<char>> tensors;
  std::map<std::string, double> numbers;
};

// Returns the text that `get`, a function that copies one, has for a state
// dict.
template <typename Get>
std::string KeyOf(const Get& get) {
  char key[256] = "";
  size_t length = 0;
  EXPECT_OK(get(key, sizeof(key), &length));
  return key;
}

class Host {
 public:
  explicit Host(const HostsGpu& gpu) : gpu_(gpu) {
    options_.max_grad_norm = 2;
    options_.skip_nonfinite = 1;
    const Model model = EmptyModel();
    EXPECT_EQ(AddParam(model.get(), "weight", {kNumel}), 0);
    shard_plan_options plan_options = PlanOptions(1);
    plan_options.optimizer = "adamw";
    const Plan plan = MakePlan(model.get(), plan_options);
    shard_engine_options engine_options = SHARD_ENGINE_OPTIONS_INIT;
    engine_options.device = "cuda:0";
    shard_engine* engine = nullptr;
    EXPECT_OK(
        shard_engine_create(plan.get(), comm_.get(), &engine_options, &engine));
    engine_.reset(engine);
    EXPECT_OK(shard_engine_set_stream(engine, gpu.stream()));
    const std::vector<float> ones(kNumel, 1.0f);
    EXPECT_OK(shard_engine_set_param(engine, 0, ones.data(), kBytes));
    EXPECT_OK(shard_engine_broadcast_params(engine, 0));
  }
  ~Host() { FreeGraph(); }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Captures the copy of gradients, a step, and zeros for the next gradients.
  void Capture() {
    const int64_t completed = CompletedSteps();
    FreeGraph();
    graph_ = gpu_.Capture([&] {
      EXPECT_OK(shard_engine_capture_begin(engine_.get()));
      CopyGrad();
      EXPECT_OK(shard_engine_step(engine_.get(), &options_, nullptr));
      EXPECT_OK(shard_engine_zero_grad(engine_.get()));
      EXPECT_OK(shard_engine_capture_end(engine_.get()));
    });
    EXPECT_EQ(CompletedSteps(), completed);
  }
  // Ends a capture of the stream before that of the engine.
  void EndCaptureEarly() {
    gpu_.Free(gpu_.Capture(
        [&] { EXPECT_OK(shard_engine_capture_begin(engine_.get())); }));
    EXPECT_FAILS(shard_engine_step(engine_.get(), &options_, nullptr),
                 SHARD_FAILED_PRECONDITION, "capture_end");
    EXPECT_FAILS(shard_engine_capture_end(engine_.get()),
                 SHARD_FAILED_PRECONDITION, "has ended before",
                 "capture_end before cudaStreamEndCapture");
  }
  void ExpectNoReplay(const shard_step_options& options, const char* text) {
    EXPECT_FAILS(shard_engine_before_replay(engine_.get(), &options),
                 SHARD_FAILED_PRECONDITION, "before_replay", text, "capture");
  }
  const shard_step_options& options() const { return options_; }

  // Freezes the parameter, and trains it again, as a new one.
  void ChangePlan() {
    constexpr int32_t kParam = 0;
    for (const int32_t trainable : {0, 1}) {
      EXPECT_OK(
          shard_engine_set_trainable(engine_.get(), &kParam, 1, trainable, 0));
    }
  }

  void Replay(int number) {
    SetRate(number);
    // The step before, which reads the pinned memory, has then ended.
    EXPECT_OK(shard_engine_before_replay(engine_.get(), &options_));
    WriteGrad(number);
    gpu_.Launch(graph_);
  }

  void Step(int number) {
    SetRate(number);
    // A replay reads the pinned memory.
    EXPECT_OK(shard_engine_synchronize(engine_.get(), 0));
    WriteGrad(number);
    CopyGrad();
    shard_step_report report = SHARD_STEP_REPORT_INIT;
    EXPECT_OK(shard_engine_step(engine_.get(), &options_, &report));
    EXPECT_EQ(report.skipped, IsSkipped(number) ? 1 : 0);
    EXPECT_OK(shard_engine_zero_grad(engine_.get()));
  }

  Result End() {
    EXPECT_OK(shard_engine_synchronize(engine_.get(), 0));
    Result result{CompletedSteps(), {}, {}};
    shard_state_dict_options options = SHARD_STATE_DICT_OPTIONS_INIT;
    options.copy = 1;
    shard_state_dict* made = nullptr;
    EXPECT_OK(shard_state_dict_get(engine_.get(), &options, &made));
    const State state(made);
    for (int64_t i = 0; i < shard_state_dict_num_tensors(made); ++i) {
      const std::string key = KeyOf([&](auto... text) {
        return shard_state_dict_tensor_key(made, i, text...);
      });
      shard_tensor_info info = SHARD_TENSOR_INFO_INIT;
      EXPECT_OK(shard_state_dict_tensor(made, i, &info));
      const void* data = nullptr;
      EXPECT_OK(shard_state_dict_local(made, i, nullptr, nullptr, &data));
      const auto* const bytes = static_cast<const char*>(data);
      result.tensors[key].assign(bytes, bytes + info.bytes);
    }
    for (int64_t i = 0; i < shard_state_dict_num_numbers(made); ++i) {
      double value = 0;
      const std::string key = KeyOf([&](auto... text) {
        return shard_state_dict_number(made, i, &value, text...);
      });
      result.numbers[key] = value;
    }
    return result;
  }

 private:
  void FreeGraph() {
    if (graph_ != nullptr) gpu_.Free(graph_);
    graph_ = nullptr;
  }
  int64_t CompletedSteps() const {
    int64_t steps = -1;
    EXPECT_OK(shard_engine_completed_steps(engine_.get(), &steps));
    return steps;
  }
  void SetRate(int number) {
    EXPECT_OK(shard_engine_set_hyper(engine_.get(), 0, "lr", 0.1 / number));
  }
  void WriteGrad(int number) {
    auto* const grad = static_cast<float*>(gpu_.pinned());
    for (int i = 0; i < kNumel; ++i) {
      grad[i] = static_cast<float>(i % 13 - 6) / static_cast<float>(number);
    }
    if (IsSkipped(number)) grad[3] = std::numeric_limits<float>::quiet_NaN();
  }
  void CopyGrad() {
    void* grad = nullptr;
    EXPECT_OK(shard_engine_grad(engine_.get(), 0, &grad, nullptr));
    gpu_.CopyTo(grad);
  }

  const HostsGpu& gpu_;
  shard_step_options options_ = SHARD_STEP_OPTIONS_INIT;
  CuGraphExec graph_ = nullptr;
  const Comm comm_ = OpenLocal();
  Engine engine_;
};

TEST(CapturedStepsTest, AHundredReplaysAreAHundredPlainSteps) {
  const HostsGpu gpu(kBytes);
  Result plain;
  Result replayed;
  {
    Host host(gpu);
    for (int number = 1; number <= kSteps; ++number) host.Step(number);
    plain = host.End();
  }
  {
    Host host(gpu);
    host.Capture();
    for (int number = 1; number <= kSteps; ++number) host.Replay(number);
    replayed = host.End();
  }
  EXPECT_EQ(plain.steps, kSteps - 2);
  EXPECT_EQ(replayed.steps, kSteps - 2);
  // The parameter and its two moments.
  EXPECT_EQ(plain.tensors.size(), 3u);
  EXPECT_TRUE(replayed.tensors == plain.tensors);
  EXPECT_EQ(replayed.numbers, plain.numbers);
  float value = 0;
  ASSERT_EQ(plain.tensors["weight"].size(), kBytes);
  std::memcpy(&value, plain.tensors["weight"].data(), sizeof(value));
  EXPECT_TRUE(std::isfinite(value) && value != 1.0f) << value;
}

// After each error training goes on, without the graph or with a new one, with
// the bits of a training that had no errors.
TEST(CapturedStepsTest, WhatIsNoReplayIsAnErrorAndTrainingGoesOn) {
  const HostsGpu gpu(kBytes);
  Result results[2];
  for (const bool captures : {false, true}) {
    SCOPED_TRACE(captures);
    Host host(gpu);
    const auto step = [&](int number) {
      captures ? host.Replay(number) : host.Step(number);
    };
    if (captures) {
      host.ExpectNoReplay(host.options(), "no step was captured");
      host.EndCaptureEarly();
      host.Capture();
    }
    step(1);
    if (captures) {
      shard_step_options other = host.options();
      other.max_grad_norm = 0;
      other.skip_nonfinite = 0;
      host.ExpectNoReplay(other, "norm");
    }
    host.Step(2);
    step(3);
    host.ChangePlan();
    if (captures) {
      host.ExpectNoReplay(host.options(), "the plan has changed since");
    }
    host.Step(4);
    if (captures) host.Capture();
    step(5);
    results[captures ? 1 : 0] = host.End();
  }
  EXPECT_EQ(results[0].steps, 5);
  EXPECT_EQ(results[1].steps, 5);
  EXPECT_EQ(results[0].tensors.size(), 3u);
  EXPECT_TRUE(results[1].tensors == results[0].tensors);
  EXPECT_EQ(results[1].numbers, results[0].numbers);
}

}  // namespace
}  // namespace shard_api_testing::captured_steps_test
