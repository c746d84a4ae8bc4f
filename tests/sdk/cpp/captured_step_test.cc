// SPDX-License-Identifier: Apache-2.0
//
// A C++ host that captures a step as a CUDA graph and replays it: its state has
// the bits of plain steps. Runs on the fake of the driver, which complains at
// the program's end where work had no order or something is not freed, and
// faults where the program uses the GPU's memory.

#include <dlfcn.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/device/cuda/driver_api.h"
#include "tests/fake_cuda/graph_api.h"
#include "tests/sdk/cpp/sdk_testing.h"

namespace shard_sdk_testing::captured_step_test {
namespace {

using shard::StateDict;
using shard::cuda::CuCaptureMode;
using shard::cuda::CuContext;
using shard::cuda::CuGraph;
using shard::cuda::CuGraphExec;
using shard::cuda::CuPointer;
using shard::cuda::CuResult;
using shard::cuda::CuStream;
using shard::cuda::DriverApi;
using shard::cuda::GraphApi;

#define EXPECT_CU(call) EXPECT_EQ((call), CuResult::kSuccess)

constexpr int kSteps = 8;
constexpr int kSkipped = 5;  // Has a gradient that is not a number.
constexpr std::int64_t kNumel = 1000;
constexpr std::size_t kBytes = kNumel * sizeof(float);

DriverApi load_driver() {
  DriverApi api;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
#define SHARD_FIND(name, symbol, parameters) \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, #symbol));
  SHARD_CUDA_DRIVER(SHARD_FIND)
#undef SHARD_FIND
  return api;
}

// A stream of a GPU, and memory of the host that it copies from.
class Gpu {
 public:
  Gpu() {
    EXPECT_CU(driver_.Init(0));
    CuContext context = nullptr;
    EXPECT_CU(driver_.DevicePrimaryCtxRetain(&context, 0));
    EXPECT_CU(driver_.CtxPushCurrent(context));
    EXPECT_CU(driver_.StreamCreate(&stream_, shard::cuda::kStreamNonBlocking));
    void* memory = nullptr;
    EXPECT_CU(driver_.MemHostAlloc(&memory, kBytes, 0));
    pinned_ = static_cast<float*>(memory);
  }
  ~Gpu() {
    EXPECT_CU(driver_.MemFreeHost(pinned_));
    EXPECT_CU(driver_.StreamDestroy(stream_));
    CuContext context = nullptr;
    EXPECT_CU(driver_.CtxPopCurrent(&context));
    EXPECT_CU(driver_.DevicePrimaryCtxRelease(0));
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  CuStream stream() const { return stream_; }
  float* pinned() const { return pinned_; }

  // Enqueues a copy of the pinned memory, which is read when the copy runs.
  void copy_to(const float* memory) const {
    EXPECT_CU(driver_.MemcpyAsync(reinterpret_cast<CuPointer>(memory),
                                  reinterpret_cast<CuPointer>(pinned_), kBytes,
                                  stream_));
  }

 private:
  const DriverApi driver_ = load_driver();
  CuStream stream_ = nullptr;
  float* pinned_ = nullptr;
};

// The state after a training.
struct Result {
  std::int64_t steps;
  std::map<std::string, std::vector<std::byte>> tensors;
  std::map<std::string, double> numbers;
};

class Host {
 public:
  explicit Host(const Gpu& gpu) : gpu_(gpu) {
    engine_.set_stream(gpu.stream());
    engine_.set_param(weight_, std::vector<float>(kNumel, 1.0f));
    engine_.broadcast_params();
  }
  ~Host() {
    if (graph_ != nullptr) {
      EXPECT_CU(graphs_.GraphExecDestroy(graph_));
    }
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Captures the copy of gradients and a step.
  void capture() {
    CuGraph graph = nullptr;
    EXPECT_CU(
        graphs_.StreamBeginCapture(gpu_.stream(), CuCaptureMode::kThreadLocal));
    engine_.capture_begin();
    gpu_.copy_to(engine_.grad_ptr<float>(weight_));
    engine_.step_without_report(options_);
    engine_.capture_end();
    EXPECT_CU(graphs_.StreamEndCapture(gpu_.stream(), &graph));
    EXPECT_CU(graphs_.GraphInstantiate(&graph_, graph, 0));
    EXPECT_CU(graphs_.GraphDestroy(graph));
    EXPECT_EQ(engine_.completed_steps(), 0);
  }

  void replay(int number) {
    engine_.set_hyper(GroupId{0}, "lr", 0.1 / number);
    // The step before, which reads the pinned memory, has then ended.
    engine_.before_replay(options_);
    write_grad(number);
    EXPECT_CU(graphs_.GraphLaunch(graph_, gpu_.stream()));
  }

  void step(int number) {
    engine_.set_hyper(GroupId{0}, "lr", 0.1 / number);
    write_grad(number);
    gpu_.copy_to(engine_.grad_ptr<float>(weight_));
    EXPECT_EQ(engine_.step(options_).skipped != 0, number == kSkipped);
  }

  Result result() {
    engine_.synchronize();
    Result result{engine_.completed_steps(), {}, {}};
    const StateDict state = StateDict::get(engine_, {.copy = true});
    for (std::int64_t i = 0; i < state.num_tensors(); ++i) {
      const auto bytes = state.local<std::byte>(i).elements;
      result.tensors[state.tensor_key(i)].assign(bytes.begin(), bytes.end());
    }
    for (std::int64_t i = 0; i < state.num_numbers(); ++i) {
      const shard::Number number = state.number(i);
      result.numbers[number.key] = number.value;
    }
    return result;
  }

 private:
  Engine make_engine() {
    const Plan plan =
        Plan::create(model_, {.world_size = 1, .optimizer = "adamw"});
    return Engine::create(plan, comm_, {.device = "cuda:0"});
  }
  void write_grad(int number) {
    float* const grad = gpu_.pinned();
    for (int i = 0; i < kNumel; ++i) {
      grad[i] = static_cast<float>(i % 13 - 6) / static_cast<float>(number);
    }
    if (number == kSkipped) grad[3] = std::numeric_limits<float>::quiet_NaN();
  }

  const Gpu& gpu_;
  const GraphApi graphs_ = GraphApi::Load();
  CuGraphExec graph_ = nullptr;
  const shard::StepOptions options_ = {.max_grad_norm = 2,
                                       .skip_nonfinite = true};
  Comm comm_ = Comm::open("local:");
  Model model_ = Model::create("Net");
  const ParamId weight_ =
      model_.add_param(shard::root_module, "weight", DType::f32, {kNumel});
  Engine engine_ = make_engine();
};

TEST(CapturedStepTest, ReplaysHaveTheBitsOfPlainSteps) {
  const Gpu gpu;
  Result plain;
  Result replayed;
  {
    Host host(gpu);
    for (int number = 1; number <= kSteps; ++number) host.step(number);
    plain = host.result();
  }
  {
    Host host(gpu);
    host.capture();
    for (int number = 1; number <= kSteps; ++number) host.replay(number);
    replayed = host.result();
  }
  EXPECT_EQ(plain.steps, kSteps - 1);
  EXPECT_EQ(replayed.steps, kSteps - 1);
  // The parameter and its two moments.
  EXPECT_EQ(plain.tensors.size(), 3u);
  EXPECT_TRUE(replayed.tensors == plain.tensors);
  EXPECT_EQ(replayed.numbers, plain.numbers);
  float value = 0;
  std::memcpy(&value, plain.tensors["weight"].data(), sizeof(value));
  EXPECT_TRUE(std::isfinite(value) && value != 1.0f) << value;
}

}  // namespace
}  // namespace shard_sdk_testing::captured_step_test
