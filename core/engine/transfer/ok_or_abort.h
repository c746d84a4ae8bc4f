// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_ENGINE_TRANSFER_OK_OR_ABORT_H_
#define SHARD_CORE_ENGINE_TRANSFER_OK_OR_ABORT_H_

#include "core/base/status.h"
#include "core/comm/communicator.h"

namespace shard {

// Returns `local`, a status of this rank alone during a collective operation.
// Unless it is OK, ends the group first: the other ranks have no agreement left
// in which they would learn of the error, and would wait for this rank.
inline Status OkOrAbort(Communicator* comm, Status local) {
  if (!local.ok()) comm->Abort(local);
  return local;
}

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_OK_OR_ABORT_H_
