// SPDX-License-Identifier: Apache-2.0
//
// The host's part of a step whose optimizer states are offloaded: GPT-2 124M in
// bf16 with masters, AdamW, one rank. No GPU takes part: gradients and
// parameters lie in the host's memory, and threads of it make the copies, which
// a GPU's copy engines make elsewhere. So a step on a GPU takes no longer, if
// its bus keeps up: 4 bytes per element.
//
// Beside it stand the roof, the simplest loop that moves the same 28 bytes per
// element, in as many threads, and the step of an engine on the CPU, which has
// one thread.
//
// All are interleaved; ratios are medians over the rounds.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/offload.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/device/offload/offloading_device.h"
#include "core/engine/engine.h"
#include "tests/bench/bench.h"
#include "tests/bench/ranks.h"
#include "tests/bench/roof.h"

namespace shard::bench {
namespace {

constexpr int kRounds = 15;
constexpr double kBytesPerElement = 28;

std::shared_ptr<const Plan> NarrowPlan() {
  auto model = std::make_shared<Model>("GPT2");
  for (const NamedShape& p : Gpt2Shapes()) {
    Require(model->AddParam(kRootModule, p.name, DType::kBF16, p.shape));
  }
  return AdamWPlan(std::move(model), {.world_size = 1});
}

// An engine of one rank, with zeros as gradients.
class Trained {
 public:
  explicit Trained(std::shared_ptr<Device> device)
      : comm_(Require(OpenCommunicator("local:", {.world_size = 1}))) {
    EngineOptions options;
    options.timeout = kTimeout;
    options.opened_device = std::move(device);
    engine_ = Require(Engine::Create(NarrowPlan(), comm_, options));
    Require(engine_->BroadcastParams(kTimeout));
  }

  double elements() const {
    double elements = 0;
    for (const EngineBuffer& buffer : engine_->memory().buffers()) {
      elements += static_cast<double>(buffer.plan->layout.shard_numel());
    }
    return elements;
  }

  // Each of these returns seconds.
  double Step() {
    const double start = Seconds();
    Require(engine_->Step(StepOptions(), nullptr));
    return Seconds() - start;
  }
  double Roof(int threads) {
    const double start = Seconds();
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) {
      others.emplace_back([=, this] { RoofPart(t, threads); });
    }
    RoofPart(0, threads);
    for (std::thread& other : others) other.join();
    return Seconds() - start;
  }

 private:
  // Moves the part of a thread, of each buffer.
  void RoofPart(int thread, int threads) {
    for (const EngineBuffer& buffer : engine_->memory().buffers()) {
      const int64_t numel = buffer.plan->layout.shard_numel();
      const int64_t begin = numel * thread / threads;
      const int64_t end = numel * (thread + 1) / threads;
      const auto floats = [&](size_t state) {
        return reinterpret_cast<float*>(buffer.states[state]) + begin;
      };
      Bf16MasterRoof(static_cast<const uint16_t*>(buffer.GradAt(0, begin)),
                     static_cast<uint16_t*>(buffer.ParamAt(begin)), floats(2),
                     floats(0), floats(1), static_cast<size_t>(end - begin),
                     zero_);
    }
  }

  const std::shared_ptr<Communicator> comm_;
  std::unique_ptr<Engine> engine_;
  const volatile float zero_ = 0;
};

std::shared_ptr<Device> Offloading(int threads) {
  return OffloadStates(Require(OpenDevice("cpu-async?max_delay=0")),
                       Require(OpenDevice("cpu")), {.threads = threads});
}

void Run() {
  Trained plain(Require(OpenDevice("cpu")));
  struct Form {
    int threads;
    Trained engine;
    std::vector<double> seconds = {};
    std::vector<double> of_roof = {};
  };
  Form forms[] = {{1, Trained(Offloading(1))}, {2, Trained(Offloading(2))}};
  std::vector<double> of_plain;
  for (int round = -1; round < kRounds; ++round) {
    const double cpu = plain.Step();
    for (Form& form : forms) {
      const double roof = plain.Roof(form.threads);
      const double step = form.engine.Step();
      if (round < 0) continue;
      form.seconds.push_back(step);
      form.of_roof.push_back(roof / step);
      if (form.threads == 1) of_plain.push_back(cpu / step);
    }
  }
  for (const Form& form : forms) {
    const std::string suffix = StrCat("_", form.threads, "_threads");
    const double seconds = Median(form.seconds);
    Bench("offload_step", ("step_ms" + suffix).c_str(), seconds * 1e3, "ms");
    Bench("offload_step", ("bandwidth" + suffix).c_str(),
          kBytesPerElement * plain.elements() / seconds / 1e9, "GB/s");
    Bench("offload_step", ("of_roof" + suffix).c_str(), Median(form.of_roof),
          "x");
  }
  Bench("offload_step", "of_cpu_step", Median(of_plain), "x");
}

}  // namespace
}  // namespace shard::bench

int main() {
  shard::bench::Run();
  return 0;
}
