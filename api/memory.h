// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_API_MEMORY_H_
#define SHARD_API_MEMORY_H_

#include "api/options.h"
#include "core/base/status.h"
#include "core/flat/plan.h"
#include "shard/shard.h"

namespace shard::api {

// Predicted and measured memory have one form. `get` gives a MemoryReport.
template <typename Get>
Status WriteMemory(Get&& get, shard_memory* memory) {
  SHARD_RETURN_IF_ERROR(ClearResult("shard_memory", memory));
  const MemoryReport report = get();
  shard_memory result = SHARD_MEMORY_INIT;
  result.param_bytes = report.param_bytes;
  result.grad_bytes = report.grad_bytes;
  result.state_bytes = report.state_bytes;
  result.workspace_bytes = report.workspace_bytes;
  result.transient_bytes = report.transient_bytes;
  WriteResult(result, memory);
  return Status();
}

}  // namespace shard::api

#endif  // SHARD_API_MEMORY_H_
