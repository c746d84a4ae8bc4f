// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_API_MEMORY_H_
#define SHARD_API_MEMORY_H_

#include <cstdint>

#include "api/options.h"
#include "core/base/status.h"
#include "core/comm/control_bytes.h"
#include "core/engine/transfer/agreement.h"
#include "core/flat/plan.h"
#include "shard/shard.h"

namespace shard::api {

// Writes predicted or measured memory. `report` is that of one rank, on a host
// with `ranks` of them. A CPU's memory is the host's, so nothing is counted as
// the device's own. REQUIRES: ClearResult succeeded.
inline void WriteMemory(const MemoryReport& report, int ranks,
                        bool shares_memory, shard_memory* memory) {
  // The host's communicator, the engine's, and the engine's exchange of
  // tensors.
  constexpr uint64_t kCommunicators = 3;
  shard_memory result = SHARD_MEMORY_INIT;
  result.param_bytes = report.param_bytes;
  result.grad_bytes = report.grad_bytes;
  result.state_bytes = report.state_bytes;
  result.workspace_bytes = report.workspace_bytes;
  result.transient_bytes = report.transient_bytes;
  result.host_bytes = report.HostTotal(ranks, shares_memory);
  result.model_buffer_bytes = report.host_tensor_bytes;
  // And the proposals of the engine's ranks.
  result.control_bytes = kCommunicators * ControlBytes(ranks, shares_memory) +
                         NoticesBytes(ranks, sizeof(Proposal));
  WriteResult(result, memory);
}

}  // namespace shard::api

#endif  // SHARD_API_MEMORY_H_
