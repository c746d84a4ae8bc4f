// SPDX-License-Identifier: Apache-2.0
//
// The options of engines and steps. shard/engine.h has the meaning and the
// default of each field: 0 or an empty text is the default.

#ifndef SHARD_ENGINE_OPTIONS_HPP_
#define SHARD_ENGINE_OPTIONS_HPP_

#include <cstdint>
#include <string>

#include "shard/arguments.hpp"
#include "shard/engine.h"

namespace shard {

// Where tensors lie, in the codes of DLPack.
enum class DeviceKind : shard_device_kind {
  cpu = SHARD_DEVICE_CPU,
  cuda = SHARD_DEVICE_CUDA,
};

struct DeviceId {
  DeviceKind kind = DeviceKind::cpu;
  std::int32_t ordinal = 0;  // Among the devices of the kind.
};

enum class MissingGrads : shard_missing_grads {
  error = SHARD_MISSING_ERROR,
  zero = SHARD_MISSING_ZERO,
  skip = SHARD_MISSING_SKIP
};

enum class Pass : shard_pass {
  forward = SHARD_PASS_FORWARD,
  backward = SHARD_PASS_BACKWARD,
  backward_overwrite = SHARD_PASS_BACKWARD_OVERWRITE
};

// The options of shard_engine_options.
struct EngineOptions {
  double timeout = 0;
  std::string loss_scaling = {};
  MissingGrads missing_grads = MissingGrads::error;
  bool overlap = false;
  std::string device = {};
};

// The options of shard_step_options. The same on every rank.
struct StepOptions {
  double max_grad_norm = 0;
  double grad_divisor = 0;
  double loss_scale = 0;
  double timeout = 0;
  bool skip_nonfinite = false;
  bool average_active = false;
  double grad_norm_type = 0;
  double clip_value = 0;
};

using StepReport = shard_step_report;

namespace detail {

// Returns the options of the C interface, which point into the argument.
inline shard_engine_options to_c(const EngineOptions& options) {
  return {
      .struct_size = sizeof(shard_engine_options),
      .timeout = options.timeout,
      .loss_scaling = option(options.loss_scaling),
      .missing_grads = static_cast<shard_missing_grads>(options.missing_grads),
      .overlap = options.overlap,
      .device = option(options.device),
  };
}

inline shard_step_options to_c(const StepOptions& options) {
  return {
      .struct_size = sizeof(shard_step_options),
      .max_grad_norm = options.max_grad_norm,
      .grad_divisor = options.grad_divisor,
      .loss_scale = options.loss_scale,
      .timeout = options.timeout,
      .skip_nonfinite = options.skip_nonfinite,
      .average_active = options.average_active,
      .grad_norm_type = options.grad_norm_type,
      .clip_value = options.clip_value,
  };
}

}  // namespace detail
}  // namespace shard

#endif  // SHARD_ENGINE_OPTIONS_HPP_
