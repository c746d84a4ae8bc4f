// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_COLLECTIVES_NCCL_OPEN_H_
#define SHARD_CORE_COLLECTIVES_NCCL_OPEN_H_

#include <memory>
#include <span>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/base/transport.h"
#include "core/collectives/collectives.h"
#include "core/collectives/nccl/library.h"
#include "core/comm/communicator.h"
#include "core/comm/rank_set.h"
#include "core/device/cuda/context.h"
#include "core/device/device.h"

namespace shard::nccl {

// Finds the NCCL that all ranks can use. COLLECTIVE. Returns kNotFound on all
// ranks, with the reason, where they have none, or not a GPU each.
StatusOr<NcclLibrary> FindNccl(Communicator* control, Device* device,
                               Transport transport, const Deadline& deadline);

// Opens collectives by NCCL, as Device::OpenCollectives. COLLECTIVE. `device`:
// a GPU of the driver's order, which has `context`. Returns null on all ranks
// where NCCL cannot be used: one of them has none, their versions differ, or
// two ranks have one GPU. The reason is logged; with Transport::kNccl it is the
// error kBackendUnavailable instead. Returns null for one rank, too, which has
// nothing to move, but only where it could use NCCL.
StatusOr<std::shared_ptr<Collectives>> OpenCollectives(
    Communicator* control, Device* device,
    const std::shared_ptr<cuda::Context>& context,
    std::span<const RankSet> sets, const CollectivesOptions& options,
    const Deadline& deadline);

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_OPEN_H_
