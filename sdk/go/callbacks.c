// SPDX-License-Identifier: Apache-2.0
//
// Go cannot export functions with const parameters; these casts are all that is
// between the library's function types and Go's.

#include "callbacks.h"

#include "_cgo_export.h"

void shard_go_log(shard_log_level level, const char* message, void* user_data) {
  shardGoLog(level, (char*)message, user_data);
}

int32_t shard_go_progress(uint64_t done, uint64_t total, void* user_data) {
  return shardGoProgress(done, total, user_data);
}

int32_t shard_go_wrap(int32_t module, int64_t nonwrapped_numel,
                      void* user_data) {
  return shardGoWrap(module, nonwrapped_numel, user_data);
}

int32_t shard_go_take(const char* key, const shard_tensor_info* info,
                      const void* data, void* user_data) {
  return shardGoTake((char*)key, (shard_tensor_info*)info, (void*)data,
                     user_data);
}
