// SPDX-License-Identifier: Apache-2.0
//
// Memory of a GPU where the host's belongs: reading it would end the process.

#ifndef SHARD_CORE_DEVICE_HOST_POINTER_H_
#define SHARD_CORE_DEVICE_HOST_POINTER_H_

#include "core/base/status.h"

namespace shard {

// Returns kInvalidArgument where `memory` is known to be of a GPU, and the host
// cannot read it. Asks the CUDA driver that the process has loaded, and loads
// none: where there is none, there is no such memory. Thread-safe.
Status CheckHostPointer(const void* memory);

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_HOST_POINTER_H_
