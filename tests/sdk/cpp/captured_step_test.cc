// SPDX-License-Identifier: Apache-2.0
//
// A C++ host that captures a step as a CUDA graph and replays it a hundred
// times: its state has the bits of plain steps. Runs on the fake of the driver,
// which complains at the program's end where work had no order or something is
// not freed, and faults where the program uses the GPU's memory.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/fake_cuda/hosts_gpu.h"
#include "tests/sdk/cpp/sdk_testing.h"

namespace shard_sdk_testing::captured_step_test {
namespace {

using shard::StateDict;
using shard::cuda::CuGraphExec;
using shard::testing::HostsGpu;

constexpr int kSteps = 100;
constexpr std::int64_t kNumel = 1000;
constexpr std::size_t kBytes = kNumel * sizeof(float);

// Steps whose gradients have one that is not a number.
bool is_skipped(int number) { return number == 30 || number == 61; }

// The state after a training.
struct Result {
  std::int64_t steps;
  std::map<std::string, std::vector<std::byte>> tensors;
  std::map<std::string, double> numbers;
};

class Host {
 public:
  explicit Host(const HostsGpu& gpu) : gpu_(gpu) {
    engine_.set_stream(gpu.stream());
    engine_.set_param(weight_, std::vector<float>(kNumel, 1.0f));
    engine_.broadcast_params();
  }
  ~Host() {
    if (graph_ != nullptr) gpu_.Free(graph_);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Captures the copy of gradients and a step.
  void capture() {
    graph_ = gpu_.Capture([&] {
      engine_.capture_begin();
      gpu_.CopyTo(engine_.grad_ptr<float>(weight_));
      engine_.step_without_report(options_);
      engine_.capture_end();
    });
    EXPECT_EQ(engine_.completed_steps(), 0);
  }

  void replay(int number) {
    engine_.set_hyper(GroupId{0}, "lr", 0.1 / number);
    // The step before, which reads the pinned memory, has then ended.
    engine_.before_replay(options_);
    write_grad(number);
    gpu_.Launch(graph_);
  }

  void step(int number) {
    engine_.set_hyper(GroupId{0}, "lr", 0.1 / number);
    write_grad(number);
    gpu_.CopyTo(engine_.grad_ptr<float>(weight_));
    EXPECT_EQ(engine_.step(options_).skipped != 0, is_skipped(number));
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
    auto* const grad = static_cast<float*>(gpu_.pinned());
    for (int i = 0; i < kNumel; ++i) {
      grad[i] = static_cast<float>(i % 13 - 6) / static_cast<float>(number);
    }
    if (is_skipped(number)) grad[3] = std::numeric_limits<float>::quiet_NaN();
  }

  const HostsGpu& gpu_;
  CuGraphExec graph_ = nullptr;
  const shard::StepOptions options_ = {.max_grad_norm = 2,
                                       .skip_nonfinite = true};
  Comm comm_ = Comm::open("local:");
  Model model_ = Model::create("Net");
  const ParamId weight_ =
      model_.add_param(shard::root_module, "weight", DType::f32, {kNumel});
  Engine engine_ = make_engine();
};

TEST(CapturedStepTest, AHundredReplaysHaveTheBitsOfPlainSteps) {
  const HostsGpu gpu(kBytes);
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
  EXPECT_EQ(plain.steps, kSteps - 2);
  EXPECT_EQ(replayed.steps, kSteps - 2);
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
