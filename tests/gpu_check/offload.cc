// SPDX-License-Identifier: Apache-2.0
//
// The part of offloaded optimizer states: their bits are the CPU's, and how
// long a step takes with more and more threads of the host.

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "shard/shard.hpp"
#include "tests/gpu_check/parts.h"
#include "tests/gpu_check/stepper.h"
#include "tests/gpu_check/training.h"

namespace shard::gpu_check {

namespace {

struct Form {
  const char* name;
  const char* optimizer;
  DType dtype;
  Masters masters;
  // Bytes per element that pass between the memories, both ways together.
  double bus_bytes;
};

constexpr Form kForms[] = {
    {"adamw f32", "adamw?lr=0.001", DType::f32, Masters::by_default, 12},
    {"adamw bf16 with masters", "adamw?lr=0.001", DType::bf16, Masters::f32, 4},
    {"adamw f32, states of 8 bits", "adamw?lr=0.001&states=q8", DType::f32,
     Masters::by_default, 12},
};

std::string Offloaded(const std::string& device, int threads) {
  return device + "?offload=states&offload_threads=" + std::to_string(threads);
}

// Each thread has several windows of the larger tensors.
void CompareBits(const Options& options, Report* report) {
  constexpr std::int64_t kMost = 1 << 22;
  const std::int64_t elements = std::min(options.elements, kMost);
  const auto compare = [&](const std::string& what, Training training) {
    training.steps = 3;
    training.shapes = {{elements + 3}, {77}, {64, 33}, {elements / 4, 2}};
    const std::string difference = Difference(
        Train(training, Offloaded(options.device, 4)), Train(training, "cpu"));
    report->Check(what, difference.empty(), difference);
  };
  for (const Form& form : kForms) {
    compare(form.name, {.optimizer = form.optimizer,
                        .dtype = form.dtype,
                        .masters = form.masters});
  }
  compare("adafactor", {.optimizer = "adafactor?lr=0.01"});
  compare("clipped", {.step = {.max_grad_norm = 0.5}});
  compare("a step that is skipped",
          {.step = {.skip_nonfinite = true}, .has_nan = true});
  compare("two ranks, stage 2", {.stage = 2, .ranks = 2});
}

void Measure(const Options& options, Report* report) {
  constexpr std::int64_t kMost = std::int64_t{1} << 27;
  const std::int64_t elements = std::min(options.elements, kMost);
  const int cores =
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (const Form& form : kForms) {
    for (int threads = 1; threads <= std::min(cores, 16); threads *= 4) {
      Stepper stepper({.optimizer = form.optimizer,
                       .dtype = form.dtype,
                       .masters = form.masters},
                      EqualTensors(16, elements),
                      Offloaded(options.device, threads));
      const double seconds = stepper.Seconds();
      const std::string what = std::string(form.name) + ", " +
                               std::to_string(threads) +
                               (threads == 1 ? " thread" : " threads");
      report->Number(what, seconds * 1e3, "ms");
      report->Number(what,
                     static_cast<double>(stepper.BytesMoved()) / seconds / 1e9,
                     "GB/s of the host's memory");
      report->Number(
          what, form.bus_bytes * static_cast<double>(elements) / seconds / 1e9,
          "GB/s of the bus");
    }
  }
}

}  // namespace

void OffloadedSteps(const Options& options, Report* report) {
  CompareBits(options, report);
  Measure(options, report);
}

}  // namespace shard::gpu_check
