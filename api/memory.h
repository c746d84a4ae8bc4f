// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_API_MEMORY_H_
#define SHARD_API_MEMORY_H_

#include "api/options.h"
#include "core/base/status.h"
#include "core/flat/plan.h"
#include "shard/shard.h"

namespace shard::api {

// `memory->struct_size` is set. Predicted and measured memory have one form.
inline Status WriteMemory(const MemoryReport& report, shard_memory* memory) {
  shard_memory result = SHARD_MEMORY_INIT;
  result.param_bytes = report.param_bytes;
  result.grad_bytes = report.grad_bytes;
  result.state_bytes = report.state_bytes;
  return WriteResult("shard_memory", result, memory);
}

}  // namespace shard::api

#endif  // SHARD_API_MEMORY_H_
