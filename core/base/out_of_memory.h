// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_BASE_OUT_OF_MEMORY_H_
#define SHARD_CORE_BASE_OUT_OF_MEMORY_H_

#include <new>

#include "core/base/status.h"

namespace shard {

// The kResourceExhausted of an allocator that gave nothing, for whoever catches
// std::bad_alloc. Made by the first call, at the latest when libshard.so is
// loaded; copies of it allocate nothing.
const Status& OutOfMemoryStatus();

// Returns what `call` returns, a Status, or OutOfMemoryStatus() where an
// allocation in it fails: for what has to go on, to undo or to clean up.
template <typename Call>
Status CatchOutOfMemory(const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return OutOfMemoryStatus();
  }
}

}  // namespace shard

#endif  // SHARD_CORE_BASE_OUT_OF_MEMORY_H_
