// SPDX-License-Identifier: Apache-2.0
//
// EngineOptions: a host's choices for an engine, beside its plan.

#ifndef SHARD_CORE_ENGINE_ENGINE_OPTIONS_H_
#define SHARD_CORE_ENGINE_ENGINE_OPTIONS_H_

#include <memory>
#include <string>

#include "core/base/facts.h"
#include "core/base/status.h"
#include "core/base/transport.h"
#include "core/device/device.h"
#include "core/engine/step/step_coordinator.h"
#include "core/optim/loss_scaler.h"

namespace shard {

struct EngineOptions {
  double timeout = 0;  // Seconds; 0: the communicator's timeout.
  LossScaler loss_scaler;
  MissingGrads missing_grads = MissingGrads::kError;
  // Without shared memory: a step returns while parameters are still being
  // sent; the host acquires each unit before it reads the unit's parameters.
  bool overlap = false;
  std::string device;  // As OpenDevice takes it.
  // For tests: a device to use in place of `device`, or null, how tensors move
  // between such devices, and whether steps are one kernel.
  std::shared_ptr<Device> opened_device = nullptr;
  Transport transport = Transport::kStaged;
  bool one_kernel = false;
};

// Returns kInvalidArgument for a value of missing_grads that does not exist.
Status CheckEngineOptions(const EngineOptions& options);

// Writes the options that ranks must agree on beside the plan: ranks with
// different ones would diverge only when one of them skips a step, or sends
// data that no other rank expects.
void DescribeEngineOptions(const EngineOptions& options, FactSink* sink);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_ENGINE_OPTIONS_H_
