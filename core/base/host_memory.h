// SPDX-License-Identifier: Apache-2.0
//
// What memory the host can still give. Linux promises more than it has and
// kills a process when it runs out, so what cannot fit is refused before it is
// asked for. This is a look at one moment and reserves nothing: pages that are
// not touched yet still count as available, to this process and to all others.
// Whoever makes several allocations checks their sum first.

#ifndef SHARD_CORE_BASE_HOST_MEMORY_H_
#define SHARD_CORE_BASE_HOST_MEMORY_H_

#include <cstdint>
#include <string_view>

#include "core/base/status.h"

namespace shard {

// The smaller of what the kernel (MemAvailable) and the control group of this
// container (version 2) allow; UINT64_MAX when neither is known.
uint64_t AvailableHostMemory();

// The remedy where it is the training state that does not fit.
inline constexpr std::string_view kShardFurther =
    "use more hosts, a higher ZeRO stage, or a smaller model";

// kResourceExhausted, with `remedy` where there is one, when `bytes` are more
// than what is available now. OK is no promise that they will fit.
Status CheckHostMemory(uint64_t bytes, std::string_view remedy = "");

}  // namespace shard

#endif  // SHARD_CORE_BASE_HOST_MEMORY_H_
