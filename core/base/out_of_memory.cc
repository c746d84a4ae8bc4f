// SPDX-License-Identifier: Apache-2.0

#include "core/base/out_of_memory.h"

namespace shard {

const Status& OutOfMemoryStatus() {
  // Leaked on purpose: a host may still hold the error while it exits.
  static const Status* const status =
      new Status(StatusCode::kResourceExhausted,
                 "out of memory: the allocator of this process gave none");
  return *status;
}

}  // namespace shard
