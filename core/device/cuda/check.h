// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_DEVICE_CUDA_CHECK_H_
#define SHARD_CORE_DEVICE_CUDA_CHECK_H_

#include <string_view>

#include "core/base/deadline.h"
#include "core/base/status.h"

namespace shard {
class Communicator;
}  // namespace shard

namespace shard::cuda {

// Checks NCCL on the GPU that `id` names, as CollectivesCheck::Run, in the
// caller's thread. COLLECTIVE.
Status CheckCollectives(std::string_view id, Communicator* control,
                        const Deadline& deadline);

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_CHECK_H_
