// SPDX-License-Identifier: Apache-2.0
//
// What the parts that measure share. Times are those of the host around work
// that has ended, of which there are many times more than a microsecond.

#ifndef SHARD_TESTS_GPU_CHECK_STEPPER_H_
#define SHARD_TESTS_GPU_CHECK_STEPPER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shard/shard.hpp"
#include "tests/gpu_check/gpu.h"
#include "tests/gpu_check/parts.h"
#include "tests/gpu_check/timing.h"

namespace shard::gpu_check {

// Tells a speed, and judges it where the device has targets. 0 is no bound.
void Tell(const Options& options, const std::string& what, double value,
          const std::string& unit, double least, double most, Report* report);

// Returns the shapes of equal vectors with that many elements in all.
std::vector<Shape> EqualTensors(int tensors, std::int64_t elements);

// One rank's training on a GPU, all gradients ready.
class Stepper {
 public:
  struct Form {
    std::string optimizer = "adamw?lr=0.001";
    DType dtype = DType::f32;
    Masters masters = Masters::by_default;
    bool units = false;      // Each tensor is one.
    bool has_grads = false;  // Else gradients are zeros. REQUIRES: f32.
    StepOptions step = {};
  };

  Stepper(const Form& form, const std::vector<Shape>& shapes,
          const std::string& device);

  void SetHyper(const std::string& key, double value) {
    engine_->set_hyper(all_groups, key, value);
  }
  void Step();
  // Does a step that is begun before its backward pass. `backward` is called
  // for each unit, the last one first, and enqueues the unit's part of the pass
  // on gpu().
  void BegunStep(const std::function<void()>& backward);
  int NumUnits() const;
  void Finish();

  // Returns the seconds of a step, the mean of a few.
  double SecondsOnce();
  // Returns the median of several such means.
  double Seconds();
  // Returns the host's seconds for a step, while the device keeps up.
  double HostSeconds();

  // The host's stream.
  Gpu& gpu() { return *gpu_; }

  std::uint64_t BytesMoved() { return engine_->last_report().bytes_moved; }

 private:
  void WriteGrads(const std::vector<ParamId>& params,
                  const std::vector<Shape>& shapes);

  const Form form_;
  Comm comm_;
  std::optional<Gpu> gpu_;
  std::optional<Engine> engine_;
};

}  // namespace shard::gpu_check

#endif  // SHARD_TESTS_GPU_CHECK_STEPPER_H_
