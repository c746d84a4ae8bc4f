// SPDX-License-Identifier: Apache-2.0
//
// A small training whose result is compared between devices: the host writes
// gradients that only depend on the rank, the step and the element.

#ifndef SHARD_TESTS_GPU_CHECK_TRAINING_H_
#define SHARD_TESTS_GPU_CHECK_TRAINING_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shard/shard.hpp"
#include "tests/gpu_check/gpu.h"

namespace shard::gpu_check {

struct Training {
  std::string optimizer = "adamw?lr=0.01";
  int stage = 0;
  int ranks = 1;
  int steps = 3;
  std::vector<Shape> shapes = {{257}, {1000}, {3}, {8192}, {37, 300}};
  // Each parameter is a unit, with a flat buffer of its own. Else all are in
  // one buffer, which has room for them.
  bool units = true;
  DType dtype = DType::f32;
  Masters masters = Masters::by_default;
  bool f32_grads = false;
  int shard_group_size = 0;
  bool deterministic = false;
  StepOptions step = {};
  // Each step is begun before its backward pass, so that units are updated
  // during it. REQUIRES: options that a begun step may have.
  bool begun = false;
  std::string loss_scaling = {};
  // The last gradient of the second step is NaN. REQUIRES: f32.
  bool has_nan = false;
};

// Returns the ordinal of the GPU that a device of an engine names.
int OrdinalOf(const std::string& device);

std::int64_t NumelOf(const Shape& shape);

// Returns values between -1 and 1 of the type, which `seed` determines.
std::vector<std::byte> Values(DType dtype, std::uint64_t seed,
                              std::int64_t numel);

// Returns the gradient that a rank writes for a parameter in a step, but for
// the NaN of has_nan.
std::vector<std::byte> GradOf(const Training& training, int rank, int step,
                              std::size_t param);

// The bytes of all tensors of the state dict, by key.
using States = std::map<std::string, std::vector<std::byte>>;

// Returns the states of an engine. COLLECTIVE; those of rank 0.
States StatesOf(Engine& engine);

// Trains on `device`, with ranks that are threads. A GPU's memory is written on
// its host's stream. Throws what a rank throws.
States Train(const Training& training, const std::string& device);

// Returns "", or the first difference.
std::string Difference(const States& a, const States& b);

}  // namespace shard::gpu_check

#endif  // SHARD_TESTS_GPU_CHECK_TRAINING_H_
