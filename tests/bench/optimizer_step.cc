// SPDX-License-Identifier: Apache-2.0
//
// Every optimizer's update of 64 M fp32 parameters with one gradient source, on
// two threads of one process, beside the roof of its bytes: 12 per parameter
// (p and g in, p out) and 8 for each state tensor. Interleaved; medians over
// the rounds.

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mapping.h"
#include "core/base/strings.h"
#include "core/optim/optimizer.h"
#include "kernels/cpu/fused_step.h"
#include "tests/bench/bench.h"
#include "tests/bench/roof.h"

namespace shard::bench {
namespace {

constexpr size_t kElements = size_t{64} << 20;
constexpr size_t kThreads = 2;
constexpr int kRounds = 9;

struct Variant {
  const char* name;
  const char* optimizer;
};

constexpr Variant kVariants[] = {
    {"adamw", "adamw"},
    {"adamw_amsgrad", "adamw?amsgrad=1"},
    {"adamw_apex", "adamw?profile=apex"},
    {"adamw_deepspeed_cpu", "adamw?profile=deepspeed_cpu"},
    {"adamw_llmc", "adamw?profile=llmc"},
    {"adamw_ggml", "adamw?profile=ggml"},
    {"adam", "adam?weight_decay=0.1"},
    {"adam_amsgrad", "adam?amsgrad=1"},
    {"adamax", "adamax"},
    {"adadelta", "adadelta"},
    {"adagrad", "adagrad"},
    {"lion", "lion"},
    {"rmsprop", "rmsprop"},
    {"rmsprop_centered_momentum", "rmsprop?centered=1&momentum=0.9"},
    {"rprop", "rprop"},
    {"sgd", "sgd?weight_decay=0.1"},
    {"sgd_momentum", "sgd?momentum=0.9"},
};

template <typename T>
T Require(StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "optimizer_step: %s\n",
                 value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}

// A tensor in pages of its own, as the engine has them.
class Tensor {
 public:
  explicit Tensor(float value)
      : pages_(Require(Mapping::Anonymous(kElements * sizeof(float)))) {
    for (size_t i = 0; i < kElements; ++i) {
      data()[i] = value * static_cast<float>(i % 251);
    }
  }
  float* data() const { return reinterpret_cast<float*>(pages_.data()); }

 private:
  Mapping pages_;
};

// Milliseconds until `body` has run on all threads' parts: [begin,
// begin+count).
double Parallel(const std::function<void(size_t, size_t)>& body) {
  std::barrier start(kThreads + 1);
  std::vector<std::thread> threads;
  constexpr size_t kPart = kElements / kThreads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      body(t * kPart, kPart);
    });
  }
  start.arrive_and_wait();
  const double begin = Seconds();
  for (std::thread& thread : threads) thread.join();
  return (Seconds() - begin) * 1e3;
}

int Main() {
  const Tensor param(1e-2f);
  const Tensor grad(1e-3f);
  const std::vector<Tensor> states = [] {
    std::vector<Tensor> made;
    for (int s = 0; s < kMaxStates; ++s) made.emplace_back(1e-4f);
    return made;
  }();
  volatile float zero = 0;
  for (const Variant& variant : kVariants) {
    const Optimizer optimizer = Require(Optimizer::Parse(variant.optimizer));
    const size_t num_states = optimizer.state_names().size();
    int64_t step = 0;
    const auto update = [&](size_t begin, size_t count) {
      const float* source = grad.data() + begin;
      float* parts[kMaxStates];
      for (int s = 0; s < kMaxStates; ++s) {
        parts[s] = states[static_cast<size_t>(s)].data() + begin;
      }
      FusedStepArgs args;
      args.sources = &source;
      args.num_sources = 1;
      args.gradient_scale = 1;
      args.param = param.data() + begin;
      args.states = parts;
      args.count = count;
      FusedStep(optimizer.formula(), optimizer.hypers().data(), step, args);
    };
    const auto roof = [&](size_t begin, size_t count) {
      float* parts[kMaxStates];
      for (int s = 0; s < kMaxStates; ++s) {
        parts[s] = states[static_cast<size_t>(s)].data() + begin;
      }
      UpdateRoof(grad.data() + begin, param.data() + begin, parts, num_states,
                 count, zero);
    };
    std::vector<double> times;
    std::vector<double> ratios;
    for (int round = -1; round < kRounds; ++round) {
      ++step;
      const double roof_ms = Parallel(roof);
      const double update_ms = Parallel(update);
      if (round < 0) continue;
      times.push_back(update_ms);
      ratios.push_back(roof_ms / update_ms);
    }
    const std::string prefix = std::string(variant.name) + ".fp32.";
    const auto bytes = static_cast<double>(12 + 8 * num_states);
    Bench("optimizer_step", (prefix + "bytes_per_element").c_str(), bytes, "B");
    Bench("optimizer_step", (prefix + "bandwidth").c_str(),
          bytes * static_cast<double>(kElements) / Median(times) / 1e6, "GB/s");
    Bench("optimizer_step", (prefix + "ratio_to_roof").c_str(), Median(ratios),
          "x");
  }
  return 0;
}

}  // namespace
}  // namespace shard::bench

int main() { return shard::bench::Main(); }
