// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_BASE_OUT_OF_MEMORY_H_
#define SHARD_CORE_BASE_OUT_OF_MEMORY_H_

#include <new>

#include "core/base/status.h"

namespace shard {

// Returns the kResourceExhausted for code that catches std::bad_alloc. The
// status is made by the first call, at the latest when libshard.so is loaded;
// copying it allocates nothing.
const Status& OutOfMemoryStatus();

// Returns what `call` returns, a Status, or OutOfMemoryStatus() where an
// allocation in it fails. For code that has to go on: to undo or to clean up.
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
