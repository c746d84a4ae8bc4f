// SPDX-License-Identifier: Apache-2.0
//
// The parts that measure. Times are those of the host around work that has
// ended, of which there are many times more than a microsecond.

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "shard/shard.hpp"
#include "tests/gpu_check/gpu.h"
#include "tests/gpu_check/parts.h"
#include "tests/gpu_check/training.h"

namespace shard::gpu_check {

namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One rank's training of equal tensors, all gradients ready.
class Stepper {
 public:
  struct Form {
    std::string optimizer = "adamw?lr=0.001";
    DType dtype = DType::f32;
    Masters masters = Masters::by_default;
    int tensors = 1;
    bool units = false;  // Each tensor is one.
    StepOptions step = {};
  };

  Stepper(const Form& form, std::int64_t elements, const std::string& device)
      : form_(form), comm_(Comm::open("local:")) {
    Model model = Model::create("Net");
    for (int t = 0; t < form.tensors; ++t) {
      const ModuleId block =
          model.add_module(root_module, "block" + std::to_string(t), "Block");
      model.add_param(block, "weight", form.dtype, {elements / form.tensors});
    }
    engine_.emplace(Engine::create(
        Plan::create(model, {.world_size = 1,
                             .optimizer = form.optimizer,
                             .masters = form.masters,
                             .wrap = form.units ? "class?names=Block" : ""}),
        comm_, {.device = device}));
    gpu_.emplace(engine_->device().ordinal);
    engine_->set_stream(gpu_->stream());
    engine_->broadcast_params();
    Step();
    Finish();
  }

  void Step() {
    for (const UnitId unit : engine_->plan().units()) {
      engine_->mark_unit_grads_ready(unit);
    }
    engine_->step_without_report(form_.step);
  }
  void Finish() {
    engine_->synchronize();
    gpu_->Finish();
  }

  // Returns the seconds of a step, the median of several.
  double Seconds() {
    std::vector<double> seconds;
    for (int i = 0; i < 7; ++i) {
      constexpr int kSteps = 3;
      const auto start = Clock::now();
      for (int s = 0; s < kSteps; ++s) Step();
      Finish();
      seconds.push_back(SecondsSince(start) / kSteps);
    }
    return Median(seconds);
  }

  // Returns the host's seconds for a step, while the device keeps up.
  double HostSeconds() {
    std::vector<double> seconds;
    for (int i = 0; i < 50; ++i) {
      Finish();
      const auto start = Clock::now();
      Step();
      seconds.push_back(SecondsSince(start));
    }
    return Median(seconds);
  }

  std::uint64_t BytesMoved() { return engine_->last_report().bytes_moved; }

 private:
  const Form form_;
  Comm comm_;
  std::optional<Gpu> gpu_;
  std::optional<Engine> engine_;
};

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

// Tells a number, and checks it where there is a target.
void Tell(const Options& options, const std::string& what, double value,
          const std::string& unit, double least, double most, Report* report) {
  report->Number(what, value, unit);
  if (!options.has_targets) return;
  const auto text = [&](const char* bound, double number) {
    return what + " is " + bound + " " + std::to_string(number) + " " + unit;
  };
  if (least > 0) {
    report->Check(text("at least", least), value >= least,
                  std::to_string(value));
  }
  if (most > 0) {
    report->Check(text("at most", most), value <= most, std::to_string(value));
  }
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
  };
  const Named forms[] = {
      {"adamw f32, 1 tensor", {}, 0.90},
      {"adamw f32, 10,000 tensors", {.tensors = 10000}, 0.90},
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
    Stepper stepper(named.form, options.elements, options.device);
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
    Stepper stepper({.tensors = units, .units = true, .step = step},
                    units * 1024, options.device);
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
