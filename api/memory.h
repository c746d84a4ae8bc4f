// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_API_MEMORY_H_
#define SHARD_API_MEMORY_H_

#include <cstdint>
#include <optional>

#include "api/options.h"
#include "core/base/status.h"
#include "core/base/transport.h"
#include "core/collectives/collectives.h"
#include "core/comm/control_bytes.h"
#include "core/device/device.h"
#include "core/engine/transfer/agreement.h"
#include "core/flat/plan.h"
#include "shard/shard.h"

namespace shard::api {

// Where the ranks of an engine are.
struct Placement {
  int ranks_per_host;
  bool shares_memory;   // The host's communicator does: Communicator::direct().
  bool shares_tensors;  // As Engine::SharesTensors.
  bool shares_params;   // As Engine::SharesParams.
  bool shares_slots;    // As Engine::SharesSlots.
  DeviceId::Kind device;
  std::optional<Offload> offload = std::nullopt;
  Transport transport = Transport::kStaged;
  bool one_kernel = false;
};

// Writes predicted or measured memory. `report` and `collectives` are those of
// one rank. A CPU's memory is the host's, so nothing is counted as the device's
// own, and its collectives have none. REQUIRES: ClearResult succeeded.
inline void WriteMemory(const MemoryReport& report,
                        const CollectivesMemory& collectives,
                        const Placement& placement, shard_memory* memory) {
  const int ranks = placement.ranks_per_host;
  shard_memory result = SHARD_MEMORY_INIT;
  result.param_bytes = report.param_bytes;
  result.grad_bytes = report.grad_bytes;
  result.state_bytes = report.state_bytes;
  result.workspace_bytes = report.workspace_bytes;
  result.transient_bytes = report.transient_bytes;
  if (placement.device == DeviceId::Kind::kCpu) {
    result.host_bytes = report.HostTotal(ranks, placement.shares_params,
                                         placement.shares_slots);
  } else {
    const MemoryReport pinned = {.host_tensor_bytes =
                                     report.PinnedTotal() +
                                     RoundUpToPage(collectives.host_bytes)};
    result.device_bytes =
        report.DeviceTotal() + RoundUpToPage(collectives.device_bytes);
    result.host_bytes = pinned.HostTotal(ranks, false, false);
    result.pinned_bytes = result.host_bytes;
  }
  result.model_buffer_bytes = report.host_tensor_bytes;
  // The host's communicator; the engine's, and its exchange of tensors; the
  // proposals of the engine's ranks.
  result.control_bytes = ControlBytes(ranks, placement.shares_memory) +
                         2 * ControlBytes(ranks, placement.shares_tensors) +
                         NoticesBytes(ranks, sizeof(Proposal));
  WriteResult(result, memory);
}

}  // namespace shard::api

#endif  // SHARD_API_MEMORY_H_
