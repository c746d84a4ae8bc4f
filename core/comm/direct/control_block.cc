// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/control_block.h"

#include <algorithm>
#include <cstring>

#include "core/comm/direct/futex.h"

namespace shard::direct {

void StoreWords(const void* from, size_t bytes, void* to) {
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<uint64_t*>(to);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t done = 0; done < bytes; done += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, source + done, std::min(bytes - done, sizeof(word)));
    std::atomic_ref<uint64_t>(*target++).store(word, std::memory_order_relaxed);
  }
}

void LoadWords(const void* from, size_t bytes, void* to) {
  // Nothing is written; atomic_ref of C++20 takes no const word.
  auto* source = const_cast<uint64_t*>(static_cast<const uint64_t*>(from));
  auto* target = static_cast<std::byte*>(to);
  for (size_t done = 0; done < bytes; done += sizeof(uint64_t)) {
    const uint64_t word =
        std::atomic_ref<uint64_t>(*source++).load(std::memory_order_relaxed);
    std::memcpy(target + done, &word, std::min(bytes - done, sizeof(word)));
  }
  std::atomic_thread_fence(std::memory_order_acquire);
}

void ControlBlock::Announce() {
  event.fetch_add(1, std::memory_order_seq_cst);
  if (waiters.load(std::memory_order_seq_cst) > 0) FutexWakeAll(&event);
}

}  // namespace shard::direct
