// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_ENGINE_TRANSFER_OK_OR_ABORT_H_
#define SHARD_CORE_ENGINE_TRANSFER_OK_OR_ABORT_H_

#include "core/base/status.h"
#include "core/comm/communicator.h"

namespace shard {

// Returns `local`, of this rank alone in the midst of what all ranks do
// together. Unless it is OK it ends the group first: the other ranks have no
// meeting left in which they would hear of it, and would wait for this one.
inline Status OkOrAbort(Communicator* comm, Status local) {
  if (!local.ok()) comm->Abort(local);
  return local;
}

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_OK_OR_ABORT_H_
