// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/transfers.h"

#include <utility>

#include "core/engine/transfer/collective_transfers.h"
#include "core/engine/transfer/direct_transfers.h"

namespace shard {

StatusOr<std::unique_ptr<Transfers>> MakeTransfers(const Plan& plan,
                                                   const EngineMemory& memory,
                                                   Communicator* comm,
                                                   Device* device) {
  SHARD_ASSIGN_OR_RETURN(auto stream,
                         device->CreateStream(StreamKind::kCompute));
  if (!comm->direct()) {
    return std::unique_ptr<Transfers>(std::make_unique<CollectiveTransfers>(
        plan, memory, comm, device, std::move(stream)));
  }
  SHARD_ASSIGN_OR_RETURN(
      DeviceMemory tile,
      device->Allocate(DirectTransfers::kTile * sizeof(float),
                       "a tile of sums"));
  return std::unique_ptr<Transfers>(std::make_unique<DirectTransfers>(
      plan, memory, comm, std::move(stream), std::move(tile)));
}

}  // namespace shard
