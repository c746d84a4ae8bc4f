// SPDX-License-Identifier: Apache-2.0
//
// Futex: sleep until a word in memory changes.

#ifndef SHARD_CORE_COMM_DIRECT_FUTEX_H_
#define SHARD_CORE_COMM_DIRECT_FUTEX_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace shard::direct {

// Sleeps while *word == expected. Returns when woken, after `longest`, or
// spuriously: the caller checks again. The word may be in shared memory.
void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected,
               std::chrono::nanoseconds longest);

void FutexWakeAll(const std::atomic<uint32_t>* word);

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_FUTEX_H_
