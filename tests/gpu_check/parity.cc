// SPDX-License-Identifier: Apache-2.0
//
// The parts that compare a GPU's results with the CPU's.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "shard/shard.hpp"
#include "tests/gpu_check/parts.h"
#include "tests/gpu_check/training.h"

namespace shard::gpu_check {

namespace {

void Compare(const Options& options, const std::string& what,
             const Training& training, Report* report) {
  if (what.find(options.only) == std::string::npos) return;
  try {
    const std::string difference =
        Difference(Train(training, options.device), Train(training, "cpu"));
    report->Check(what, difference.empty(), difference);
  } catch (const std::exception& error) {
    report->Check(what, false, error.what());
  }
}

// Of each formula that GPUs have one.
constexpr const char* kOptimizers[] = {
    "adafactor?lr=0.01&weight_decay=0.1",
    "adadelta?lr=0.5",
    "adagrad?lr=0.01",
    "adam?lr=0.01&weight_decay=0.1",
    "adam?lr=0.01&amsgrad=1",
    "adam?lr=0.01&profile=apex",
    "adam?lr=0.01&profile=deepspeed_cpu",
    "adamax?lr=0.01",
    "adamw?lr=0.01",
    "adamw?lr=0.01&amsgrad=1",
    "adamw?lr=0.01&profile=apex",
    "adamw?lr=0.01&profile=deepspeed_cpu",
    "adamw?lr=0.01&profile=llmc",
    "adamw?lr=0.01&profile=llmc_cpu",
    "adamw?lr=0.01&profile=ggml",
    "lamb?lr=0.01&weight_decay=0.1",
    "lion?lr=0.01",
    "rmsprop?lr=0.01",
    "rmsprop?lr=0.01&momentum=0.9",
    "rmsprop?lr=0.01&centered=1",
    "rmsprop?lr=0.01&centered=1&momentum=0.9",
    "rprop?lr=0.01",
    "sgd?lr=0.1",
    "sgd?lr=0.1&momentum=0.9",
};

struct Types {
  const char* name;
  DType dtype;
  Masters masters;
  bool f32_grads;
};

constexpr Types kTypes[] = {
    {"f32", DType::f32, Masters::by_default, false},
    {"bf16 with masters", DType::bf16, Masters::f32, false},
    {"bf16, f32 gradients", DType::bf16, Masters::f32, true},
    {"bf16 at random", DType::bf16, Masters::none_stochastic, false},
    {"f16 with masters", DType::f16, Masters::f32, false},
};

// What small tensors do not reach: kernels that loop, sums of many blocks, and
// parameters that begin anywhere in a buffer.
void LargeBits(const Options& options, Report* report) {
  constexpr std::int64_t kCols = 1024;
  constexpr std::int64_t kMost = 1 << 24;
  const std::int64_t rows = std::min(options.elements, kMost) / kCols;
  Training large;
  large.steps = 2;
  large.units = false;
  large.shapes = {{rows * kCols + 3}, {77}, {rows, kCols + 1}, {4099}};
  const auto compare = [&](const std::string& what, const Training& training) {
    Compare(options, "large tensors, " + what, training, report);
  };
  for (const char* const optimizer :
       {"adamw?lr=0.01", "adamw?lr=0.01&states=q8", "lamb?lr=0.01",
        "adafactor?lr=0.01"}) {
    for (const Types& types : kTypes) {
      Training training = large;
      training.optimizer = optimizer;
      training.dtype = types.dtype;
      training.masters = types.masters;
      training.f32_grads = types.f32_grads;
      compare(std::string(optimizer) + ", " + types.name, training);
    }
  }
  for (const double type :
       {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    Training training = large;
    training.step = {.max_grad_norm = 0.5, .grad_norm_type = type};
    compare("norm of type " + std::to_string(type), training);
  }
  Training skips = large;
  skips.steps = 3;
  skips.has_nan = true;
  skips.step.skip_nonfinite = true;
  compare("a step that is skipped", skips);
}

}  // namespace

void Load(const Options& options, Report* report) {
  const auto found = nlohmann::json::parse(devices_json())["cuda"];
  for (const char* const library : {"nccl", "cublas"}) {
    const auto& its = found[library];
    const std::string error = its["error"];
    report->Text(library, error.empty()
                              ? its["library"].get<std::string>() + " " +
                                    its["version"].get<std::string>()
                              : "not found: " + error);
  }
  Compare(options, "trains on a stream of the host's", Training(), report);
}

void Bits(const Options& options, Report* report) {
  for (const char* const optimizer : kOptimizers) {
    for (const Types& types : kTypes) {
      Training training;
      training.optimizer = optimizer;
      training.dtype = types.dtype;
      training.masters = types.masters;
      training.f32_grads = types.f32_grads;
      Compare(options, std::string(optimizer) + ", " + types.name, training,
              report);
    }
  }
  for (const char* const states : {"bf16", "q8"}) {
    for (const Types& types : kTypes) {
      Training training;
      training.optimizer = std::string("adamw?lr=0.01&states=") + states;
      training.dtype = types.dtype;
      training.masters = types.masters;
      training.f32_grads = types.f32_grads;
      Compare(options, training.optimizer + ", " + types.name, training,
              report);
    }
  }
  const StepOptions norms[] = {
      {.max_grad_norm = 0.5},
      {.max_grad_norm = 0.5, .grad_norm_type = 1},
      {.max_grad_norm = 0.5,
       .grad_norm_type = std::numeric_limits<double>::infinity()},
      {.clip_value = 0.25},
      {.skip_nonfinite = true},
  };
  for (const StepOptions& step : norms) {
    Training training;
    training.step = step;
    Compare(options,
            "max_grad_norm " + std::to_string(step.max_grad_norm) + ", type " +
                std::to_string(step.grad_norm_type) + ", clip_value " +
                std::to_string(step.clip_value),
            training, report);
  }
  Training scaled;
  scaled.dtype = DType::f16;
  scaled.masters = Masters::f32;
  scaled.loss_scaling = "dynamic?init_scale=1024";
  Compare(options, "dynamic loss scaling", scaled, report);
  LargeBits(options, report);
}

void Staged(const Options& options, Report* report) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int group : {0, 2}) {
        if (group != 0 && stage != 3) continue;
        for (const double max_grad_norm : {0.0, 0.5}) {
          Training training;
          training.ranks = 4;
          training.stage = stage;
          training.dtype = dtype;
          training.shard_group_size = group;
          training.step.max_grad_norm = max_grad_norm;
          training.shapes = {{4000}, {1000}, {30000}, {8192}, {9001}};
          Compare(options,
                  "4 ranks, stage " + std::to_string(stage) +
                      (group == 0 ? "" : ", groups of 2") +
                      (dtype == DType::f32 ? ", f32" : ", bf16") +
                      (max_grad_norm == 0 ? "" : ", clipped"),
                  training, report);
        }
      }
    }
  }
}

}  // namespace shard::gpu_check
