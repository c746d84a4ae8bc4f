// SPDX-License-Identifier: Apache-2.0
//
// The functions that the library calls. Each passes its arguments on to Go;
// `user_data` is the cell of a callback (callback.go).

#ifndef SHARD_GO_CALLBACKS_H_
#define SHARD_GO_CALLBACKS_H_

#include "shard/shard.h"

void shard_go_log(shard_log_level level, const char* message, void* user_data);
int32_t shard_go_progress(uint64_t done, uint64_t total, void* user_data);
int32_t shard_go_wrap(int32_t module, int64_t nonwrapped_numel,
                      void* user_data);
int32_t shard_go_take(const char* key, const shard_tensor_info* info,
                      const void* data, void* user_data);

#endif  // SHARD_GO_CALLBACKS_H_
