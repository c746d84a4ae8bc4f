// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/check.h"

#include "core/collectives/nccl/check.h"
#include "core/device/cuda/cuda_device.h"

namespace shard::cuda {

Status CheckCollectives(std::string_view id, Communicator* control,
                        const Deadline& deadline) {
  const auto device = OpenDevice(id);
  const auto context = device.ok() ? ContextOf(**device) : nullptr;
  return nccl::CheckCollectives(control, device, context, deadline);
}

}  // namespace shard::cuda
