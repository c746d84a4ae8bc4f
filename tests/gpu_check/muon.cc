// SPDX-License-Identifier: Apache-2.0
//
// The part of Muon, whose products cuBLAS makes: its parameters are near the
// CPU's, and a step takes little longer than its products.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shard/shard.hpp"
#include "tests/gpu_check/parts.h"
#include "tests/gpu_check/stepper.h"
#include "tests/gpu_check/training.h"

namespace shard::gpu_check {

namespace {

// The steps of Newton-Schulz of a step, as usual.
constexpr int kNsSteps = 5;

// A value of matmul_precision, and how far from the CPU's, which are fp32, its
// updates may be.
struct Precision {
  const char* name;
  double most_error;
};
constexpr Precision kPrecisions[] = {
    {"highest", 1e-4}, {"high", 0.02}, {"medium", 0.1}};

std::string OptimizerOf(const Precision& precision) {
  return std::string("muon?lr=0.02&matmul_precision=") + precision.name;
}

// The matrices of blocks of GPT-2 of that width, which is 768 with 124M
// parameters.
std::vector<Shape> Blocks(int blocks, std::int64_t width) {
  std::vector<Shape> shapes;
  for (int b = 0; b < blocks; ++b) {
    shapes.push_back({width, 3 * width});
    shapes.push_back({width, width});
    shapes.push_back({width, 4 * width});
    shapes.push_back({4 * width, width});
  }
  return shapes;
}

// Returns the distance of the two from each other, over that of `expected` from
// `initial`, by Frobenius norms.
double ErrorOf(const std::vector<std::byte>& actual,
               const std::vector<std::byte>& expected,
               const std::vector<std::byte>& initial) {
  const auto distance = [](const std::vector<std::byte>& a,
                           const std::vector<std::byte>& b) {
    double squares = 0;
    for (std::size_t at = 0; at < a.size(); at += sizeof(float)) {
      float x = 0;
      float y = 0;
      std::memcpy(&x, &a[at], sizeof(x));
      std::memcpy(&y, &b[at], sizeof(y));
      squares += (double{x} - y) * (double{x} - y);
    }
    return std::sqrt(squares);
  };
  return distance(actual, expected) / distance(expected, initial);
}

// Compares the updates of a few steps with the CPU's.
void CompareUpdates(const Options& options, std::int64_t width,
                    Report* report) {
  // A BLAS of the machine, if it has one, is as good.
  ::setenv("SHARD_BLAS_LIBRARY", "libgpu_check_blas.so", 0);
  Training training;
  training.optimizer = OptimizerOf(kPrecisions[0]);
  training.units = false;
  training.steps = 2;
  training.shapes = Blocks(1, width);
  // Matrices of one shape are multiplied together.
  for (int i = 0; i < 12; ++i) training.shapes.push_back({width / 8, width});
  const States expected = Train(training, "cpu");
  Training none = training;
  none.steps = 0;
  const States initial = Train(none, "cpu");
  for (const Precision& precision : kPrecisions) {
    training.optimizer = OptimizerOf(precision);
    const States actual = Train(training, options.device);
    double most = 0;
    for (const auto& [key, bytes] : initial) {
      if (!key.ends_with(".weight")) continue;
      const double error = ErrorOf(actual.at(key), expected.at(key), bytes);
      // A NaN stays.
      if (!(error <= most)) most = error;
    }
    const std::string what = std::string("muon ") + precision.name;
    report->Number(what + ", off the CPU's", most, "of the update");
    report->Check(what + " is within " + std::to_string(precision.most_error) +
                      " of the CPU's update",
                  most <= precision.most_error, std::to_string(most));
  }
}

// Returns the floating point operations of the products of a step, as a GPU
// makes them: three products for each step of Newton-Schulz.
double FlopsOf(const std::vector<Shape>& shapes) {
  double flops = 0;
  for (const Shape& shape : shapes) {
    const auto small = static_cast<double>(std::min(shape[0], shape[1]));
    const auto large = static_cast<double>(std::max(shape[0], shape[1]));
    flops += kNsSteps * (4 * small * small * large + 2 * small * small * small);
  }
  return flops;
}

// Measures a step, and its products alone: those are what a step with twice as
// many of them takes longer.
void Measure(const Options& options, const std::string& shapes_name,
             const std::vector<Shape>& shapes, Report* report) {
  for (const Precision& precision : kPrecisions) {
    Stepper stepper({.optimizer = OptimizerOf(precision), .has_grads = true},
                    shapes, options.device);
    std::vector<double> once;
    std::vector<double> twice;
    // In turns, so that the GPU's clock is the same for both.
    for (int i = 0; i < 7; ++i) {
      stepper.SetHyper("ns_steps", kNsSteps);
      once.push_back(stepper.SecondsOnce());
      stepper.SetHyper("ns_steps", 2 * kNsSteps);
      twice.push_back(stepper.SecondsOnce());
    }
    const double step = Median(once);
    const double products = Median(twice) - step;
    const std::string what =
        std::string("muon ") + precision.name + ", " + shapes_name;
    report->Number(what, step * 1e3, "ms");
    report->Number(what, FlopsOf(shapes) / products / 1e12,
                   "TFLOP/s of products");
    Tell(options, what, step / products, "of products", 0, 1.25, report);
    stepper.SetHyper("ns_steps", kNsSteps);
    report->Number(what, stepper.HostSeconds() * 1e3, "ms to enqueue");
  }
}

}  // namespace

void MuonSteps(const Options& options, Report* report) {
  const std::string missing =
      nlohmann::json::parse(devices_json())["cuda"]["cublas"]["error"];
  if (!missing.empty()) {
    report->Text("muon", "not run: " + missing);
    return;
  }
  const bool large = options.elements >= kWholeElements;
  CompareUpdates(options, large ? 768 : 24, report);
  Measure(options, "12 blocks of GPT-2", Blocks(12, large ? 768 : 8), report);
  const std::int64_t side = large ? 4096 : 32;
  Measure(options, "4096 x 4096", {{side, side}}, report);
}

}  // namespace shard::gpu_check
