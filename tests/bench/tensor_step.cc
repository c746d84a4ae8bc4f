// SPDX-License-Identifier: Apache-2.0
//
// The update of optimizers that look at whole parameters: 64 M fp32 parameters
// as 64 matrices of 1024 x 1024, on two threads of one process, beside the roof
// of the same passes over the same matrices. All are interleaved; times are
// medians over the rounds.

#include "kernels/cpu/tensor_step.h"

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mapping.h"
#include "kernels/formula/all.h"
#include "kernels/formula/scalars.h"
#include "tests/bench/bench.h"
#include "tests/bench/tensor_roof.h"

namespace shard::bench {
namespace {

constexpr int64_t kShape[] = {1024, 1024};
constexpr size_t kNumel = size_t{1024} * 1024;
constexpr size_t kMatrices = 64;
constexpr size_t kThreads = 2;
constexpr int kRounds = 9;

// One value for each element of all matrices, in pages of its own, as in the
// engine.
class Buffer {
 public:
  explicit Buffer(float value) {
    auto pages = Mapping::Anonymous(kMatrices * kNumel * sizeof(float));
    if (!pages.ok()) {
      std::fprintf(stderr, "tensor_step: %s\n",
                   pages.status().ToString().c_str());
      std::exit(1);
    }
    pages_ = *std::move(pages);
    for (size_t i = 0; i < kMatrices * kNumel; ++i) {
      Matrix(0)[i] = value * static_cast<float>(i % 251);
    }
  }
  float* Matrix(size_t i) const {
    return reinterpret_cast<float*>(pages_.data()) + i * kNumel;
  }

 private:
  Mapping pages_;
};

// Returns the milliseconds until `body` has run on all matrices, of which each
// thread has a part.
double Parallel(const std::function<void(size_t)>& body) {
  std::barrier start(kThreads + 1);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      for (size_t i = t; i < kMatrices; i += kThreads) body(i);
    });
  }
  start.arrive_and_wait();
  const double begin = Seconds();
  for (std::thread& thread : threads) thread.join();
  return (Seconds() - begin) * 1e3;
}

// Measures the step of F. `bytes` is per element, as kernels/cpu/tensor_step.h
// counts them.
template <class F>
void Measure(Formula formula, double bytes, const std::vector<Buffer>& buffers,
             const std::function<void(size_t)>& roof) {
  std::vector<double> hypers;
  for (const Hyper& hyper : F::kHypers) hypers.push_back(hyper.fallback);
  const size_t scratch_elements = TensorScratchElements(formula, kShape, 2);
  std::vector<std::vector<float>> scratch(kThreads,
                                          std::vector<float>(scratch_elements));
  int64_t step = 0;
  const auto update = [&](size_t i) {
    float* states[kMaxStates];
    for (size_t s = 0; s < kMaxStates; ++s)
      states[s] = buffers[2 + s].Matrix(i);
    TensorStepArgs args;
    args.grad = buffers[0].Matrix(i);
    args.param = buffers[1].Matrix(i);
    args.states = states;
    args.shape = kShape;
    args.ndim = 2;
    args.scratch = scratch[i % kThreads].data();
    TensorStep(formula, FormulaScalars(formula, hypers.data(), step).data(),
               args);
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
  const std::string prefix = std::string(F::kName) + ".fp32.";
  constexpr auto kElements = static_cast<double>(kMatrices * kNumel);
  Bench("optimizer_step", (prefix + "bytes_per_element").c_str(), bytes, "B");
  Bench("optimizer_step", (prefix + "bandwidth").c_str(),
        bytes * kElements / Median(times) / 1e6, "GB/s");
  Bench("optimizer_step", (prefix + "ratio_to_roof").c_str(), Median(ratios),
        "x");
}

int Main() {
  std::vector<Buffer> buffers;
  for (const float value : {1e-3f, 1e-2f}) buffers.emplace_back(value);
  for (int s = 0; s < kMaxStates; ++s) buffers.emplace_back(1e-4f);
  volatile float zero = 0;
  Measure<Lamb>(Formula::kLamb, 40, buffers, [&](size_t i) {
    LambRoof(buffers[0].Matrix(i), buffers[1].Matrix(i), buffers[2].Matrix(i),
             buffers[3].Matrix(i), kNumel, zero);
  });
  Measure<Adafactor>(Formula::kAdafactor, 24, buffers, [&](size_t i) {
    AdafactorRoof(buffers[0].Matrix(i), buffers[1].Matrix(i), kNumel, zero);
  });
  return 0;
}

}  // namespace
}  // namespace shard::bench

int main() { return shard::bench::Main(); }
