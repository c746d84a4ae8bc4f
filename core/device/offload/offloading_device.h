// SPDX-License-Identifier: Apache-2.0
//
// A device whose engines have their optimizer states in the host's memory. It
// is another device but for that memory and for Stream::Update, which is work
// of the host in the stream's order (host_updates.h).

#ifndef SHARD_CORE_DEVICE_OFFLOAD_OFFLOADING_DEVICE_H_
#define SHARD_CORE_DEVICE_OFFLOAD_OFFLOADING_DEVICE_H_

#include <memory>

#include "core/base/offload.h"
#include "core/base/status.h"
#include "core/device/device.h"

namespace shard {

// Returns `device` with its engines' states in the host's memory. `host` is the
// CPU, whose kernels update. REQUIRES: streams of `device` are not inline.
std::shared_ptr<Device> OffloadStates(std::shared_ptr<Device> device,
                                      std::shared_ptr<Device> host,
                                      const Offload& offload);

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_OFFLOAD_OFFLOADING_DEVICE_H_
