// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_BASE_OUT_OF_MEMORY_H_
#define SHARD_CORE_BASE_OUT_OF_MEMORY_H_

#include "core/base/status.h"

namespace shard {

// The kResourceExhausted of an allocator that gave nothing, for whoever catches
// std::bad_alloc. Made by the first call, at the latest when libshard.so is
// loaded; copies of it allocate nothing.
const Status& OutOfMemoryStatus();

}  // namespace shard

#endif  // SHARD_CORE_BASE_OUT_OF_MEMORY_H_
