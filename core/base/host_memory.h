// SPDX-License-Identifier: Apache-2.0
//
// The memory that the host can still give. Linux promises more than it has and
// kills a process when memory runs out, so a request that cannot fit is refused
// before it is made. The figure is a snapshot and reserves nothing: pages that
// are not touched yet still count as available, to this process and to all
// others. A caller that makes several allocations checks their sum first.

#ifndef SHARD_CORE_BASE_HOST_MEMORY_H_
#define SHARD_CORE_BASE_HOST_MEMORY_H_

#include <cstdint>
#include <string_view>

#include "core/base/status.h"

namespace shard {

// Returns the smaller of the limits of the kernel (MemAvailable) and of the
// control group of this container (version 2); UINT64_MAX when neither is
// known.
uint64_t AvailableHostMemory();

// The remedy to give when the training state does not fit.
inline constexpr std::string_view kShardFurther =
    "use more hosts, a higher ZeRO stage, or a smaller model";

// Returns kResourceExhausted, with `remedy` where there is one, when `bytes`
// exceed the available memory. OK is no promise that they will fit.
Status CheckHostMemory(uint64_t bytes, std::string_view remedy = "");

}  // namespace shard

#endif  // SHARD_CORE_BASE_HOST_MEMORY_H_
