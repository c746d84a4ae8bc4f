// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/check.h"

#include "core/collectives/nccl/check.h"
#include "core/device/cuda/cuda_device.h"

namespace shard::cuda {

Status CheckCollectives(std::string_view id, Communicator* control,
                        const Deadline& deadline) {
  return nccl::CheckCollectives(control, OpenDevice(id), deadline);
}

}  // namespace shard::cuda
