// SPDX-License-Identifier: Apache-2.0
//
// Gathers whole tensors of a training state, one after the other, on one rank
// or on all. Ranks send their elements in runs of up to kRunBytes, so that many
// small tensors cost one collective.
//
// Memory: one run, on the ranks that receive tensors the largest of them, and
// that of HostAccess on the ranks that send some from a device's memory.

#ifndef SHARD_CORE_ENGINE_STATE_GATHER_STATE_H_
#define SHARD_CORE_ENGINE_STATE_GATHER_STATE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/device/host_access.h"
#include "core/engine/memory/buffers.h"
#include "core/flat/plan.h"
#include "core/state/state_entries.h"

namespace shard {

// Receives the elements of entry number `entry`, at `data` during the call
// only; null for an alias and for a tensor of no elements.
using TensorSink = std::function<Status(size_t entry, const std::byte* data)>;

// Passes all entries, in their order, to `sink` on rank `rank`, or with -1 on
// all ranks. COLLECTIVE. An error of a sink becomes the error of all ranks,
// once the other sinks have got all entries; the failed sink gets no more.
// `access` is to the tensors in `memory`. REQUIRES: the same entries on all
// ranks.
Status GatherState(const Plan& plan, const EngineMemory& memory,
                   const std::vector<StateEntry>& entries, int rank,
                   Communicator* comm, Device* device, HostAccess* access,
                   const TensorSink& sink, const Deadline& deadline);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_GATHER_STATE_H_
