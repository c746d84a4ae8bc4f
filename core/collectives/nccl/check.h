// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_COLLECTIVES_NCCL_CHECK_H_
#define SHARD_CORE_COLLECTIVES_NCCL_CHECK_H_

#include <memory>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/context.h"
#include "core/device/device.h"

namespace shard::nccl {

// Checks NCCL between the ranks' GPUs, as CollectivesCheck (core/device) has
// it. COLLECTIVE. One rank alone calls NCCL, too, which the collectives of an
// engine do not. `device`: a GPU of the driver's order, which has `context`, or
// why there is none.
Status CheckCollectives(Communicator* control,
                        const StatusOr<std::shared_ptr<Device>>& device,
                        const std::shared_ptr<cuda::Context>& context,
                        const Deadline& deadline);

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_CHECK_H_
