// SPDX-License-Identifier: Apache-2.0
//
// What memory the host can still give. Linux kills a process rather than
// refuse it pages, so an allocation that cannot fit is refused before.

#ifndef SHARD_CORE_COMM_DIRECT_HOST_MEMORY_H_
#define SHARD_CORE_COMM_DIRECT_HOST_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "core/base/status.h"

namespace shard::direct {

// The smaller of what the kernel (MemAvailable) and the control group of this
// container allow; UINT64_MAX when neither is known.
uint64_t AvailableHostMemory();

// kResourceExhausted when `bytes` more do not fit.
Status CheckHostMemory(size_t bytes);

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_HOST_MEMORY_H_
