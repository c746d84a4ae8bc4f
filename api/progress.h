// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_API_PROGRESS_H_
#define SHARD_API_PROGRESS_H_

#include <cstdint>

#include "core/checkpoint/store/progress.h"
#include "shard/shard.h"

namespace shard::api {

// Wraps the host's function; empty for a NULL function.
inline Progress ToProgress(shard_progress_fn function, void* user_data) {
  if (function == nullptr) return nullptr;
  return [function, user_data](uint64_t done, uint64_t total) {
    return function(done, total, user_data) == 0;
  };
}

}  // namespace shard::api

#endif  // SHARD_API_PROGRESS_H_
