// SPDX-License-Identifier: Apache-2.0
//
// The parts that measure steps of single elements.

#include <cstddef>
#include <string>
#include <vector>

#include "shard/shard.hpp"
#include "tests/gpu_check/gpu.h"
#include "tests/gpu_check/parts.h"
#include "tests/gpu_check/stepper.h"
#include "tests/gpu_check/training.h"

namespace shard::gpu_check {

namespace {

// Returns the bytes per second that a copy of `bytes` reads and writes.
double CopyBandwidth(const std::string& device, std::size_t bytes) {
  Gpu gpu(OrdinalOf(device));
  void* const from = gpu.Allocate(bytes);
  void* const to = gpu.Allocate(bytes);
  gpu.FillZeros(from, bytes);
  std::vector<double> seconds;
  for (int i = 0; i < 7; ++i) {
    gpu.Finish();
    const auto start = Clock::now();
    for (int c = 0; c < 3; ++c) gpu.Copy(to, from, bytes);
    gpu.Finish();
    seconds.push_back(SecondsSince(start) / 3);
  }
  gpu.Free(from);
  gpu.Free(to);
  return 2 * static_cast<double>(bytes) / Median(seconds);
}

}  // namespace

void Bandwidth(const Options& options, Report* report) {
  const double copy =
      CopyBandwidth(options.device,
                    static_cast<std::size_t>(options.elements) * sizeof(float));
  report->Number("copy", copy / 1e9, "GB/s");
  // The targets are those of docs/benchmarks.md; 0 is none.
  struct Named {
    const char* name;
    Stepper::Form form;
    double least_of_copy = 0;
    double most_of_plain = 0;
    int tensors = 1;
  };
  const Named forms[] = {
      {"adamw f32, 1 tensor", {}, 0.90},
      {"adamw f32, 10,000 tensors", {}, 0.90, 0, 10000},
      {"adamw f32, clipped", {.step = {.max_grad_norm = 1}}, 0, 1.35},
      {"adamw bf16 with masters",
       {.dtype = DType::bf16, .masters = Masters::f32},
       0.88},
      {"adamw bf16 at random",
       {.dtype = DType::bf16, .masters = Masters::none_stochastic}},
      {"adamw f32, states of 8 bits",
       {.optimizer = "adamw?lr=0.001&states=q8"},
       0.70},
      {"sgd f32", {.optimizer = "sgd?lr=0.001"}},
  };
  double plain = 0;
  for (const Named& named : forms) {
    Stepper stepper(named.form, EqualTensors(named.tensors, options.elements),
                    options.device);
    const double seconds = stepper.Seconds();
    const auto bytes = static_cast<double>(stepper.BytesMoved());
    if (plain == 0) plain = seconds;
    report->Number(named.name, seconds * 1e3, "ms");
    Tell(options, named.name, bytes / seconds / copy, "of a copy",
         named.least_of_copy, 0, report);
    Tell(options, named.name, seconds / plain, "of adamw f32", 0,
         named.most_of_plain, report);
  }
}

void Overhead(const Options& options, Report* report) {
  const auto measure = [&](int units, const StepOptions& step) {
    Stepper stepper({.units = true, .step = step},
                    EqualTensors(units, units * 1024), options.device);
    return stepper.HostSeconds() * 1e6;
  };
  const double one = measure(1, {});
  const double many = measure(101, {});
  Tell(options, "enqueue a step of one unit", one, "us", 0, 50, report);
  Tell(options, "each further unit", (many - one) / 100, "us", 0, 8, report);
  report->Number("enqueue a clipped step of one unit",
                 measure(1, {.max_grad_norm = 1}), "us");
}

}  // namespace shard::gpu_check
