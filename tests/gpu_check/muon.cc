// SPDX-License-Identifier: Apache-2.0
//
// The part of Muon, whose products cuBLAS makes: its parameters are near the
// CPU's, its products are as precise as asked for and not more, and a step
// takes little longer than its products.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shard/shard.hpp"
#include "tests/gpu_check/parts.h"
#include "tests/gpu_check/stepper.h"
#include "tests/gpu_check/training.h"
#include "tests/kernels/formula/newton_schulz_reference.h"

namespace shard::gpu_check {

namespace {

// The steps of Newton-Schulz of a step, and the least norm, as usual.
constexpr int kNsSteps = 5;
constexpr double kEps = 1e-7;

// The error in bf16 is at most torch's. Errors in bf16 are chance: of one
// gradient of 96 rows ours is 0.91 to 1.07 times torch's, and of so many
// gradients of each of three shapes, together, 0.97 to 0.99 times. Both were
// simulated on a processor, where sums of products with random errors of 1e-5
// and less moved the second by at most 0.008.
constexpr double kMostOfTorch = 1;
constexpr int kCopies = 16;

// A value of matmul_precision, how far from the CPU's, which are fp32, its
// updates may be, and how far an orthogonal matrix is from the same in double,
// where random gradients of 24 to 512 rows are made orthogonal. With roundings
// to nearest, fp32 is 1e-6 to 2e-6 off, TF32 0.0017 to 0.0035, or 0.004 with
// operands that are cut, and bf16 0.010 to 0.018. Less than the least is of
// products that are more precise, and slower, than asked for: libshard needs a
// GPU of compute capability 8.0, which has TF32.
struct Precision {
  const char* name;
  double most_error;
  double least_of_double;  // 0 is no bound.
  double most_of_double;
};
constexpr Precision kPrecisions[] = {{"highest", 1e-4, 0, 1e-5},
                                     {"high", 0.02, 0.001, 0.006},
                                     {"medium", 0.05, 0.007, 0.025}};

std::string OptimizerOf(const Precision& precision) {
  return std::string("muon?lr=0.02&matmul_precision=") + precision.name;
}

DoubleMatrix MatrixOf(const std::vector<std::byte>& bytes, const Shape& shape) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return shard::MatrixOf(values.data(), static_cast<std::size_t>(shape[0]),
                         static_cast<std::size_t>(shape[1]));
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

// Compares what the products of one step make of gradients with Newton-Schulz
// in double, and bf16 with what torch rounds to bf16. Errors are shares of the
// matrices' Frobenius norms, of all matrices together.
void ComparePrecisions(const Options& options, std::int64_t side,
                       Report* report) {
  Training training;
  training.units = false;
  training.steps = 1;
  training.shapes.clear();
  for (int c = 0; c < kCopies; ++c) {
    training.shapes.insert(training.shapes.end(),
                           {{side, 2 * side}, {2 * side, side}, {side, side}});
  }
  const auto matrices = static_cast<double>(training.shapes.size());
  const auto error = [&](double squares) {
    return std::sqrt(squares / (matrices * static_cast<double>(side)));
  };
  std::vector<DoubleMatrix> expected;
  double torch_squares = 0;
  for (std::size_t p = 0; p < training.shapes.size(); ++p) {
    const DoubleMatrix gradient =
        MatrixOf(GradOf(training, 0, 1, p), training.shapes[p]);
    expected.push_back(NewtonSchulzReference(gradient, kNsSteps, kEps));
    torch_squares += std::pow(
        Distance(NewtonSchulzOfTorch(gradient, kNsSteps, kEps), expected[p]),
        2);
  }
  for (const Precision& precision : kPrecisions) {
    // The step takes the orthogonal matrix from the parameter, times a factor
    // of the shape.
    training.optimizer =
        std::string("muon?lr=1&weight_decay=0&momentum=0&nesterov=0&") +
        "matmul_precision=" + precision.name;
    const States states = Train(training, options.device);
    double squares = 0;
    for (std::size_t p = 0; p < expected.size(); ++p) {
      const Shape& shape = training.shapes[p];
      const DoubleMatrix after =
          MatrixOf(states.at("block" + std::to_string(p) + ".weight"), shape);
      DoubleMatrix made =
          MatrixOf(Values(DType::f32, p, NumelOf(shape)), shape);
      const double factor = std::sqrt(std::max(
          1.0, static_cast<double>(shape[0]) / static_cast<double>(shape[1])));
      for (std::size_t i = 0; i < made.values.size(); ++i) {
        made.values[i] = (made.values[i] - after.values[i]) / factor;
      }
      squares += std::pow(Distance(made, expected[p]), 2);
    }
    const std::string what = std::string("muon ") + precision.name;
    report->Number(what + ", off double", error(squares), "of the matrix");
    report->Judge(what + ", off double,", error(squares), "of the matrix",
                  precision.least_of_double, precision.most_of_double);
    if (&precision != std::end(kPrecisions) - 1) continue;
    report->Number("torch's bf16, off double", error(torch_squares),
                   "of the matrix");
    report->Judge(what + ", off double,", std::sqrt(squares / torch_squares),
                  "times torch's bf16", 0, kMostOfTorch);
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
  ComparePrecisions(options, large ? 96 : 24, report);
  Measure(options, "12 blocks of GPT-2", Blocks(12, large ? 768 : 8), report);
  const std::int64_t side = large ? 4096 : 32;
  Measure(options, "4096 x 4096", {{side, side}}, report);
}

}  // namespace shard::gpu_check
