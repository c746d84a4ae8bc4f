// SPDX-License-Identifier: Apache-2.0
//
// What the options of checkpoint calls have in common.

#ifndef SHARD_API_CHECKPOINT_OPTIONS_H_
#define SHARD_API_CHECKPOINT_OPTIONS_H_

#include <cstdint>
#include <string_view>

#include "core/base/status.h"
#include "core/checkpoint/progress.h"
#include "shard/shard.h"

namespace shard::api {

inline Status CheckFlag(std::string_view name, int32_t value, bool* flag) {
  *flag = value == 1;
  if (value == 0 || value == 1) return Status();
  return InvalidArgument(name, " is ", value, "; allowed: 0 or 1");
}

inline Progress ProgressOf(shard_progress_fn function, void* user_data) {
  if (function == nullptr) return nullptr;
  return [=](uint64_t done, uint64_t total) {
    return function(done, total, user_data) == 0;
  };
}

}  // namespace shard::api

#endif  // SHARD_API_CHECKPOINT_OPTIONS_H_
