// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/transfers.h"

#include <utility>

#include "core/engine/transfer/collective_transfers.h"
#include "core/engine/transfer/collectives_memory.h"
#include "core/engine/transfer/direct_transfers.h"

namespace shard {

StatusOr<std::unique_ptr<Transfers>> MakeTransfers(
    const Transfers::Dependencies& deps) {
  if (!deps.comm->direct()) {
    const uint64_t bytes = deps.allow_missing ? GroupSumBytes(*deps.plan) : 0;
    DeviceMemory group_sums;
    if (bytes > 0) {
      SHARD_ASSIGN_OR_RETURN(
          group_sums, deps.collectives->Allocate(deps.device, bytes,
                                                 "sums of shard groups"));
    }
    return std::unique_ptr<Transfers>(
        std::make_unique<CollectiveTransfers>(deps, std::move(group_sums)));
  }
  SHARD_ASSIGN_OR_RETURN(
      DeviceMemory tile,
      deps.device->Allocate(
          DirectTransfers::TileNumel(*deps.device) * sizeof(float),
          "a tile of sums"));
  return std::unique_ptr<Transfers>(
      std::make_unique<DirectTransfers>(deps, std::move(tile)));
}

}  // namespace shard
