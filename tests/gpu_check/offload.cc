// SPDX-License-Identifier: Apache-2.0
//
// The part of offloaded optimizer states: their bits are the CPU's, how long a
// step takes with more and more threads of the host, and how much of this time
// a backward pass hides.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "shard/shard.hpp"
#include "tests/gpu_check/gpu.h"
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

// Each thread has several windows of the larger tensors. Steps that may be
// begun before their backward pass have the same bits then.
void CompareBits(const Options& options, Report* report) {
  constexpr std::int64_t kMost = 1 << 22;
  const std::int64_t elements = std::min(options.elements, kMost);
  const auto compare = [&](const std::string& what, Training training) {
    training.steps = 3;
    training.shapes = {{elements + 3}, {77}, {64, 33}, {elements / 4, 2}};
    const States expected = Train(training, "cpu");
    const bool needs_all =
        training.step.max_grad_norm > 0 || training.step.skip_nonfinite;
    for (const bool begun : {false, true}) {
      if (begun && needs_all) continue;
      training.begun = begun;
      const std::string difference =
          Difference(Train(training, Offloaded(options.device, 4)), expected);
      report->Check(what + (begun ? ", begun" : ""), difference.empty(),
                    difference);
    }
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
  compare("two ranks, bf16 with masters", {.ranks = 2,
                                           .dtype = DType::bf16,
                                           .masters = Masters::f32,
                                           .deterministic = true});
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
      const double bus = form.bus_bytes * static_cast<double>(elements);
      // Its copies access the host's memory, too.
      report->Number(
          what,
          (static_cast<double>(stepper.BytesMoved()) + bus) / seconds / 1e9,
          "GB/s of the host's memory");
      report->Number(what, bus / seconds / 1e9, "GB/s of the bus");
    }
  }
}

// Stands for a backward pass: copies within the device's memory, on the host's
// stream, in as many parts as there are units.
class Backward {
 public:
  Backward(std::size_t bytes, int units, Gpu* gpu)
      : bytes_(bytes), units_(units), gpu_(gpu) {
    from_ = gpu_->Allocate(bytes);
    to_ = gpu_->Allocate(bytes);
    gpu_->FillZeros(from_, bytes);
  }
  ~Backward() {
    gpu_->Free(from_);
    gpu_->Free(to_);
  }
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;

  // Makes the pass last for so long. Many copies are timed together: one alone
  // takes longer than one among others, by the launch and the host's wait.
  void SetSeconds(double seconds) {
    constexpr int kTimed = 32;
    const double timed = Median(7, [this] {
      for (int c = 0; c < kTimed; ++c) Copy();
    });
    const double copies = seconds / units_ / (timed / kTimed);
    copies_ = std::clamp(static_cast<int>(std::lround(copies)), 1, kMostCopies);
  }

  // Enqueues the part of a unit.
  void EnqueueUnit() {
    for (int c = 0; c < copies_; ++c) Copy();
  }

  // Returns the median of the seconds of `work`, which begins when the device
  // has nothing to do, and ends when all that it enqueued is done.
  template <class Work>
  double Median(int count, const Work& work) {
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) {
      gpu_->Finish();
      const auto start = Clock::now();
      work();
      gpu_->Finish();
      seconds.push_back(SecondsSince(start));
    }
    return gpu_check::Median(seconds);
  }

  double Seconds() {
    return Median(7, [this] {
      for (int u = 0; u < units_; ++u) EnqueueUnit();
    });
  }

 private:
  // Where copies are far shorter than on a GPU, the pass is too.
  static constexpr int kMostCopies = 1000;

  void Copy() { gpu_->Copy(to_, from_, bytes_); }

  const std::size_t bytes_;
  const int units_;
  Gpu* const gpu_;
  void* from_ = nullptr;
  void* to_ = nullptr;
  int copies_ = 1;
};

// Measures how much of a begun step passes during a backward pass that takes
// twice as long. The last unit's update comes after the pass, so at most 15/16
// of 16 units are hidden. Copies of the pass are those of a kernel's length, 50
// us at 2.6 TB/s, so that copies of the step wait for none of them long.
void MeasureHidden(const Options& options, Report* report) {
  constexpr int kUnits = 16;
  constexpr std::int64_t kMost = std::int64_t{1} << 27;
  constexpr std::int64_t kMostCopied = std::int64_t{1} << 26;
  constexpr double kLeastHidden = 0.8;
  const std::int64_t elements = std::min(options.elements, kMost);
  const int threads =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 16);
  for (const Form& form : std::span(kForms).first(2)) {
    Stepper stepper({.optimizer = form.optimizer,
                     .dtype = form.dtype,
                     .masters = form.masters,
                     .units = true},
                    EqualTensors(kUnits, elements),
                    Offloaded(options.device, threads));
    Backward backward(
        static_cast<std::size_t>(std::min(options.elements * 4, kMostCopied)),
        stepper.NumUnits(), &stepper.gpu());
    const double step = backward.Median(7, [&] { stepper.BegunStep([] {}); });
    backward.SetSeconds(2 * step);
    const double pass = backward.Seconds();
    const double both = backward.Median(
        7, [&] { stepper.BegunStep([&] { backward.EnqueueUnit(); }); });
    const std::string name = form.name;
    report->Number(name + ", a backward pass alone", pass * 1e3, "ms");
    report->Number(name + ", a begun step alone", step * 1e3, "ms");
    report->Number(name + ", both", both * 1e3, "ms");
    const auto tell = [&](const std::string& what, double value,
                          const char* unit, double least, double most) {
      report->Number(what, value, unit);
      if (options.judged.hidden) report->Judge(what, value, unit, least, most);
    };
    // A pass of another length says nothing of what one twice as long hides.
    tell(name + ", the pass", pass / step, "times as long as the step", 1.5, 3);
    tell(name + ", hidden by the pass", HiddenShare(pass, step, both),
         "of the step", kLeastHidden, 0);
  }
}

}  // namespace

void OffloadedSteps(const Options& options, Report* report) {
  CompareBits(options, report);
  Measure(options, report);
  MeasureHidden(options, report);
}

}  // namespace shard::gpu_check
